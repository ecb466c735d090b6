"""Portuguese."""

from app.compaction.summaries.statements.languages.marker import Marker, Phrases

PHRASES: Phrases = {
    Marker.STANDING: (
        "de agora em diante|a partir de agora|a partir de hoje|daqui em diante|daqui para a frente"
        "|doravante|no futuro|pelo resto|para o resto|o resto da|durante toda|durante todo"
        "|esta sessão|nesta sessão|desta sessão|até segunda ordem|até novo aviso|toda vez"
        "|todas as vezes|cada vez|sempre que|em cada|em todas|em todos|todas as respostas"
        "|todas as suas respostas|suas respostas|tuas respostas|sempre|nunca|jamais|^quando citar"
        "|^quando você|^quando|^antes de|^depois de|^lembre-se|^lembra-te|^lembre|^tenha em mente"
        "|por padrão|por omissão|como regra|sem exceção|para todos|para todas|para cada|^me chame"
        "|^chame-me|^chama-me"
    ),
    Marker.HABIT: (
        "^use|^usa|^utilize|^utiliza|^responda|^responde|^escreva|^escreve|^evite|^evita|^cite"
        "|^cita|^formate|^mantenha|^mantém|^limite|^limita|^arredonde|^não|^só|^somente|^apenas|^dê"
        "|^nomeie|^termine|^comece|^empregue|^prefira|^coloque|^indente"
    ),
    Marker.FORM: (
        "tabulaç*|tabs|espaços|markdown|marcadores|lista|listas|emoji|emojis|métric*|unidades"
        "|celsius|português|inglês|espanhol|francês|aspas|frase|frases|palavras|parágrafo*|tom"
        "|formato|estilo|comentários|datas|fuso|utc|iso|formal|conciso|breve|curto|curtas|respostas"
        "|títulos|tabelas|abreviaç*|jargão|decimal|decimais|reais|euros|fonte|fontes|página|páginas"
        "|citaç*|notas"
    ),
    Marker.CONSTRAINT: (
        "deve|devem|devemos|tem que|têm que|tem de|têm de|é preciso|não deve|não devem|não pode"
        "|não podem|proibido|proibida|proibidos|proibidas|não é permitido|obrigatório|obrigatória"
        "|imprescindível|requisito*|exigido|exigida|no máximo|no mínimo|máximo|mínimo|pelo menos"
        "|não mais de|não mais que|o mais tardar|até no máximo|limitado a|limitada a|estritamente"
        "|exclusivamente|em hipótese alguma|em nenhuma circunstância|de jeito nenhum|alérgic*"
        "|alergia*|intoleran*|intolerân*|confidencia*|prazo|data limite|orçamento|sem autorização"
        "|sem permissão|sem aprovação|a menos que|salvo se|teto de|certifique-se|garanta"
        "|regra de segurança"
    ),
    Marker.PREFERENCE: (
        "prefiro|prefere|preferimos|preferem|preferência*|gosto de|gostamos de|não gosto|adoro"
        "|odeio|detesto|favorito|favorita|preferido|preferida|preferível|idealmente|em vez de"
    ),
    Marker.GOAL: (
        "objetivo*|objectivo*|meta|metas|quero|queremos|gostaria|gostaríamos|preciso|precisamos"
        "|tento|tentando|planejo|planejamos|pretendo|pretendemos|a ideia é|propósito|finalidade"
        "|marco*|estou trabalhando|estamos construindo"
    ),
    Marker.DECISION: (
        "decidido|decidimos|decidi|decisão|escolhido|escolhemos|escolhi|vamos com|usaremos"
        "|vamos usar|acordado|combinado|combinamos|optamos|optado|em vez de|descartado|descartamos"
        "|aprovado|adotado|selecionado"
    ),
    Marker.FINDING: (
        "causa|porque|acontece que|confirmado|encontrei|encontrado|o problema é|o problema era"
        "|corrigido|resolvido|portanto|devido a|verificado"
    ),
    Marker.UPDATE: (
        "agora|na verdade|correção|corrigido|mudança|mudou|muda|mudamos|mudar|alterado|alterada"
        "|alteração|atualização|atualizado|atualizada|em vez de|já não|não é mais|não mais|movido"
        "|movida|passa a|passou a|passou para|passa para|esqueça|esquece|renomeado|substituíd*"
        "|substitui|novo|nova|adiado|adiada|antecipado|aumentado|aumentou|reduzido|retifico"
        "|antes era|anteriormente|aliás|a partir de hoje"
    ),
    Marker.OPEN: (
        "pendente*|a fazer|falta|faltam|resta|restam|próximo passo|próximos passos|ainda não|todo"
        "|bloqueado|me lembre|lembre-me|em espera"
    ),
    Marker.FACT: (
        "meu|minha|meus|minhas|nosso|nossa|nossos|nossas|sou|somos|tenho|temos|moro|trabalho"
        "|se chama|chama-se|fica em|localizad*|roda em|utiliza|usa|versão|responsável|contato|nasci"
    ),
    Marker.CONTRAST: "não|em vez|só|somente|apenas|sem|exatamente|exceto|salvo|nunca",
    Marker.ACKNOWLEDGEMENT: (
        "sim|não|obrigado|obrigada|muito|bem|bom|perfeito|ótimo|entendido|claro|certo|ok|okay|olá"
        "|oi|tchau|continue|continua|vá|em|frente|beleza|legal|valeu|exato|por|favor|dia|boa|tarde"
        "|tudo"
    ),
    Marker.PROCESS: (
        "^deixe-me|^deixa-me|^vou|^aqui está|^aqui estão|^vamos ver|^você quer|^permita-me"
    ),
    Marker.COPULA: "é|são|era|eram|será|está|estão|custa|vale|tem|têm|chama|usa|passa|para|a",
    Marker.STOP: (
        "o|a|os|as|um|uma|uns|umas|de|do|da|dos|das|no|na|nos|nas|em|ao|aos|à|às|e|ou|mas|por|pelo"
        "|pela|para|com|sem|sobre|entre|é|são|era|será|está|estão|eu|tu|você|ele|ela|nós|eles|meu"
        "|minha|meus|minhas|seu|sua|nosso|nossa|que|se|lhe|me|te|não|já|também|muito|mais|como|este"
        "|esta|esse|essa|isso|agora|novo|nova"
    ),
    Marker.FILLER: "por|favor|e|mas|também|além|bom|ok|nota|importante|então|depois|ah",
}

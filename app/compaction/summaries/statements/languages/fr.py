"""French."""

from app.compaction.summaries.statements.languages.marker import Marker, Phrases

PHRASES: Phrases = {
    Marker.STANDING: (
        "désormais|dorénavant|à partir de maintenant|à partir d'aujourd'hui|à l'avenir"
        "|pour le reste|pour toute la|pendant toute|tout au long|jusqu'à nouvel ordre|chaque fois"
        "|à chaque fois|à chaque|dans chaque|dans toutes|dans tous|toutes les réponses"
        "|toutes tes réponses|toutes vos réponses|tes réponses|vos réponses|toujours|jamais"
        "|^quand tu|^quand vous|^lorsque tu|^lorsque vous|^avant de|^avant chaque|^après chaque"
        "|^rappelle-toi|^souviens-toi|^n'oublie pas|^n'oubliez pas|^gardez à l'esprit"
        "|^garde à l'esprit|par défaut|en règle générale|sans exception|pour tous les"
        "|pour toutes les|pour chaque|^appelle-moi|^appelez-moi|systématiquement|durant toute"
        "|cette session|pour cette session"
    ),
    Marker.HABIT: (
        "^utilise|^utilisez|^réponds|^répondez|^écris|^écrivez|^évite|^évitez|^cite|^citez|^formate"
        "|^garde|^gardez|^limite|^limitez|^arrondis|^ne|^n'utilise|^n'utilisez|^pas de|^seulement"
        "|^uniquement|^donne|^donnez|^nomme|^indente|^termine|^terminez|^commence|^commencez"
        "|^tutoie|^vouvoie|^emploie|^employez|^préfère|^privilégie"
    ),
    Marker.FORM: (
        "tabulation*|espaces|markdown|puces|liste|emoji|emojis|émojis|métrique*|unités|celsius"
        "|français|anglais|allemand|espagnol|guillemets|phrase|phrases|mots|paragraphe*|ton|format"
        "|style|commentaires|dates|fuseau|utc|iso|formel|concis|bref|court|courtes|réponses|titres"
        "|tableaux|abréviation*|jargon|décimale*|euros|source|sources|page|pages|citation*|notes"
    ),
    Marker.CONSTRAINT: (
        "doit|doivent|dois|devez|il faut|ne doit pas|ne doivent pas|ne peut pas|ne pas|interdit"
        "|interdite|interdits|interdites|interdiction|défense de|obligatoire*|impératif"
        "|impérativement|exigence*|exigé|requis|requise|au plus|au moins|au maximum|au minimum"
        "|maximum|minimum|pas plus de|pas moins de|au plus tard|limité à|limitée à|strictement"
        "|exclusivement|en aucun cas|sous aucun prétexte|allergique*|allergie*|intoléran*"
        "|confidentiel*|échéance|date limite|budget|sans autorisation|sans accord|sauf si"
        "|à moins que|plafond|règle de sécurité|assure-toi|assurez-vous|veille à|veillez à"
        "|ne jamais"
    ),
    Marker.PREFERENCE: (
        "préfère|préfères|préférons|préfèrent|préférence*|j'aime|je n'aime pas|j'adore|je déteste"
        "|plutôt que|préféré|préférée|idéalement|nous aimons|de préférence|favori|favorite"
    ),
    Marker.GOAL: (
        "objectif*|but|je veux|nous voulons|je voudrais|nous voudrions|j'aimerais|j'ai besoin"
        "|nous avons besoin|je souhaite|nous souhaitons|je cherche à|j'essaie|nous essayons"
        "|je prévois|nous prévoyons|on veut|il s'agit de|finalité|jalon*"
    ),
    Marker.DECISION: (
        "décidé|décision|choisi|choix|nous utiliserons|on utilisera|convenu|opté|au lieu de|plutôt"
        "|retenu|rejeté|écarté|adopté|approuvé|on part sur|nous partons sur|tranché"
    ),
    Marker.FINDING: (
        "cause|parce que|il s'avère|confirmé|trouvé|le problème est|le problème était|corrigé"
        "|résolu|donc|à cause de|en raison de|vérifié"
    ),
    Marker.UPDATE: (
        "maintenant|désormais|en fait|finalement|correction|corrigé|changement|changé|change"
        "|changer|modifié|modification|mis à jour|mise à jour|au lieu de|ne plus|n'est plus"
        "|plus maintenant|déplacé|déplacée|passé à|passe à|passée à|oublie|oubliez|renommé|remplacé"
        "|remplacée|remplace|nouveau|nouvelle|nouvel|reporté|reportée|repoussé|avancé|augmenté"
        "|réduit|rectification|auparavant|précédemment|avant c'était|dès aujourd'hui|plutôt"
    ),
    Marker.OPEN: (
        "à faire|reste à|restent à|prochaine étape|prochaines étapes|en attente|en suspens"
        "|pas encore|todo|bloqué|rappelle-moi|question ouverte"
    ),
    Marker.FACT: (
        "mon|ma|mes|notre|nos|je suis|nous sommes|j'ai|nous avons|j'habite|je travaille|s'appelle"
        "|se trouve|situé|située|tourne sur|utilise|version|responsable|contact|est de|né|née"
    ),
    Marker.CONTRAST: "pas|au lieu|plutôt|seulement|uniquement|sans|exactement|sauf|jamais",
    Marker.ACKNOWLEDGEMENT: (
        "oui|non|merci|beaucoup|bien|parfait|super|d'accord|ok|okay|très|génial|compris|entendu"
        "|continue|continuez|vas-y|bonjour|salut|bonsoir|au|revoir|c'est|bon|cool|exactement|voilà"
        "|s'il|te|vous|plaît"
    ),
    Marker.PROCESS: (
        "^laisse-moi|^laissez-moi|^je vais|^voici|^regardons|^voyons|^voulez-vous|^veux-tu"
    ),
    Marker.COPULA: "est|sont|était|étaient|sera|coûte|vaut|s'appelle|a|ont|passe|utilise|à",
    Marker.STOP: (
        "le|la|les|l|un|une|des|du|de|d|et|ou|mais|en|au|aux|à|dans|sur|sous|par|pour|avec|sans|est"
        "|sont|était|sera|je|j|tu|il|elle|nous|vous|ils|elles|on|mon|ma|mes|notre|nos|ton|votre|ce"
        "|cet|cette|ces|que|qu|qui|ne|n|pas|plus|se|s|y|si|aussi|très|maintenant|désormais|nouveau"
        "|nouvelle|finalement|fait"
    ),
    Marker.FILLER: (
        "et|mais|aussi|alors|donc|bon|ok|note|important|au|fait|merci|puis|enfin|s'il|te|plaît|vous"
    ),
}

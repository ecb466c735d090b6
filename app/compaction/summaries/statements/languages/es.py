"""Spanish."""

from app.compaction.summaries.statements.languages.marker import Marker, Phrases

PHRASES: Phrases = {
    Marker.STANDING: (
        "de ahora en adelante|a partir de ahora|desde ahora|en adelante|de aquí en adelante"
        "|en el futuro|por el resto|para el resto|el resto de|durante toda|durante todo|esta sesión"
        "|hasta nuevo aviso|cada vez|siempre que|en cada|en todas|en todos|todas las respuestas"
        "|todas tus respuestas|tus respuestas|sus respuestas|siempre|nunca|jamás|^cuando cites"
        "|^cuando escribas|^cuando respondas|^cuando uses|^cuando te|^cuando|^antes de|^después de"
        "|^recuerda|^recuerde|^ten en cuenta|^tenga en cuenta|por defecto|como norma|como regla"
        "|sin excepción|para todos|para todas|para cada|^llámame|^llámeme|por norma"
    ),
    Marker.HABIT: (
        "^usa|^use|^utiliza|^utilice|^responde|^responda|^escribe|^escriba|^evita|^evite|^cita"
        "|^cite|^formatea|^mantén|^mantenga|^limita|^limite|^redondea|^no|^solo|^sólo|^únicamente"
        "|^da|^dame|^nombra|^termina|^termine|^empieza|^empiece|^tutéame|^háblame|^emplea|^prefiere"
        "|^contesta"
    ),
    Marker.FORM: (
        "tabulador*|tabulaciones|espacios|markdown|viñetas|lista|listas|emoji|emojis|métric*"
        "|unidades|celsius|español|inglés|francés|alemán|comillas|frase|frases|oraciones|palabras"
        "|párrafo*|tono|formato|estilo|comentarios|fechas|huso|utc|iso|formal|conciso|breve|breves"
        "|corto|cortas|respuestas|títulos|tablas|abreviatura*|jerga|decimal*|euros|dólares|fuente"
        "|fuentes|página|páginas|cita|citas|notas"
    ),
    Marker.CONSTRAINT: (
        "debe|deben|debes|debemos|hay que|tiene que|tienen que|no debe|no deben|no puede|no pueden"
        "|no se puede|prohibido|prohibida|prohibidos|prohibidas|no está permitido|obligatorio"
        "|obligatoria|imprescindible|requisito*|requerido|requerida|como máximo|como mínimo|máximo"
        "|mínimo|al menos|a lo sumo|no más de|no menos de|a más tardar|limitado a|limitada a"
        "|estrictamente|exclusivamente|bajo ningún|en ningún caso|alérgic*|alergia*|intoleran*"
        "|confidencial*|plazo|fecha límite|presupuesto|sin autorización|sin permiso|sin aprobación"
        "|a menos que|salvo que|tope de|asegúrate|asegúrese|no toques|no borres|no superar"
        "|regla de seguridad"
    ),
    Marker.PREFERENCE: (
        "prefiero|prefieres|prefiere|preferimos|prefieren|preferencia*|me gusta|me gustan"
        "|no me gusta|me encanta|odio|favorito|favorita|preferible*|idealmente|nos gusta"
        "|en lugar de|en vez de"
    ),
    Marker.GOAL: (
        "objetivo*|meta|metas|quiero|queremos|quisiera|quisiéramos|me gustaría|nos gustaría"
        "|necesito|necesitamos|intento|intentamos|planeo|planeamos|pretendo|pretendemos|la idea es"
        "|propósito|estoy trabajando|hito*|estamos construyendo"
    ),
    Marker.DECISION: (
        "decidido|decidimos|decidí|decisión|elegido|elegimos|elegí|vamos con|usaremos|acordado"
        "|acordamos|optamos|optado|en lugar de|en vez de|descartado|descartamos|aprobado|adoptado"
        "|seleccionado"
    ),
    Marker.FINDING: (
        "causa|porque|resulta que|resultó|confirmado|encontré|encontrado|el problema es"
        "|el problema era|corregido|resuelto|solucionado|por lo tanto|debido a|verificado"
    ),
    Marker.UPDATE: (
        "ahora|en realidad|corrección|corregido|cambio|cambió|cambia|cambiado|cambiamos|cambiar"
        "|actualización|actualizado|actualizada|en lugar de|en vez de|ya no|movido|movida|se movió"
        "|se mueve|pasa a|pasó a|olvida|olvide|renombrado|reemplaza*|sustituid*|sustituye|nuevo"
        "|nueva|aplazado|aplazada|pospuesto|pospuesta|adelantado|aumentado|reducido|rectifico"
        "|antes era|anteriormente|mejor|finalmente|desde hoy"
    ),
    Marker.OPEN: (
        "pendiente*|por hacer|falta|faltan|queda por|quedan por|próximo paso|próximos pasos"
        "|siguiente paso|todavía no|aún no|todo|bloqueado|recuérdame|en espera"
    ),
    Marker.FACT: (
        "mi|mis|nuestro|nuestra|nuestros|nuestras|soy|somos|tengo|tenemos|vivo|trabajo|se llama"
        "|está en|ubicad*|corre en|utiliza|usa|versión|responsable|contacto|nací"
    ),
    Marker.CONTRAST: "no|en lugar|en vez|solo|sólo|únicamente|sin|exactamente|salvo|excepto|nunca",
    Marker.ACKNOWLEDGEMENT: (
        "sí|si|no|gracias|muchas|vale|bien|muy|perfecto|genial|entendido|claro|de|acuerdo|ok|okay"
        "|hola|adiós|continúa|sigue|adelante|estupendo|exacto|por|favor|buenos|días|buenas|tardes"
        "|bueno"
    ),
    Marker.PROCESS: (
        "^déjame|^déjeme|^voy a|^aquí está|^aquí tienes|^veamos|^quieres|^desea|^permíteme"
    ),
    Marker.COPULA: "es|son|era|eran|será|está|están|cuesta|vale|tiene|tienen|se llama|usa|a|pasa",
    Marker.STOP: (
        "el|la|los|las|un|una|unos|unas|de|del|al|a|en|y|o|u|e|pero|por|para|con|sin|sobre|entre|es"
        "|son|era|será|está|están|yo|tú|él|ella|nosotros|ellos|mi|mis|tu|tus|su|sus|nuestro|nuestra"
        "|que|se|lo|le|les|me|te|nos|no|ya|también|muy|más|como|si|este|esta|estos|estas|ese|esa"
        "|ahora|nuevo|nueva|hay"
    ),
    Marker.FILLER: "por|favor|y|pero|también|además|bueno|ok|nota|importante|entonces|luego|oye|ah",
}

"""English."""

from app.compaction.summaries.statements.languages.marker import Marker, Phrases

PHRASES: Phrases = {
    Marker.STANDING: (
        "from now on|from here on|from this point|going forward|henceforth|for the rest of"
        "|for the remainder of|for this session|this session|in this session|throughout"
        "|until further notice|until i say|until i tell|whenever|every time|each time|any time"
        "|in every|in each|in all your|in all of your|in all future|in future|all your answers"
        "|all your replies|all your responses|all replies|all answers|all responses|all code"
        "|all commit messages|all commits|all dates|all times|all amounts|all prices|^always|^never"
        "|^do not ever|don't ever|^when you|^when writing|^when citing|^when quoting"
        "|^when answering|^when i ask|^if i ask|^before you|^before every|^before each|^before any"
        "|^after you|^after every|^after each|^remember to|please always|please never"
        "|you should always|you should never|you must always|i always want|i never want"
        "|i want you to always|i'd like you to always|by default|as a rule|as a general rule"
        "|standing instruction*|ground rule*|house rule*|house style|style rule*|for all|for every"
        "|for each|your answers|your replies|your responses|^call me|^address me|^stick to"
        "|^make it a habit|at all times|without exception|no exceptions|in the future"
    ),
    Marker.HABIT: (
        "^use|^prefer|^avoid|^keep|^write|^answer|^reply|^respond|^cite|^quote|^format|^indent"
        "|^speak|^sign|^spell|^round|^name|^prefix|^suffix|^end|^start|^begin|^limit|^state"
        "|^include|^omit|^skip|^report|^express|^refer|^label|^wrap|^log|^commit|^do not|^don't|^no"
        "|^only|^put|^mark|^summari*e|^explain|^ask|^tell me|^show|^give"
    ),
    Marker.FORM: (
        "tab|tabs|spaces|indent*|markdown|bullet|bullets|bullet points|emoji|emojis|metric|imperial"
        "|units|celsius|fahrenheit|english|german|french|spanish|portuguese|russian|japanese|korean"
        "|chinese|italian|british|american|quotes|quotation|semicolon*|citation*|footnote*|page"
        "|sentence|sentences|words|paragraph*|tone|format|formatted|style|comments|docstring*|iso"
        "|dates|timezone|utc|camelcase|snake_case|camel case|snake case|formal|informal|concise"
        "|brief|short|answers|replies|responses|code blocks|headings|tables|lists|abbreviation*"
        "|jargon|acronym*|decimal*|currency|euros|dollars|24-hour|lowercase|uppercase|trailing"
        "|line length|type hints|imperative|plain text|source|sources|commit messages"
    ),
    Marker.CONSTRAINT: (
        "must|must not|mustn't|may not|may only|cannot|can't be|can not|not allowed|is forbidden"
        "|are forbidden|forbidden|prohibited|not permitted|off limits|off-limits|required|requires"
        "|requirement*|mandatory|have to|has to|needs to be|need to be|never|under no circumstances"
        "|on no account|do not|don't|does not accept|at most|at least|no more than|no less than"
        "|no later than|no earlier than|not exceed|maximum|minimum|limited to|within|hard limit"
        "|hard constraint|constraint*|strictly|only use|only ever|make sure|ensure|shall|shall not"
        "|allergic|allergy|intoleran*|confidential|without approval|without permission|unless"
        "|deadline|budget|cap of|capped at|not touch|not delete|not share|not deploy|not change"
        "|read-only|read only|non-negotiable|compliance|safety rule|safety|avoid|should not"
        "|shouldn't|should never"
    ),
    Marker.PREFERENCE: (
        "prefer|prefers|preferred|preference*|i like|i love|i dislike|i hate|i don't like"
        "|i do not like|i enjoy|favorite|favourite|rather than|i'd rather|i would rather|fond of"
        "|i'm a fan|we like|likes|dislikes|ideally|my taste|i'm not a fan"
    ),
    Marker.GOAL: (
        "goal|goals|aim|aims|objective*|i want|we want|i'd like|i would like|we'd like|i need"
        "|we need|i'm trying|i am trying|we are trying|we're trying|i plan|we plan|planning to"
        "|hope to|intend to|target is|the target|purpose|the point of|i'm working on"
        "|i am working on|we are building|we're building|i'm building|success means|done when"
        "|mission|aspir*|i'm looking to|i am looking to|end state|milestone*|deliver*"
    ),
    Marker.DECISION: (
        "decided|decision|decide to|chose|chosen|choose|going with|go with|went with|we'll use"
        "|we will use|i'll use|i will use|agreed|settled on|opted|instead of|resolved to|let's use"
        "|let us use|let's go|approved|picked|rejected|ruled out|the plan is|conclu*|adopt*"
        "|selected"
    ),
    Marker.FINDING: (
        "root cause|turns out|turned out|because|confirmed|found that|found the|the problem is"
        "|the problem was|the issue is|the issue was|the bug is|the bug was|the reason is"
        "|the reason was|the cause is|the cause was|caused by|due to|fixed|solved|verified"
        "|discovered|therefore|which means|this means|works now|is complete|completed|passes"
        "|tests pass|succeeded|failed because"
    ),
    Marker.UPDATE: (
        "actually|now|update|updated|correction|corrected|changed|instead|no longer|anymore"
        "|any more|moved|switched|switch to|switching to|scratch that|scrap that|forget|disregard"
        "|ignore what|revised|revision|as of|has been|have been|renamed|replaced|replaces"
        "|on second thought|make it|make that|was wrong|not anymore|i was mistaken|my mistake"
        "|i misspoke|changed my mind|change of plan|change of plans|i got|wrong|supersede*|bumped"
        "|raised to|lowered to|increased to|reduced to|postponed|rescheduled|pushed to"
        "|brought forward|from today|effective|set to|overrid*|amend*|used to|previously|formerly"
        "|stop using|dropped|extended to|cut to|went from|rather than|the new|a new|new one"
        "|turned into|became|i meant|sorry|in fact|it's really|hold on|wait"
    ),
    Marker.OPEN: (
        "todo|to-do|fixme|next step*|next up|remaining|still to do|still need|still needs"
        "|still open|open question*|outstanding|pending|not yet|left to do|follow up|follow-up"
        "|later we|blocked on|blocked by|waiting for|waiting on|don't forget|do not forget"
        "|remind me|backlog"
    ),
    Marker.FACT: (
        "my|our|i'm|i am|we're|we are|i have|we have|i've|i live|i work|i own|i was|i use|we use"
        "|runs on|lives in|located|is called|named|stands for|belongs to|version|uses|stored in"
        "|responsible for|owner|contact|the password|the port|the address|the date|born"
    ),
    Marker.CONTRAST: "not|instead of|rather than|only|no|never|without|exactly|except|over",
    Marker.ACKNOWLEDGEMENT: (
        "ok|okay|k|kk|yes|yep|yeah|yup|sure|thanks|thank|you|thx|ty|great|good|nice|perfect|cool"
        "|fine|got|it|understood|noted|right|alright|awesome|excellent|continue|go|ahead|proceed"
        "|done|hi|hello|hey|bye|goodbye|cheers|please|lgtm|sounds|looks|makes|sense|very|much|so"
        "|welcome|no|problem|worries|will|do|i|see|agreed|exactly|indeed|absolutely|of|course|that"
        "|all|for|now|the|help|a|lot|your|well|again|have|day|wonderful|interesting|keep|going|next"
        "|is|works|me|appreciate|and|to|hear|glad|happy|love|sorry"
    ),
    Marker.PROCESS: (
        "^let me|^let's explore|^let's look|^let's check|^let's see|^let's start|^let's try"
        "|^let's take|^let's run|^let's verify|^let's test|^let's read|^let's examine|^let's commit"
        "|^now let's|^next let's|^first let's|^i'll check|^i'll look|^i'll start|^i'll now"
        "|^i will now|^i'm going to|^i need to|^now i|^now let|^now i'll|^first i|^next i'll"
        "|^i'll help|^here is|^here's|^here are|^would you like|^do you want|^shall i|^should i"
        "|^feel free|^let me know|^i can help|^happy to|^i'd be|^looking at|^i see|^to assist"
        "|^could you|^can you|^please provide|^please let me|^i'll proceed|^i will proceed"
        "|^i'll search|^i'll run"
    ),
    Marker.COPULA: (
        "is|are|was|were|equals|be|becomes|became|means|has|have|uses|use|lives|runs|starts|ends"
        "|costs|takes|stays|to|at|will|on"
    ),
    Marker.STOP: (
        "the|a|an|of|for|to|in|on|at|by|with|from|and|or|but|so|as|it|its|it's|this|that|these"
        "|those|i|me|my|we|us|our|you|your|he|she|they|them|their|his|her|is|are|was|were|be|been"
        "|being|do|does|did|has|have|had|will|would|should|can|could|may|might|must|shall|not|no"
        "|also|please|just|very|then|than|there|here|when|where|which|who|what|how|if|about|into"
        "|over|all|any|some|one|up|out|more|most|only|still|too|let|want|like|note|remember|fyi|ok"
        "|i'm|i'd|i'll|we're|we'll|don't|use|uses|used|using|s|t|instead|always|never|now|actually"
    ),
    Marker.FILLER: (
        "please|also|and|but|so|ok|okay|oh|well|hey|hi|one|more|thing|just|btw|by|the|way|note"
        "|important|reminder|fyi|again|additionally|furthermore|finally|then|now|actually|first"
        "|second|lastly|p.s|ps|quick|for|your|information"
    ),
}

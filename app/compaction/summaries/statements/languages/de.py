"""German."""

from app.compaction.summaries.statements.languages.marker import Marker, Phrases

PHRASES: Phrases = {
    Marker.STANDING: (
        "ab jetzt|ab sofort|von nun an|von jetzt an|künftig|in zukunft|zukünftig|für den rest"
        "|für diese sitzung|in dieser sitzung|während der ganzen|während dieser|bis auf weiteres"
        "|jedes mal|jedesmal|immer wenn|stets|in jeder|in jedem|in allen|alle antworten"
        "|deine antworten|ihre antworten|^immer|immer|^nie|niemals|^wenn du|^wenn sie|^wann immer"
        "|^sobald du|^bevor du|^bevor sie|^denk daran|^denke daran|^merk dir|^beachte|grundsätzlich"
        "|standardmäßig|ausnahmslos|für alle|für jede|für jeden|^nenn mich|^sprich mich|^halte dich"
        "|durchgehend|generell|bei jeder|bei jedem|bei allen|im weiteren verlauf|für die gesamte"
    ),
    Marker.HABIT: (
        "^verwende|^verwenden|^benutze|^benutzen|^nutze|^nutzen|^antworte|^antworten|^schreib"
        "|^schreibe|^schreiben|^vermeide|^vermeiden|^zitiere|^zitieren|^formatiere|^halte|^bleib"
        "|^gib|^geben|^nenne|^runde|^keine|^kein|^nur|^bitte keine|^bitte kein|^bitte nur|^fass"
        "|^fasse|^setze|^rücke|^beende|^beginne|^sprich|^duze|^sieze"
    ),
    Marker.FORM: (
        "tabs|tabulatoren|leerzeichen|markdown|stichpunkt*|aufzählung*|emoji|emojis|metrisch*"
        "|einheiten|celsius|deutsch|englisch|französisch|spanisch|anführungszeichen|satz|sätze"
        "|sätzen|wörter|wörtern|absatz|absätze|ton|format|stil|kommentare|datum|datumsangaben"
        "|zeitzone|utc|iso|förmlich|formell|knapp|kurz|antworten|überschriften|tabellen|listen"
        "|abkürzung*|fachjargon|dezimal*|euro|quelle|quellen|seitenzahl*|quellenangabe*|zitate"
        "|fußnoten"
    ),
    Marker.CONSTRAINT: (
        "muss|müssen|musst|darf nicht|dürfen nicht|darfst nicht|dürfen nur|darf nur|darf keine*"
        "|darf|verboten|untersagt|nicht erlaubt|erforderlich|zwingend|pflicht|unbedingt"
        "|auf keinen fall|keinesfalls|unter keinen umständen|höchstens|mindestens|maximal|minimal"
        "|nicht mehr als|nicht weniger als|spätestens|frühestens|begrenzt auf|beschränkt auf|strikt"
        "|ausschließlich|allergisch|allergie|unverträglich*|vertraulich|frist|budget"
        "|sicherheitsregel|nie|sicherstellen|stell sicher|stelle sicher|soll nicht|sollte nicht"
        "|außer wenn|ohne freigabe|ohne genehmigung|ohne zustimmung|obergrenze|nicht löschen"
        "|nicht ändern|nicht überschreiten"
    ),
    Marker.PREFERENCE: (
        "bevorzuge|bevorzugt|bevorzugen|lieber|am liebsten|ich mag|mag kein*|ich hasse|vorliebe*"
        "|gefällt mir|gefallen mir|lieblings*|vorzugsweise|wir mögen|schätze ich"
    ),
    Marker.GOAL: (
        "ziel|ziele|zweck|ich will|wir wollen|ich möchte|wir möchten|ich brauche|wir brauchen"
        "|ich plane|wir planen|ich versuche|wir versuchen|vorhaben|ich arbeite an|wir bauen|absicht"
        "|meilenstein*|erreichen"
    ),
    Marker.DECISION: (
        "entschieden|entscheidung|beschlossen|beschluss|gewählt|wir nehmen|wir verwenden|wir nutzen"
        "|einigten|geeinigt|anstatt|statt|stattdessen|festgelegt|verworfen|ausgewählt|genehmigt"
    ),
    Marker.FINDING: (
        "ursache|grund|weil|stellte sich heraus|bestätigt|gefunden|das problem ist|das problem war"
        "|der fehler|behoben|gelöst|deshalb|daher|verursacht"
    ),
    Marker.UPDATE: (
        "jetzt|nun|doch|korrektur|korrigiert|geändert|änderung|ändert|aktualisiert|aktualisierung"
        "|update|statt|anstatt|stattdessen|nicht mehr|verschoben|umgestellt|gewechselt|wechseln"
        "|vergiss|umbenannt|ersetzt|ersetze|neu|neue|neuer|neues|neuen|eigentlich|erhöht|gesenkt"
        "|reduziert|verlängert|ab heute|inzwischen|mittlerweile|früher|bisher|zuvor|überholt"
        "|revidiert|tatsächlich"
    ),
    Marker.OPEN: (
        "todo|offen|noch zu tun|nächster schritt|nächste schritte|steht noch aus|stehen noch aus"
        "|ausstehend|noch nicht|wartet auf|warten auf|blockiert|erinnere mich|nicht vergessen"
    ),
    Marker.FACT: (
        "mein|meine|meinen|meiner|meinem|unser|unsere|unseren|unserem|ich bin|wir sind|ich habe"
        "|wir haben|ich wohne|ich arbeite|heißt|befindet sich|liegt|läuft auf|verwendet|version"
        "|zuständig|verantwortlich|ansprechpartner*|lautet|beträgt"
    ),
    Marker.CONTRAST: "nicht|statt|anstatt|nur|kein|keine|keinen|ohne|genau|außer",
    Marker.ACKNOWLEDGEMENT: (
        "ja|nein|danke|dankeschön|bitte|gut|super|prima|toll|klar|genau|alles|schön|passt|perfekt"
        "|verstanden|weiter|mach|los|hallo|tschüss|okay|ok|sehr|vielen|dank|richtig|einverstanden"
        "|in|ordnung|gerne|guten|tag|morgen|abend"
    ),
    Marker.PROCESS: (
        "^lass mich|^ich werde|^ich schaue|^schauen wir|^ich prüfe|^hier ist|^hier sind|^gerne"
    ),
    Marker.COPULA: "ist|sind|war|waren|lautet|beträgt|heißt|wird|wurde|hat|haben|liegt|läuft|auf",
    Marker.STOP: (
        "der|die|das|den|dem|des|ein|eine|einen|einem|einer|eines|und|oder|aber|in|im|an|am|auf|aus"
        "|bei|mit|nach|von|vom|zu|zum|zur|für|über|unter|um|durch|ist|sind|war|waren|wird|werden"
        "|wurde|hat|haben|ich|wir|du|sie|er|es|mein|meine|unser|unsere|nicht|kein|keine|auch|noch"
        "|nur|schon|so|wie|als|wenn|dass|sich|mir|mich|uns|jetzt|nun|bitte|doch|statt|neu|neue"
    ),
    Marker.FILLER: (
        "bitte|und|aber|also|auch|ach|noch|etwas|wichtig|übrigens|nun|dann|außerdem|zudem"
    ),
}

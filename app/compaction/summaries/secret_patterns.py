"""The patterns of secrets: data for `secret_masking`, in RE2's syntax.

A secret is recognised by its own form (a key with a prefix, a private key, a password in a URL) or
by the name that it is assigned to (`DB_PASS=`, `"password":`), in any quoting. The name of a
pattern's group selects the check of a matched value.
"""

from __future__ import annotations

# --- keys with a form of their own ----------------------------------------------------------

_EDGE = r"(?:\b|_|\\[abfnrtv]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}|\x1b\[[0-9;]*m)"
"""Where a key may begin: in escaped text a letter precedes it, as in `\\nsk-…`."""

_ISSUED: tuple[str, ...] = (
    # This service
    r"ctx_[0-9a-z]{12}_[A-Za-z0-9_-]{20,}",
    # Models: OpenAI, Anthropic, OpenRouter, Hugging Face, Replicate, Groq, xAI, Perplexity, others
    _EDGE + r"(sk-[A-Za-z0-9_-]{20,})",
    r"(?:hf_|api_org_|gsk_|r8_|pcsk_|tgp_v1_|jina_|e2b_)[A-Za-z0-9]{20,}",
    r"(?:xai-|pplx-|tvly-|nvapi-)[A-Za-z0-9_-]{20,}",
    r"lsv2_[a-z]{2}_[A-Za-z0-9_-]{20,}",
    # AWS
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
    r"ABSK[A-Za-z0-9+/]{100,}={0,2}",
    # Google
    r"AIza[0-9A-Za-z_-]{35}",
    r"ya29\.[0-9A-Za-z_.-]{20,}",
    r"GOCSPX-[0-9A-Za-z_-]{20,}",
    _EDGE + r"(1//0[0-9A-Za-z_-]{30,})",
    # Azure
    r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}",
    r"[A-Za-z0-9+/]{76}(?:AzCa|AzSe|ACDb|\+ASt|AIoT|AzFu)[A-Za-z0-9+/]{2,}={0,2}",
    # Code and packages: GitHub, GitLab, Bitbucket, Atlassian, npm, PyPI, RubyGems, crates, NuGet
    r"gh[pousr]_[A-Za-z0-9_]{30,}",
    r"github_pat_[A-Za-z0-9_]{22,}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct)-[A-Za-z0-9_.-]{20,}",
    r"GR1348941[A-Za-z0-9_-]{20,}",
    r"AT(?:ATT3|CTT3|BB)[A-Za-z0-9_=.-]{24,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[A-Za-z0-9_-]{50,}",
    r"rubygems_[0-9a-f]{40,}",
    _EDGE + r"(cio[A-Za-z0-9]{32}|oy2[a-z0-9]{43})",
    r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}",
    r"AKCp[A-Za-z0-9]{60,}",
    # Money and messages: Stripe, Square, Shopify, SendGrid, Mailgun, Mailchimp, Twilio, Brevo
    r"[srw][ekh]{1,2}(?:_|sec_)(?:live|test|prod)_[A-Za-z0-9]{10,}",
    r"whsec_[A-Za-z0-9+/=_-]{16,}",
    r"sq0(?:atp|csp)-[A-Za-z0-9_-]{22,}",
    r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"key-[0-9a-f]{32}",
    r"SK[0-9a-f]{32}",
    r"[0-9a-f]{32}-us[0-9]{1,2}",
    r"xkeysib-[0-9a-f]{64}-[A-Za-z0-9]{16}",
    # Chats: Slack, Discord, Telegram, Teams
    r"xox[a-z](?:\.xox[bp])?-[A-Za-z0-9-]{10,}",
    r"xapp-[0-9A-Za-z-]{20,}",
    r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9_/+-]{16,})",
    r"discord(?:app)?\.com/api/(?:v[0-9]+/)?webhooks/([0-9]+/[A-Za-z0-9_-]{20,})",
    r"(?:MT|Mj|Mz|ND|NT|Nj|Nz|OD|OT)[A-Za-z0-9_-]{22,24}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
    r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
    r"webhook\.office\.com/webhookb2/([A-Za-z0-9@/_-]{40,})",
    # Clouds and tools: DigitalOcean, Heroku, Vault, Terraform, Databricks, Doppler, and others
    r"do[opr]_v1_[0-9a-f]{32,}",
    r"HRKU-[A-Za-z0-9_-]{36,}",
    _EDGE + r"(hv[sbr]\.[A-Za-z0-9_-]{20,})",
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}",
    _EDGE + r"(dapi[0-9a-f]{32}|pul-[0-9a-f]{40}|dp\.[a-z]{2,5}\.[A-Za-z0-9]{40,})",
    r"(?:lin_api|lin_oauth|ntn|figd|glsa|glc|sntrys|sntryu|sbp|pscale_[a-z]{2,5}|napi|rdme|nfp|bkua"
    r"|rnd|tfp|aio|pnu|sgp|CCIPAT|shippo_(?:live|test)|duffel_(?:live|test))_"
    r"[A-Za-z0-9_.+/=-]{24,}",
    r"(?:PMAK|NRAK|NRII|CFPAT|EZAK|EZTK|tskey|FLWSECK(?:_TEST)?)-?[A-Za-z0-9-]{24,}",
    r"fm(?:1[ar]|2)_[A-Za-z0-9+/]{60,}={0,3}",
    r"dt0c01\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{40,}",
    _EDGE + r"(v1\.0-[0-9a-f]{24}-[0-9a-f]{100,})",
    r"sha256~[A-Za-z0-9_-]{43}",
    _EDGE + r"(LTAI[A-Za-z0-9]{16,}|AKID[A-Za-z0-9]{32}|AQVN[A-Za-z0-9_-]{35,})",
    r"AGE-SECRET-KEY-1[0-9A-Z]{50,}",
    r"ops_eyJ[A-Za-z0-9+/_-]{100,}={0,3}",
    # Hashes of passwords, as in htpasswd and shadow
    r"\${1,2}(?:apr1|argon2(?:id|i|d)|[1567y]|2[abxy]?|gy|md5|pbkdf2(?:-sha[0-9]+)?|scrypt|sha1)\$"
    r"(?:v=[0-9]+\$)?(?:m=[0-9]+,t=[0-9]+,p=[0-9]+\$)?[A-Za-z0-9./+=$-]{20,}",
    r"\{(?:S?SHA(?:256|512)?|S?MD5|CRYPT)\}[A-Za-z0-9./+=$]{13,}",
    # Web tokens, signed or encrypted, also as the base64 of one
    r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_.-]+)?",
)

_LINE = r"(?:\\{1,7}r)?(?:\\{1,7}n|\r?\n)"
"""The end of a line, in text and inside a JSON string."""

_ARMOUR = r"[A-Z0-9 ]{0,40}(?:PRIVATE KEY(?: BLOCK)?|Static key V1)-----"
_PRIVATE_KEYS: tuple[str, ...] = (
    # Up to the line that ends it: whatever stands before each line, as in a diff or a numbered list
    rf"-----BEGIN {_ARMOUR}(?:[^-]|-[^-]|--[^-])+-{{0,2}}-----END {_ARMOUR}",
    # The end is missing: headers, then all that can be base64
    rf"-----BEGIN {_ARMOUR}(?:{_LINE}[A-Za-z-]{{2,20}}: [^\r\n\\]*)*[A-Za-z0-9+/=\s\\>|]{{16,}}",
    rf"-----BEGIN {_ARMOUR}",
    r"PuTTY-User-Key-File[^\0]*?Private-Lines: ?[0-9]+([A-Za-z0-9+/=\s\\]+)",
)

# --- names that secrets are assigned to -----------------------------------------------------

_PASSWORD = (
    r"password|passwd|pass_phrase|pass-phrase|passphrase|passcode|passwort|kennwort|contraseña|senha"
    r"|пароль|密码|密碼|パスワード|비밀번호"
    r"|(?:db|user|smtp|root|admin|ftp|ldap|mail|key|store|ssh|my|sudo|login)[_-]?(?:pass|pwd)"
)
_STRONG = (
    rf"{_PASSWORD}|secret"
    r"|(?:api|access|secret|private|account|auth|encrypt(?:ion)?|signing|master|storage"
    r"|pre[_-]?shared|wep"
    r"|subscription|functions?|license|admin|deploy|webhook|app|consumer|shared[_-]?access"
    r"|account[_-]?access)[_. -]?key"
    r"|(?:auth|access|api|bearer|refresh|session|oauth|sas|security|personal|private|deploy|bot"
    r"|identity|registry|npm|service)[_. -]?token"
    r"|client[_-]key[_-]data|connection[_-]?string"
)
"""Names that are used for secrets only."""

_BEFORE = r"(?:\b|[_-]|\\[nrt]|%(?:25){0,3}[0-9A-Fa-f]{2})"
_NAMED = rf"(?i:{_STRONG})|{_BEFORE}(?i:pass|pwd|psk)|[a-z0-9](?:Pass|Pwd|Psk)"
_WEAK = rf"{_BEFORE}(?i:token|credentials?|auth)|[a-z0-9](?:Token|Credentials?)"
"""Names that are used for other things, too: the tokens of a parser, the credentials of a form."""

_SUFFIX = (
    r"(?i:[_-]?(?:base|value|val|prod|production|dev|staging|test|live|v?[0-9]{1,2}|b64|base64"
    r"|string|text|data|default|main|old|new|current|plain|raw|hash|confirm|confirmation))?"
)
_QUOTE = r"(?:\\{0,15}[\"'`]|\\{1,7}u0022|&(?:quot|apos|#34|#39);|%22)"
_TYPE = (
    r"(?:\??[ \t]{0,2}:[ \t]{0,2}[A-Za-z&*][A-Za-z0-9_.\[\]<>|?&* ]{0,30}|[ \t]string|\[[0-9]*\])??"
)
_ASSIGN = r"[ \t]{0,8}(?::=|\?=|\+=|<-|[:=]{1,3}>?)"
_AFTER = rf"{_SUFFIX}{_QUOTE}?\]?{_ASSIGN}"
_TYPED = rf"{_SUFFIX}{_QUOTE}?\]?{_TYPE}{_ASSIGN}"

_QUOTED = (
    r"\"\"\"(?:[^\"\\]|\\.)+\"\"\"|'''(?:[^'\\]|\\.)+'''"
    r"|\"(?:[^\"\\\r\n]|\\.)+\"|'(?:[^'\\\r\n]|\\.)+'|`[^`\r\n]+`"
    # Inside a JSON string, and in one inside that
    r"|\\\"(?:[^\"\\\r\n]|\\\\(?:\\[\"\\]|[^\"\\]))+\\\"|\\{2,15}\"[^\"\r\n]+?\\{2,15}\""
    r"|\\{1,15}'[^'\r\n]+?\\{1,15}'|\\{1,7}u0022[^\"\r\n]+?\\{1,7}u0022"
    r"|&(?:quot|apos|#34|#39);[^\"\r\n]+?&(?:quot|apos|#34|#39);|%22[^\"\s]+?%22"
    # Cut off before its end
    r"|\\{0,15}[\"'`][^\s\"'`\\]+"
)
_STRING = rf"[bBrRuUfFL@$]{{0,2}}(?P<maybe_quoted>{_QUOTED})"
_TOKEN_STRING = rf"[bBrRuUfFL@$]{{0,2}}(?P<maybe_quoted_token>{_QUOTED})"

_ESCAPED = r"\\[^\snrtu\"'`\\]"
_BARE = rf"(?:[^\s\"'`\\,;(){{}}<>\[\]|&]|{_ESCAPED})+"
_SHELL = rf"(?:[^\s\"'`\\]|{_ESCAPED})+"
_ENCODED_ASSIGN = r"(?:%22|%27)?%(?:25){0,3}(?:3[AaDd])(?:%(?:25){0,3}2[027]|\+)*"
_ENCODED = r"(?:[A-Za-z0-9_.~!*()@:$+/-]|%(?:[13-9A-Fa-f][0-9A-Fa-f]|2[134589A-Fa-f]))+"
"""A percent-encoded value: `&`, a quote or a blank ends it."""
_CALL = r"(?P<call>[(\[])?"
_MARGIN = r"(?:^|\\[nr])[^A-Za-z\"'\r\n\\]*"
"""What may precede a name on its line: blanks, a bullet, a line number, the sign of a diff."""

_ENV_NAME = (
    r"(?:[A-Z0-9_]*(?:PASS|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PWD|PSK|SECRET|APIKEY)|(?:[A-Z0-9]+_)*"
    r"(?:TOKEN|CREDENTIAL|CREDENTIALS|AUTH|AUTHTOKEN|(?:API|ACCESS|SECRET|PRIVATE|ACCOUNT|AUTH"
    r"|ENCRYPTION|SIGNING|MASTER|STORAGE|LICENSE|ADMIN|DEPLOY|APP)_?KEY))"
)

_AUTHORIZATION = rf"(?i)(?:\b|\\[nrt])authorization{_QUOTE}?{_ASSIGN}[ \t]{{0,4}}{_QUOTE}?"
"""A header's name: in a JSON string an escape may precede it, as in `\\nAuthorization: …`."""
_PARAMETER = (
    r"[a-z][a-z0-9_-]{0,30}\*?[ \t]?=[ \t]?"
    r"(?:\\{0,15}\"(?:[^\"\\\r\n]|\\+[^\"\\\r\n])*\\{0,15}\"|[^\s\"'\\,]+)"
)
_DIGEST = rf"{_PARAMETER}(?:[^\r\n\\,]{{0,40}}?,[ \t]*{_PARAMETER})*"
"""The parameters of digest authentication, with quotes that may be escaped in a JSON string."""


_ASSIGNED: tuple[str, ...] = (
    rf"(?:{_NAMED}){_TYPED}\s{{0,16}}{_STRING}",
    rf"(?:{_WEAK}){_TYPED}\s{{0,16}}{_TOKEN_STRING}",
    # Environment files, shells, Dockerfiles
    rf"(?:^|[^A-Za-z0-9_]|\\[nrt]){_ENV_NAME}(?:_[A-Z0-9_]+)?=(?P<maybe_env>{_SHELL})",
    rf"(?:^|[^A-Za-z0-9_]|\\[nrt]){_ENV_NAME}(?:_[A-Z0-9_]+)?[ \t]{{0,4}}[=:][ \t]{{0,4}}{_STRING}",
    rf"(?:\b(?:export|set(?:env)?|declare|readonly)[ \t]+(?:-\w+[ \t]+)?|\$env:)[A-Za-z0-9_]*"
    rf"(?:{_NAMED}|{_WEAK}){_SUFFIX}(?:[ \t]*=[ \t]*|[ \t]+){_STRING}",
    rf"\$\{{{_ENV_NAME}:[-=+](?P<maybe_env>[^}}\s]+)\}}",
    # A line of YAML, INI or properties
    rf"(?m){_MARGIN}[A-Za-z0-9_.-]*(?:{_NAMED}){_SUFFIX}{_QUOTE}?[ \t]*[:=][ \t]*"
    rf"(?P<maybe_plain>{_BARE})[ \t]*(?:#[^\r\n]*)?(?:$|\r|\\{{1,7}}[nr]|\\{{0,7}}\")",
    rf"\"[A-Za-z0-9_.-]*(?:{_NAMED}){_SUFFIX}=(?P<maybe_plain>{_BARE})(?:\\{{1,7}}[nr]|\\{{0,7}}\")",
    # The lines of a YAML block
    rf"(?m)(?:^|\\[nr]|\")(?:[ \t]*[0-9]+(?:→|[:|\t]))?[+-]??(?P<block>(?: )*(?:- )*)"
    rf"[A-Za-z0-9_.\"'-]*(?:{_NAMED}|{_WEAK}){_SUFFIX}[\"']?:[ \t]*[|>][+0-9-]*[ \t]*"
    rf"(?:#[^\r\n\\]*)?(?P<block_line>{_LINE})",
    # Anywhere else
    rf"(?:{_NAMED}){_AFTER}[ \t]{{0,4}}(?P<maybe_word>{_BARE}){_CALL}",
    rf"(?:{_WEAK}){_AFTER}[ \t]{{0,4}}(?P<maybe_token>{_BARE}){_CALL}",
    # Connection strings and queries
    rf"[;?&][ \t]?[A-Za-z0-9_.-]*(?:{_NAMED})=(?P<maybe_plain>[^;&\s\"'\\]+)",
    rf"[;?&][ \t]?[A-Za-z0-9_.-]*(?:{_WEAK})=(?P<maybe_token>[^;&\s\"'\\]+)",
    rf"(?:{_NAMED}){_SUFFIX}{_ENCODED_ASSIGN}(?P<maybe_plain>{_ENCODED})",
    rf"(?:{_WEAK}){_SUFFIX}{_ENCODED_ASSIGN}(?P<maybe_token>{_ENCODED})",
    rf"=[^\s\"',]+[ \t]+(?i:password|passwd|pwd)=(?P<maybe_plain>{_BARE})",
    r"(?i)[?&](?:x-(?:amz|goog)-(?:signature|security-token)|sig|signature|code|key)"
    r"=([A-Za-z0-9%+/_.=-]{20,})",
    # Options of commands
    rf"[\s\"'\[,]--?[A-Za-z0-9_.-]*(?:{_NAMED}|{_WEAK}){_SUFFIX}(?:[ \t]+|=|[\"'],[ \t]*)"
    rf"(?:(?P<maybe_quoted>{_QUOTED})|(?P<maybe_plain>{_SHELL}))",
    r"\bcurl\b[^\r\n]*?[ \t](?:-u|--user|-U|--proxy-user)[ \t=]*[\\\"']*[^\s:\"'\\]+:"
    r"(?P<maybe_value>[^\s\"'\\]+)",
    r"\b(?:mysql|mysqldump|mysqladmin|mariadb|sshpass)\b[^\r\n|;]*?[ \t]-p[ \t]{0,1}[\\\"']*"
    r"(?P<maybe_word>[^\s\"'\\]+)",
    r"\bredis-cli\b[^\r\n|;]*?[ \t]-a[ \t]+[\\\"']*(?P<maybe_value>[^\s\"'\\]+)",
    r"\bdocker[ \t]+login\b[^\r\n|;]*?[ \t]-p[ \t]+[\\\"']*(?P<maybe_value>[^\s\"'\\]+)",
    r"\becho[ \t]+(?:-n[ \t]+)?[\\\"']*(?P<maybe_value>[^\s\"'\\|]+)[\\\"']*[ \t]*\|"
    r"[ \t]*sudo[ \t]+-S",
    # SQL, .netrc, .pgpass, the settings of Docker and npm
    r"(?i)\b(?:identified[ \t]+(?:with[ \t]+\w+[ \t]+)?by|(?:with|encrypted)[ \t]+password"
    rf"|password)[ \t]+(?P<maybe_quoted>{_QUOTED})",
    r"(?i)\b(?:login|user|machine)\s+\S+\s+password\s+(?P<maybe_value>[^\s\"'\\]+)",
    r"(?:^|\\n|[\s\"])[^:\s\"\\]+:(?:5432|5433|6432|\*):[^:\s]+:[^:\s]+:"
    r"(?P<maybe_value>[^\s:\"\\]+)(?:$|[\s\\\"])",
    rf"(?:\b_?auth|identitytoken){_QUOTE}?{_ASSIGN}[ \t]{{0,4}}{_QUOTE}?"
    r"(?P<maybe_token>[A-Za-z0-9+/]{12,}={0,2})",
    # A name and its value as two fields, and in XML
    rf"(?i)(?:name|key){_QUOTE}?{_ASSIGN}\s{{0,4}}{_QUOTE}?[\w.-]*(?:{_STRONG}|_pass|_pwd|psk|token)"
    rf"[\w.-]*{_QUOTE}?(?:[\s,]|\\{{1,7}}[nrt]){{1,24}}{_QUOTE}?value{_QUOTE}?{_ASSIGN}\s{{0,4}}"
    rf"(?:(?P<maybe_quoted>{_QUOTED})|(?P<maybe_plain>{_BARE}))",
    rf"(?i)<[\w:.-]*(?:{_NAMED}|{_WEAK}){_SUFFIX}(?:\s[^<>]*)?>(?P<maybe_plain>[^<>]+)</",
    # Headers
    rf"{_AUTHORIZATION}(?:[a-z][a-z0-9-]{{1,20}}[ \t]+)?"
    r"(?P<maybe_token>[^\s\"'\\,;(){}<>]{8,})",
    rf"{_AUTHORIZATION}(?:basic|token|apikey|api-key"
    r"|key|negotiate|ntlm|hawk|aws4-hmac-sha256)[ \t]+"
    r"(?P<maybe_value>[^\s\"'\\(){}<>][^\r\n\"'\\]*)",
    rf"{_AUTHORIZATION}digest[ \t]+"
    rf"({_DIGEST}|[^\s\"'\\,]+)",
    r"(?i)\bbearer[ \t]{1,8}(?P<maybe_token>[A-Za-z0-9._~+/-]{8,}=*)",
    r"(?i)\bbasic[ \t]{1,8}(?P<maybe_token>[A-Za-z0-9+/]{10,}={0,2})",
    r"(?i)\b(?:set-)?cookie[\"']?:[ \t]{0,4}[\\\"']*[A-Za-z0-9_.-]+="
    r"(?P<maybe_token>[^\r\n\"'\\]{8,})",
    # In a sentence
    r"(?i)\b(?:password|passcode|passphrase|api key|secret(?: key)?|access token)"
    r"(?: for [^\s.]{1,60})? (?:is|was)(?: now)?:?[ \t]+[\"'`]?"
    # An escaped line break, as in JSON, ends the value like a line break.
    r"(?P<maybe_word>(?:[^\s\"'`\\,;()<>]|\\+[^\snrtu\"'`\\])+)",
    # URLs
    r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"'<>]*:(?P<maybe_value>[^\s/\"'<>]+)@",
    r"\b[a-z][a-z0-9+.-]*://(?P<maybe_token>[A-Za-z0-9_.~%-]{16,})@",
)

DEFAULT_SECRET_PATTERNS: tuple[str, ...] = (
    *_ISSUED,
    *_PRIVATE_KEYS,
    *_ASSIGNED,
)
"""The patterns that are masked unless the settings have others."""

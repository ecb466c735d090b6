"""Masks secrets in text that is sent to a summariser. [summary.secrets-masked]

1. A secret is recognised by its own form (a key with a prefix, a private key, a password in a URL)
   or by the name that it is assigned to (`DB_PASS=`, `"password":`).
2. All patterns search the same text, and their matches are masked together: their order does not
   matter. RE2 matches in linear time.
3. The name of a pattern's group selects the check of its value (`_is_secret`). A group of another
   name, or without one, is always a secret. Without groups the whole match is the secret.
4. Terminals colour names and values: their codes are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import re2

from app.common.texts import sendable
from app.conversations.view import Span, union

MASK = "[secret masked]"

SecretPatterns = tuple[Any, ...]
"""Compiled patterns."""

# --- keys with a form of their own ----------------------------------------------------------

_EDGE = r"(?:\b|_|\\[abfnrtv]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2})"
"""Where a name or key may begin: in escaped text a letter precedes it, as in `\\nsk-…`."""

_PREFIXES = r"""
    ctx_[0-9a-z]{12}_ sk- hf_ api_org_ gsk_ r8_ pcsk_ tgp_v1_ jina_ e2b_ xai- pplx- tvly- nvapi-
    lsv2_[a-z]{2}_ A(?:KIA|SIA|BIA|CCA) ABSK AIza ya29\. GOCSPX- 1//0
    gh[pousr]_ github_pat_ gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct)- GR1348941
    AT(?:ATT3|CTT3|BB) npm_ pypi- rubygems_ cio[A-Za-z0-9]{16} oy2[a-z0-9]{16} dckr_[po]at_ AKCp
    [srw][ekh]{1,2}(?:_|sec_)(?:live|test|prod)_ whsec_ sq0(?:atp|csp)- shp(?:at|ca|pa|ss)_ SG\.
    (?:SK|key-|dapi|pul-|v1\.0-)[0-9a-f]{16} xkeysib- xox[a-z](?:\.xox[bp])?- xapp-
    do[opr]_v1_ HRKU- hv[sbr]\. dp\.[a-z]{2,5}\. lin_(?:api|oauth)_ ntn_ figd_ gl(?:sa|c)_
    sntry[su]_ sbp_ pscale_[a-z]{2,5}_ (?:napi|rdme|nfp|bkua|rnd|tfp|aio|pnu|sgp|CCIPAT)_
    (?:shippo|duffel)_(?:live|test)_
    PMAK- NRAK- NRII- CFPAT- EZ[AT]K tskey- FLWSECK fm(?:1[ar]|2)_ dt0c01\. sha256~
    LTAI AKID AQVN AGE-SECRET-KEY-1 ops_eyJ
"""
_W = r"[A-Za-z0-9_-]"
_ARMOUR = r"[A-Z0-9 ]{0,40}(?:PRIVATE KEY(?: BLOCK)?|Static key V1)-----"
_HEADER_LINE = r"(?:\\{1,7}[nr]|\r?\n)[A-Za-z-]{2,20}: [^\r\n\\]*"
_ISSUED = (
    rf"{_EDGE}(?P<maybe_key>(?:{'|'.join(_PREFIXES.split())})[A-Za-z0-9_.+/=~-]{{16,}})",
    # Keys with a marker inside: Azure, Terraform, Mailchimp, Telegram, Discord
    rf"[A-Za-z0-9_~.-]{{3}}[0-9]Q~[A-Za-z0-9_~.-]{{31,34}}|[A-Za-z0-9]{{14}}\.atlasv1\.{_W}{{40,}}"
    r"|[A-Za-z0-9+/]{76}(?:AzCa|AzSe|ACDb|\+ASt|AIoT|AzFu)[A-Za-z0-9+/]{2,}={0,2}"
    rf"|[0-9a-f]{{32}}-us[0-9]{{1,2}}|[0-9]{{8,10}}:AA{_W}{{33}}"
    rf"|[MNO]{_W}{{23,25}}\.{_W}{{6}}\.{_W}{{27,}}",
    r"(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/(?:v[0-9]+/)?"
    r"webhooks|webhook\.office\.com/webhookb2)/([A-Za-z0-9@_/+-]{16,})",
    # Hashes of passwords, as in htpasswd and shadow
    r"\${1,2}(?:apr1|argon2(?:id|i|d)|[1567y]|2[abxy]?|gy|md5|pbkdf2(?:-sha[0-9]+)?|scrypt|sha1)\$"
    r"(?:v=[0-9]+\$)?(?:m=[0-9]+,t=[0-9]+,p=[0-9]+\$)?[A-Za-z0-9./+=$-]{20,}"
    r"|\{(?:S?SHA(?:256|512)?|S?MD5|CRYPT)\}[A-Za-z0-9./+=$]{13,}",
    # Web tokens
    rf"eyJ{_W}{{10,}}\.{_W}{{4,}}\.{_W}*(?:\.[A-Za-z0-9_.-]+)?",
    # Private keys, whatever stands before each line; cut off, then all that can be base64
    rf"-----BEGIN {_ARMOUR}(?:(?:[^-]|-[^-]|--[^-])+-{{0,2}}-----END {_ARMOUR}"
    rf"|(?:{_HEADER_LINE})*[A-Za-z0-9+/=\s\\>|]*)",
    r"PuTTY-User-Key-File[^\0]*?Private-Lines: ?[0-9]+([A-Za-z0-9+/=\s\\]+)",
)

# --- names that secrets are assigned to -----------------------------------------------------

_STRONG = (
    r"password|passwd|pass[_-]?phrase|passcode|passwort|kennwort|contraseña|senha|пароль|密码|密碼"
    r"|パスワード|비밀번호|secret|client[_-]key[_-]data|connection[_-]?string"
    r"|(?:db|user|smtp|root|admin|ftp|ldap|mail|key|store|ssh|my|sudo|login)[_-]?(?:pass|pwd)"
    r"|(?:api|access|secret|private|account|auth|encrypt(?:ion)?|signing|master|storage|admin|wep|app"
    r"|pre[_-]?shared|subscription|functions?|license|deploy|webhook|consumer)[_. -]?key"
    r"|(?:auth|access|api|bearer|refresh|session|oauth|sas|security|personal|private|deploy|bot"
    r"|identity|registry|npm|service)[_. -]?token"
)
_NAME = (
    rf"(?:(?i:{_STRONG}|{_EDGE}(?:pass|pwd|psk)|-(?:pass|pwd|psk))|[a-z0-9](?:Pass|Pwd|Psk)"
    rf"|(?P<weak>(?i:(?:{_EDGE}|-)(?:token|credentials?|auth))|[a-z0-9](?:Token|Credentials?)))"
    r"(?i:[_-]?(?:base|value|prod(?:uction)?|dev|staging|test|live|v?[0-9]{1,2}|b64|base64|string"
    r"|data|default|old|new|raw|hash))?"
)
"""A name, and what may follow it. Weak ones name other things, too, as the tokens of a parser."""
_VARIABLE = (
    r"(?:[A-Z0-9_]*(?:PASS|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PWD|PSK|SECRET|APIKEY)"
    r"|(?:[A-Z0-9]+_)*(?:TOKEN|CREDENTIALS?|AUTH|(?:API|ACCESS|SECRET|PRIVATE|ACCOUNT|AUTH"
    r"|ENCRYPTION|SIGNING|MASTER|STORAGE|LICENSE|ADMIN|DEPLOY|APP)_?KEY))(?:_[A-Z0-9_]+)?"
)
_QUOTE = r"\\{0,15}[\"'`]"
_OPEN = rf"(?P<maybe_quoted>{_QUOTE})"
_BARE = r"(?:[^\s\"'`\\,;(){}<>\[\]|&]|\\+[^\snrtu\"'`\\])+"
_SHELL = r"(?:[^\s\"'`\\]|\\+[^\snrtu\"'`\\])+"
_TYPED = (
    r"(?:\??[ \t]{0,2}:[ \t]{0,2}[A-Za-z&*][A-Za-z0-9_.\[\]<>|?&* ]{0,30}|[ \t]string|\[[0-9]*\])"
    r"[ \t]{0,8}:?="
)
_ASSIGN = r"[ \t]{0,8}(?::=|\?=|\+=|<-|[:=]{1,3}>?)"
_BLOCK = r"(?:[|>][+-]?(?:\r?\n|\\{1,7}n)[ \t]*)?"

_ASSIGNED = (
    # Anywhere
    rf"{_NAME}{_QUOTE}?\]?(?:(?:{_ASSIGN}|{_TYPED})\s{{0,16}}[bBrRuUfFL@$]{{0,2}}{_OPEN}"
    rf"|{_ASSIGN}[ \t]{{0,4}}(?P<maybe_word>{_BARE})(?P<call>[(\[])?)",
    # Environment files and shells
    rf"{_EDGE}{_VARIABLE}(?:=(?:{_OPEN}|(?P<maybe_variable>{_SHELL}))"
    r"|:[-=+](?P<maybe_value>[^\s\"'}]+))"
    rf"|\"[A-Za-z0-9_.-]*{_NAME}=(?P<maybe_plain>{_BARE})",
    # A line of YAML, INI or properties, or the first line of a block of YAML
    rf"(?m)(?:^|\\[nr])[^A-Za-z\"'\r\n\\]*[A-Za-z0-9_.-]*{_NAME}{_QUOTE}?[ \t]*[:=][ \t]*{_BLOCK}"
    rf"(?P<maybe_plain>{_BARE})[ \t]*(?:#[^\r\n]*)?(?:$|\r|\\{{1,7}}[nr]|\\{{0,7}}\")",
    # Connection strings and queries, encoded ones as well
    rf"(?:[;?&][ \t]?|=[^\s\"',]+[ \t]+)[A-Za-z0-9_.-]*{_NAME}=(?P<maybe_plain>[^;&\s\"'\\]+)",
    r"(?i)[?&](?:x-(?:amz|goog)-(?:signature|security-token)|sig|signature|code|key)"
    r"=([A-Za-z0-9%+/_.=-]{20,})",
    rf"{_NAME}(?:%22)?%(?:25)*3[AaDd](?:%(?:25)*2[027]|\+)*"
    r"(?P<maybe_plain>(?:[A-Za-z0-9_.~!*()@:$+/-]|%(?:[13-9A-Fa-f][0-9A-Fa-f]|2[134589A-Fa-f]))+)",
    # Options of commands
    rf"[\s\"'\[,]--?[A-Za-z0-9_.-]*{_NAME}(?:[ \t]+|=|[\"'],[ \t]*)"
    rf"(?:{_OPEN}|(?P<maybe_plain>{_SHELL}))",
    r"\bcurl\b[^\r\n]*?[ \t](?:-u|--user|-U|--proxy-user)[ \t=]*[\\\"']*[^\s:\"'\\]+:"
    r"(?P<maybe_value>[^\s\"'\\]+)",
    r"\b(?:mysql(?:dump|admin)?|mariadb|sshpass|docker[ \t]+login)\b[^\r\n|;]*?[ \t]-p[ \t]?"
    r"[\\\"']*(?P<maybe_word>[^\s\"'\\]+)",
    r"\bredis-cli\b[^\r\n|;]*?[ \t]-a[ \t]+[\\\"']*(?P<maybe_value>[^\s\"'\\]+)"
    r"|\becho[ \t]+[\\\"']*(?P<maybe_value>[^\s\"'\\|]+)[\\\"']*[ \t]*\|[ \t]*sudo[ \t]+-S",
    # SQL, .netrc, .pgpass
    rf"(?i)\b(?:identified[ \t]+(?:with[ \t]+\w+[ \t]+)?by|password)[ \t]+{_OPEN}",
    r"(?i)\b(?:login|user|machine)\s+\S+\s+password\s+(?P<maybe_value>[^\s\"'\\]+)"
    r"|[a-z0-9.*-]+:(?:5432|5433|6432|\*):[^:\s]+:[^:\s]+:(?P<maybe_variable>[^\s:\"\\]+)",
    # A name and its value as two fields, and in XML
    rf"(?i:name|key){_QUOTE}?{_ASSIGN}\s{{0,4}}{_QUOTE}?[\w.-]*{_NAME}[\w.-]*{_QUOTE}?"
    rf"(?:[\s,]|\\{{1,7}}[nrt]){{1,24}}{_QUOTE}?value{_QUOTE}?{_ASSIGN}\s{{0,4}}"
    rf"(?:{_OPEN}|(?P<maybe_plain>{_BARE}))",
    rf"<[\w:.-]*{_NAME}(?:\s[^<>]*)?>(?P<maybe_plain>[^<>]+)</",
    # Headers
    rf"(?i)(?:\b|\\[nrt])authorization{_QUOTE}?{_ASSIGN}[ \t]{{0,4}}{_QUOTE}?(?:(?:basic|token"
    r"|api-?key|key|negotiate|ntlm)[ \t]+(?P<maybe_value>[^\s\"'\\(){}<>]+)"
    r"|(?:[a-z][a-z0-9-]{1,20}[ \t]+)?(?P<maybe_token>[^\s\"'\\,;(){}<>]{8,}))",
    r"(?i)\b(?:bearer|basic)[ \t]{1,8}(?P<maybe_token>[A-Za-z0-9._~+/-]{8,}=*)"
    r"|\bdigest[ \t][^\r\n]*?response=\\{0,15}\"?([0-9a-f]{8,})",
    r"(?i)\b(?:set-)?cookie[\"']?:[ \t]{0,4}[\\\"']*[A-Za-z0-9_.-]+="
    r"(?P<maybe_token>[^\r\n\"'\\]{8,})",
    # In a sentence
    r"(?i)\b(?:password|passcode|passphrase|api key|secret(?: key)?|access token)"
    rf"(?: for [^\s.]{{1,60}})? (?:is|was)(?: now)?:?[ \t]+[\"'`]?(?P<maybe_word>{_BARE})",
    # URLs
    r"\b[a-z][a-z0-9+.-]*://(?:[^\s/:@\"'<>]*:(?P<maybe_value>[^\s/\"'<>]+)"
    r"|(?P<maybe_token>[A-Za-z0-9_.~%-]{16,}))@",
)

DEFAULT_SECRET_PATTERNS: tuple[str, ...] = (*_ISSUED, *_ASSIGNED)
"""The patterns that are masked unless the settings have others."""

# --- which values are secrets ---------------------------------------------------------------

_PLACEHOLDER = re.compile(
    r"\$\{?[A-Za-z_][\w.]*+\}?|\$\([^()]*+\)|\$?\{\{[^{}]*+\}\}|#?\{[^{}]*+\}|--?[a-z-]++|%\w++%"
    r"|%\(\w++\)s|%[sdv]|<[^<>]*+>?|@\w++@|[*.\u2022\u2026xX_-]*+"
    r"|\[(?:redacted|masked|hidden|filtered|secret)\]?"
    r"|(?:null|nil|none|true|false|undefined|empty|unset|string|str|text|bytes|int|integer|number"
    r"|bool|boolean|object|array|any|hidden|redacted|masked|required|optional|yes|no|todo|tbd"
    r"|void|unknown|self|this|default|u?int(?:8|16|32|64)?(?:_t|array)?|uint8clampedarray|arraybuffer"
    r"|buffer|bytearray|secretstr|invalid|missing|expired|prompt|input|env|file|vault)[.!?]?",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:~|\.{1,2})?+(?:/[a-z0-9_.-]++)++/?|https?://[\w./-]++|\$env:\w++")
_CODE = re.compile(r"[&*!]?[A-Za-z_$][\w$]*+(?:(?:\?|!)?(?:\.|->|::)[A-Za-z_$][\w$]*+)++[.:]?")
_IDENTIFIER = re.compile(r"[&*!@$]?[A-Za-z_$][A-Za-z_$-]*+[0-9]{0,2}[.:?!]*")
_RUN = re.compile(r"[A-Za-z0-9]{8,}")
_SECRET_WORD = re.compile(r"pass(?:w|\b|_)|secret|token|credential|api_?key|pwd", re.IGNORECASE)


def _is_secret(value: str, kind: str) -> bool:
    """Return whether a matched value is a secret: no variable, type, path, code or prose.

    A value that is left alone contains neither `=` nor `:`, except a plain URL, so that it hides
    no other assignment.
    """
    if len(value) < 3 or _PATH.fullmatch(value):
        return False
    if not {"=", ":"} & set(value) and _PLACEHOLDER.fullmatch(value):
        return False
    is_name = _IDENTIFIER.fullmatch(value) is not None
    is_code = bool(_CODE.fullmatch(value)) or (is_name and bool(_SECRET_WORD.search(value)))
    is_mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    match kind:
        case "maybe_key":
            runs = _RUN.findall(value)
            words = {form for run in runs for form in (run.lower(), run.upper(), run.title())}
            return any(len(run) >= 20 or not run.isalpha() or run not in words for run in runs)
        case "maybe_variable":
            return not (len(value) < 6 and value.rstrip("smhd").isdecimal())
        case "maybe_plain":
            return not is_code
        case "maybe_word":
            has_sign = any(sign in value[:-1] for sign in "!@#$%^*+~")
            return len(value) >= 5 and not is_code and (is_mixed or has_sign)
        case "maybe_token":
            return len(value) >= 8 and not is_code and is_mixed and not is_name
        case "weak_quoted":
            has_blank = any(map(str.isspace, value))
            return len(value) >= 8 and not has_blank and (len(value) >= 16 or is_mixed)
        case _:
            return True


# --- masking --------------------------------------------------------------------------------

_COLOUR = re.compile(r"(?:\x1b|\\{1,7}u001[bB])\[[0-9;]*[A-Za-z]")
_QUOTE_OR_LINE = re.compile(rb"(?<!\\)(\\*+)([\"'`\r\n])")
_CUT_OFF = re.compile(rb"[^\s\"'`\\]*+")
_MASKED = re.compile(re.escape(MASK.encode()))


@lru_cache(maxsize=8)
def compile_patterns(patterns: tuple[str, ...]) -> SecretPatterns:
    """Compile the secret patterns; the first group that matches is the secret.

    Raises ValueError for what RE2 cannot match in linear time, such as look-around and
    back-references, and for a pattern that matches the empty text.
    """
    options = re2.Options()
    options.log_errors = False
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re2.compile(pattern, options))
        except (re2.error, UnicodeEncodeError) as exc:
            raise ValueError(f"has a pattern that RE2 does not know, {pattern!r}: {exc}") from exc
        if compiled[-1].search("") is not None:
            raise ValueError(f"has a pattern that matches the empty text, {pattern!r}")
    return tuple(compiled)


def mask_secrets(text: str, patterns: SecretPatterns) -> str:
    """Replace every secret in the text by a mask, and characters that no provider accepts."""
    text = _COLOUR.sub("", sendable(text))
    data = text.encode()
    spans = union(span for pattern in patterns for span in _spans(pattern, data))
    if not spans:
        return text
    spans = union((*spans, *(Span(*match.span()) for match in _MASKED.finditer(data))))
    starts = (0, *(span.end for span in spans))
    ends = (*(span.start for span in spans), len(data))
    return MASK.join(data[start:end].decode() for start, end in zip(starts, ends, strict=True))


def _spans(pattern: Any, text: bytes) -> Iterator[Span]:
    """Yield the ranges of secrets that a pattern matches, in bytes."""
    names = {number: name for name, number in pattern.groupindex.items()}
    position = 0
    while match := pattern.search(text, position):
        used = [n for n in range(1, pattern.groups + 1) if match.start(n) >= 0]
        marks = {names.get(n, "") for n in used} & {"weak", "call"}
        group = next((n for n in used if names.get(n) not in marks), 0)
        kind, (start, end) = names.get(group, ""), match.span(group)
        is_quoted = kind == "maybe_quoted"
        if is_quoted:
            start, end = end, _end_of_quoted(text, end, match[group])
        if "weak" in marks:
            kind = "weak_quoted" if is_quoted else "maybe_token"
        is_checked = kind.startswith(("maybe_", "weak_"))
        is_secret = not is_checked or (
            "call" not in marks and _is_secret(text[start:end].decode(), kind)
        )
        if is_secret and start < end:
            yield Span(start, end)
        position = max(match.start() + 1, start if is_quoted and not is_secret else end)


def _end_of_quoted(text: bytes, start: int, opening: bytes) -> int:
    """Return where a quoted value ends: at its quote, or cut off, before what cannot be in it.

    With each level of JSON the slashes before a quote double: before the closing quote there are as
    many as before the opening one, besides pairs of those that stand for slashes of the value.
    """
    level = len(opening)
    for match in _QUOTE_OR_LINE.finditer(text, start):
        if match[2] in b"\r\n":
            break
        slashes = len(match[1]) % (2 * level)
        if match[2] == opening[-1:] and slashes < level:
            return match.end() - 1 - slashes
    cut_off = _CUT_OFF.match(text, start)
    return cut_off.end() if cut_off else start

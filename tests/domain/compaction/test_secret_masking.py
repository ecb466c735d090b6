"""Secrets are masked in any context, and ordinary text stays as it is.

No secret here is real, and none stands in this file as a whole: they are put together from parts,
so that nothing that looks for secrets stops at it.

[summary.secrets-masked]
"""

from __future__ import annotations

import json
import string
import time
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.compaction.summaries.secret_masking import (
    DEFAULT_SECRET_PATTERNS,
    MASK,
    compile_patterns,
    mask_secrets,
)

PATTERNS = compile_patterns(DEFAULT_SECRET_PATTERNS)
LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
URL_SAFE = LETTERS + "_-"


def masked(text: str) -> str:
    """Mask by the default patterns."""
    return mask_secrets(text, PATTERNS)


def of(*parts: str | tuple[str, int]) -> str:
    """Return a text made of fixed parts, and of random ones given as an alphabet and a length.

    Random ones begin and end with a letter or digit, so that the text around them stays apart.
    """
    drawn = Random("".join(map(str, parts)))
    return "".join(
        part
        if isinstance(part, str)
        else "a" + "".join(drawn.choices(part[0], k=part[1] - 2)) + "1"
        for part in parts
    )


ISSUED = {
    "htpasswd": of("$ap", "r1$", (LETTERS, 8), "$", (LETTERS + "./", 22)),
    "argon2": of("$arg", "on2id$v=19$m=65536,t=3,p=4$", (LETTERS, 22), "$", (LETTERS + "+/", 43)),
    "this service": of("ct", "x_", (HEX, 12), "_", (URL_SAFE, 43)),
    "openai": of("s", "k-", (LETTERS, 48)),
    "anthropic": of("s", "k-ant-api03-", (URL_SAFE, 93), "AA"),
    "aws key id": of("AK", "IA", (UPPER, 16)),
    "azure client secret": of((LETTERS, 3), "8", "Q", "~", (LETTERS + "_-.~", 34)),
    "azure storage key": of((LETTERS + "+/", 76), "+A", "St", (LETTERS, 6), "=", "="),
    "github": of("gh", "p_", (LETTERS, 36)),
    "gitlab": of("gl", "pat-", (URL_SAFE, 20)),
    "npm": of("np", "m_", (LETTERS, 36)),
    "stripe": of("s", "k_live_", (LETTERS, 24)),
    "sendgrid": of("S", "G.", (URL_SAFE, 22), ".", (URL_SAFE, 43)),
    "mailchimp": of((HEX, 32), "-u", "s12"),
    "slack": of("xo", "xb-", (string.digits, 12), "-", (string.digits, 12), "-", (LETTERS, 24)),
    "slack webhook": of("T", (UPPER, 8), "/B", (UPPER, 10), "/", (LETTERS, 24)),
    "discord": of("M", "T", (LETTERS, 22), ".", (URL_SAFE, 6), ".", (URL_SAFE, 38)),
    "telegram": of("1234567890:A", "A", (URL_SAFE, 33)),
    "terraform": of((LETTERS, 14), ".atlas", "v1.", (URL_SAFE, 67)),
    "json web token": of(
        "e", "yJ", (URL_SAFE, 33), ".e", "yJ", (URL_SAFE, 60), ".", (URL_SAFE, 43)
    ),
}
"""Keys with a form of their own."""

BEFORE = {"slack webhook": "https://hooks." + "slack.com/services/"}
"""Text before a key that belongs to its form and is no secret."""

PLACES: dict[str, Callable[[str], str]] = {
    "sentence": lambda secret: f"The value was {secret}, as it seems.",
    "environment file": lambda secret: f"HOST=db\nVALUE={secret}\nPORT=1",
    "json in json": lambda secret: json.dumps({"body": json.dumps({"value": secret})}),
    "escaped lines": lambda secret: json.dumps({"file": f"one\n{secret}\nthree\t{secret}"}),
    "shell": lambda secret: f"curl -H 'X-Value: {secret}' https://example.com | jq .",
    "user and hash": lambda secret: f"me:{secret}\nyou:{secret}:19000:0:99999:7:::\n",
    "diff": lambda secret: f"--- a\n+++ b\n-value = '{secret}'\n+value = load()\n",
    "terminal": lambda secret: f"\x1b[32m{secret}\x1b[0m",
    "markdown": lambda secret: f"Use `{secret}` or **{secret}**.",
    "query": lambda secret: f"https://example.com/?a=1&v={secret}&b=2",
}


@pytest.mark.parametrize("kind", ISSUED)
def test_a_key_with_a_form_is_masked_wherever_it_stands(kind: str) -> None:
    """A key with a known prefix is masked without a name; the text around it stays."""
    for place in PLACES.values():
        text = place(BEFORE.get(kind, "") + ISSUED[kind])
        plain = text.removeprefix("\x1b[32m").removesuffix("\x1b[0m")
        assert masked(text) == plain.replace(ISSUED[kind], MASK)


NAMES = (
    *("password", "passwd", "DB_PASS", "MYSQL_PWD", "PGPASSWORD", "db_password", "userPassword"),
    *("smtp-pass", "passphrase", "SECRET", "client_secret", "clientSecret", "SECRET_KEY_BASE"),
    *("API_KEY", "apiKey", "api-key", "x-api-key", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"),
    *("secretAccessKey", "private_key", "AccountKey", "SharedAccessKey", "encryption_key"),
    *("access_token", "accessToken", "auth-token", "REFRESH_TOKEN", "GITHUB_TOKEN", "token"),
    *("psk", "WIFI_PSK", "preshared_key", "PresharedKey", "wpa-psk"),
    *("_authToken", "spring.datasource.password", "비밀번호", "密码"),
)
"""Names whose values are secrets if they mix letters and digits and are long enough."""

WRITTEN: dict[str, Callable[[str, str], str]] = {
    "equals": lambda name, secret: f"{name}={secret}",
    "environment file": lambda name, secret: f"HOST=db\nexport {name}={secret}\nPORT=1",
    "yaml": lambda name, secret: f"app:\n  {name}: {secret}\n  other: 1\n",
    "yaml item": lambda name, secret: f"app:\n- {name}: {secret} # new\n  other: 1\n",
    "json": lambda name, secret: json.dumps({"a": 1, name: secret, "b": 2}, ensure_ascii=False),
    "indented json": lambda name, secret: json.dumps({name: secret}, indent=2, ensure_ascii=False),
    "json in json": lambda name, secret: json.dumps(
        {"body": json.dumps({name: secret, "b": 2}, ensure_ascii=False)}, ensure_ascii=False
    ),
    "file in json": lambda name, secret: json.dumps(
        {"content": f"HOST=db\n{name}={secret}\nPORT=1"}, ensure_ascii=False
    ),
    "yaml block": lambda name, secret: f"a:\n  {name}: |\n    {secret}\n  b: 1\n",
    "numbered": lambda name, secret: f"     1\tx: 1\n     2\t{name}: {secret}\n",
    "diff": lambda name, secret: f"-{name}={secret}\n+{name}=${{{name}}}\n",
    "python": lambda name, secret: f'settings["{name}"] = "{secret}"',
    "go": lambda name, secret: f'{name} := "{secret}"',
    "option": lambda name, secret: f"run --{name} {secret} --fast",
    "arguments": lambda name, secret: f'["run", "--{name}", "{secret}"]',
    "header": lambda name, secret: f"{name}: {secret}\r\nAccept: */*\r\n",
    "query": lambda name, secret: f"https://example.com/?a=1&{name}={secret}&b=2",
    "connection": lambda name, secret: f"Server=db;User=app;{name}={secret};Timeout=3",
    "xml": lambda name, secret: f"<{name}>{secret}</{name}>",
    "field and value": lambda name, secret: json.dumps(
        {"name": name, "value": secret}, ensure_ascii=False
    ),
    "yaml field and value": lambda name, secret: f"- name: {name}\n  value: {secret}\n",
    "coloured name": lambda name, secret: f"HOST=db\n\x1b[1;32m{name}\x1b[0m={secret}",
    "coloured name and value": lambda name, secret: (
        f"\x1b[34m{name}\x1b[m\x1b[K: \x1b[33m{secret}\x1b[0m\n"
    ),
    "cut off": lambda name, secret: f'{{"{name}": "{secret}',
}

SIGNS = LETTERS + "!@#%^*_-+"
VALUES = st.text(SIGNS, min_size=8, max_size=16).map(lambda text: f"a1{text}1a")


@pytest.mark.parametrize("way", WRITTEN)
@settings(max_examples=5)
@given(secret=VALUES)
def test_a_value_is_masked_by_its_name(way: str, secret: str) -> None:
    """Whatever form a secret has, and however it is assigned."""
    for name in NAMES:
        text = WRITTEN[way](name, secret)
        assert secret in text
        kept = masked(text)
        assert secret not in kept, text
        assert MASK in kept, text
        assert len(kept) >= len(text) - text.count(secret) * len(secret) - 24, text


PHRASES = st.text(LETTERS + "!#$,;:() ", min_size=8).map(lambda text: f"q{text} secret words 7z")


@settings(max_examples=25)
@given(secret=PHRASES)
def test_a_quoted_value_is_masked_up_to_its_quote(secret: str) -> None:
    """Blanks and signs do not end a quoted password."""
    for name in ("password", "DB_PASS", "MYSQL_PWD", "client_secret", "passphrase"):
        quoted = json.dumps({"user": "me", name: secret, "port": 1})
        for text in (
            quoted,
            json.dumps({"body": quoted}),
            json.dumps({"a": json.dumps({"body": quoted})}),
            json.dumps({"user": "me", name: secret}, indent=4),
            f"{name}: '{secret}'\n",
            f'{name} = "{secret}"\n',
            f'export {name}="{secret}"; run',
            f"export GH_TOKEN='{secret}' user=me",
            f"\x1b[32m{name}\x1b[0m=\x1b[33m'{secret}'\x1b[0m; run",
            f"run --{name} '{secret}' --fast",
        ):
            kept = masked(text)
            assert secret not in kept and secret[:-7] not in kept, text
            assert sum(sign in kept for sign in ('"port": 1', "b: 1", "run", "user", name)) > 0


@settings(max_examples=25)
@given(secret=st.text(LETTERS + "\"'\\/ ", min_size=12).map(lambda text: f"q9{text}7z"))
def test_an_escaped_quote_does_not_end_a_value(secret: str) -> None:
    """JSON stays JSON, and so does the JSON in it, whatever the secret is made of."""
    inner = json.dumps({"password": secret, "port": 1})
    assert json.loads(masked(inner)) == {"password": MASK, "port": 1}
    outer = json.loads(masked(json.dumps({"body": inner})))
    assert outer["body"].count(MASK) == 1
    assert outer["body"].endswith(', "port": 1}')


@pytest.mark.parametrize("levels", range(4))
@pytest.mark.parametrize("end", ["", "\nNext line"])
@pytest.mark.parametrize("secret", ["hunter2!", "dom\\hunter2"])
def test_a_password_in_a_sentence_ends_at_its_quote_or_line(
    secret: str, end: str, levels: int
) -> None:
    """At any depth of JSON; what follows stays."""
    text = f"The password is {secret}{end}"
    for _ in range(levels):
        text = json.dumps({"a": text})
    kept = masked(text)
    assert kept.count(MASK) == 1 and "hunter2" not in kept
    assert ("Next line" in kept) == bool(end)
    assert levels == 0 or json.loads(kept)


DASHES = "-" * 5
BODY = "\n".join(of((LETTERS + "+/", 64)) for _ in range(4))


@pytest.mark.parametrize("headers", ["", "Version: GnuPG v2\nComment: (mine)\n\n"])
@pytest.mark.parametrize("kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
def test_a_private_key_is_masked(kind: str, headers: str) -> None:
    """With its headers, whole or cut off, in text, JSON, a diff and a numbered list."""
    begin, end = (f"{DASHES}{word} {kind}{DASHES}" for word in ("BEGIN", "END"))
    key = f"{begin}\n{headers}{BODY}\n{end}"
    diff = "".join(f"-{line}\n" for line in key.splitlines())
    numbered = "".join(f"{n:6}\t{line}\n" for n, line in enumerate(key.splitlines(), 1))
    for text in (
        key,
        key.removesuffix(f"\n{end}"),
        json.dumps({"type": "service_account", "private_key": key + "\n", "id": 1}),
        json.dumps({"body": json.dumps({"private_key": key, "id": 1})}),
        "key: |\n" + "".join(f"  {line}\n" for line in key.splitlines()),
        diff,
        numbered,
        key.replace("\n", "\r\n"),
    ):
        kept = masked(f"before {text} after")
        assert not [line for line in BODY.split("\n") if line in kept], text
        assert kept.startswith("before ")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy"),
        ("-H 'authorization: Token 9944b09199c62bcf9418'", "9944b09199c62bcf9418"),
        ("Authorization: Bearer abcdefghijklmnop1234", "abcdefghijklmnop1234"),
        ('Authorization: Digest username="me", uri="/d", response="6629fae49393"', "6629fae49393"),
        ('{\\"Authorization\\": \\"Bearer 4f9a61b27c0d4e55\\"}', "4f9a61b27c0d4e55"),
        ("Cookie: theme=dark; session=f3a9c2d17b8e", "f3a9c2d17b8e"),
        ("postgres://me:topsecret@db/x", "topsecret"),
        ("amqp://me:p@ssw0rd@mq", "p@ssw0rd"),
        ("https://oauth2:glx9aB7cD1eF@git.example.com/a.git", "glx9aB7cD1eF"),
        ('network={\n  ssid="a"\n  psk="sword fish"\n}', "sword fish"),
        ("psk=swordfish", "swordfish"),
        ("https://a.example/?next=%2F%3Fpassword%3Dswordfish%26b%3D1", "swordfish"),
        ("[Interface]\nPresharedKey = Zm9vYmFyYmF6cXV4MTIzNA==", "Zm9vYmFyYmF6cXV4MTIzNA"),
        ("export TOKEN='correct horse battery'", "correct horse battery"),
        ("machine example.com login me password swordfish", "swordfish"),
        ("machine example.com\n  login me\n  password swordfish\n", "swordfish"),
        ("db.internal:5432:app:me:swordfish", "swordfish"),
        ("CREATE USER me IDENTIFIED BY 'sword fish'", "sword fish"),
        ("host=db user=me password=swordfish dbname=app", "swordfish"),
        (
            "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=Zm9vYmFyYmF6cXV4;",
            "Zm9vYmFyYmF6cXV4",
        ),
        ("Endpoint=sb://x;SharedAccessKey=Zm9vYmFyYmF6cXV4=", "Zm9vYmFyYmF6cXV4"),
        (
            "https://x.blob.core.windows.net/a?sv=2024&sig=Zm9v%2BYmFyYmF6cXV4dXV1&se=1",
            "Zm9v%2BYmFyY",
        ),
        ("?X-Amz-Signature=0f3a9c2d17b8e44110d2f3a9c2d17b8e&x=1", "0f3a9c2d17b8e44110d2f"),
        ("curl -u me:swordfish https://example.com", "swordfish"),
        ("mysql -h db -u me -ps3cretpw app", "s3cretpw"),
        ("sshpass -p 'sw0rdfish' ssh me@host", "sw0rdfish"),
        ("redis-cli -h cache -a swordfish ping", "swordfish"),
        ("echo swordfish | sudo -S apt-get update", "swordfish"),
        ('{"auths": {"ghcr.io": {"auth": "dXNlcjpodW50ZXIy"}}}', "dXNlcjpodW50ZXIy"),
        ("client-key-data: LS0tLS1CRUdJTg==", "LS0tLS1CRUdJTg=="),
        ("environment:\n  POSTGRES_PASSWORD: swordfish\n", "swordfish"),
        ('<add key="ApiSecret" value="f3a9c2d1" />', "f3a9c2d1"),
        ("The password is hunter2!", "hunter2"),
        ("if token == 'f3a9c2d17b8e':", "f3a9c2d17b8e"),
    ],
)
def test_secrets_in_common_places_are_masked(text: str, hidden: str) -> None:
    """Headers, URLs, connection strings, commands, settings and sentences are covered."""
    for shown in (text, json.dumps({"text": text}), f"one\n  {text}\nthree"):
        if hidden.replace("\n", "\\n") in shown:
            kept = masked(shown)
            assert hidden not in kept
            assert MASK in kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Authorization: Bearer abcdefghijklmnop1234", f"Authorization: Bearer {MASK}"),
        ('{"password": "hunter2hunter2"}', f'{{"password": "{MASK}"}}'),
        (
            '{\\"password\\": \\"hunter2\\", \\"a\\": 1}',
            f'{{\\"password\\": \\"{MASK}\\", \\"a\\": 1}}',
        ),
        ("API_KEY=abcdef123456 x", f"API_KEY={MASK} x"),
        ("postgres://me:topsecret@db/x", f"postgres://me:{MASK}@db/x"),
        (
            "日本語 \U0001f511 password=éclairs-1-éclairs; ok",
            f"日本語 \U0001f511 password={MASK}; ok",
        ),
    ],
)
def test_only_the_secret_part_is_masked(text: str, kept: str) -> None:
    """The name of the secret stays readable."""
    assert masked(text) == kept


ORDINARY = """\
the password is needed
Forgot your password? Reset it here.
The password must have at least 12 characters, a digit and a sign.
def login(user: str, password: str) -> Token:
password = getpass.getpass()
password=settings.db_password,
password: password,
    password = self.password
self.token = token
token = tokens[0]
token = next_token
token = self._next_token(stream)
tokens = tokenizer.encode(text)
tokens_used: 33, max_tokens=4096, token_count = 128000
"tokens": 12, "token": 50256
{"token": "hello", "logprob": -0.1}
const accessToken = useAuthStore.getState().accessToken;
authState.accessToken = accessToken;
privateKey: Uint8Array;
password: process.env.DB_PASSWORD
password: ${DB_PASSWORD}
PASSWORD=$PASSWORD docker compose up
DB_PASSWORD=<your-password>
API_KEY=
SECRET_KEY = os.environ["SECRET_KEY"]
api_key = os.getenv("API_KEY")
POSTGRES_PASSWORD_FILE=/run/secrets/db
TOKEN_TTL=3600
PWD=/home/me/project
OLDPWD=/tmp
Authorization: Bearer $TOKEN
headers = {"Authorization": f"Bearer {token}"}
curl -H "Authorization: Bearer ${TOKEN}" https://example.com
curl -u "$USER:$PASS" https://example.com
secretary: the secretary writes
secrets: inherit
{"password": {"type": "string", "minLength": 8}}
{"password": null, "secret": "", "token": true}
password: "********"
password: string
"password": "string"
--password <password>  the password to use
--token TOKEN
git commit -m "Rotate the token"
passes: 12 passed, 1 failed
bypass = True
compass: north
The key is in the door; the secret of good code is reading it.
a basic understanding of infrastructure
the bearer of this letter
primary_key=True, foreign_key="users.id"
key: value
public_key: ssh-ed25519
task-scheduler-with-a-very-long-name-that-goes-on
risk-assessment-of-the-deployment-pipeline
commit 3f786850e387550fdab836ed7e6dc881de23001b
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
id: 0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b
https://example.com:8080/path?page=2&page_token=abc
https://user@example.com/repo.git
git@github.com:owner/name.git
/usr/local/lib/python3.11/site-packages/tokenizers/__init__.py
Traceback: KeyError: 'password'
expected token ';' but found token '}'
error: invalid token
from secrets import token_hex
SELECT password_hash FROM users WHERE id = $1
raise ValueError("password: too short")
password_field = page.locator("#password")
if password != confirm_password:
auth = useAuthStore.getState()
data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ
-----BEGIN CERTIFICATE-----
"""


@pytest.mark.parametrize("text", ORDINARY.splitlines())
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    """Code, prose and identifiers are not secrets, in a file, a list or JSON either."""
    for shown in (text, f"one\n    {text}\nthree", f"    12→{text}", json.dumps({"text": text})):
        assert masked(shown) == shown


PIECES = st.sampled_from(
    (
        *("password", "token", "DB_PASS", "secret", "Authorization", "Bearer ", "Basic "),
        *("=", ": ", ":", '"', "'", '\\"', "\\n", "\n", "  ", "|", ">-", "${X}", "<x>", "://", "@"),
        *("hunter2", "swordfish", "abc def", "a.b.c", "sk-" + "a" * 24, "x" * 20, MASK, "[secret"),
        *(f"{DASHES}BEGIN PRIVATE KEY{DASHES}", f"{DASHES}END PRIVATE KEY{DASHES}", "- ", "#", ";"),
    )
)


@settings(max_examples=75)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_masking_again_changes_nothing(text: str) -> None:
    """A summary is masked again by each later summary."""
    once = masked(text)
    assert masked(once) == once


def test_secret_patterns_can_be_set() -> None:
    """The pattern set is configurable."""
    assert mask_secrets("id-42 sk-x", compile_patterns((r"id-\d+",))) == f"{MASK} sk-x"
    assert mask_secrets("id-42 é", compile_patterns((r"(?P<token>id)-\d+",))) == f"{MASK}-42 é"
    assert mask_secrets("id-42 é sk-x", compile_patterns(())) == "id-42 é sk-x"


@pytest.mark.parametrize("pattern", ["(", "(?<=a)b", r"(a)\1", "a{5000}", "\ud800", "a*", ""])
def test_patterns_that_cannot_be_used_are_refused(pattern: str) -> None:
    """Patterns that RE2 does not support, or that match the empty text, are refused."""
    with pytest.raises(ValueError, match=r"RE2 does not know|the empty text"):
        compile_patterns((pattern,))


@pytest.mark.parametrize(
    "hostile",
    [
        *("a" * 400_000 + "!", "eyJ" * 30_000, "password:" * 30_000, 'token="' * 30_000),
        *("token=`" * 30_000, "token=&quot;" * 25_000, 'password=\\"' * 30_000, "\\" * 400_000),
        *("password: |\n" * 25_000, "password: |\\n" * 25_000, "password: |\n\n " * 25_000),
        *(
            "curl -u a:$B " * 25_000,
            "a://b:" * 50_000,
            f"{DASHES}BEGIN PRIVATE KEY{DASHES}" * 30_000,
        ),
        *("PuTTY-User-Key-File" * 50_000, "password=${X} " * 25_000, "Cookie: a=" * 30_000),
        *(" " * 400_000, "\n" * 400_000, "=" * 400_000, "password" + " " * 400_000),
        *("name=password " * 25_000, "<password>" * 30_000, "[secret masked]" * 60_000),
    ],
    ids=lambda text: repr(text[:16]),
)
def test_no_text_can_hang_a_worker(hostile: str) -> None:
    """Masking takes linear time for any text."""
    patterns = compile_patterns((r"(a+)+$", r"(?:a|aa|\w)+=secret", *DEFAULT_SECRET_PATTERNS))
    began = time.process_time()
    mask_secrets(hostile, patterns)
    assert time.process_time() - began < 3


@given(st.text())
def test_masking_can_never_raise(text: str) -> None:
    """Any text is masked, lone surrogates and NUL included. [neutral.no-empty-content]"""
    kept = masked(text)
    kept.encode("utf-8")
    assert "\x00" not in kept

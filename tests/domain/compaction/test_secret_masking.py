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
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.compaction.summaries.secret_masking import MASK, compile_patterns, mask_secrets
from app.compaction.summaries.secret_patterns import DEFAULT_SECRET_PATTERNS
from app.conversations.view import overlap, union

PATTERNS = compile_patterns(DEFAULT_SECRET_PATTERNS)
LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
URL_SAFE = LETTERS + "_-"


def masked(text: str) -> str:
    """Mask by the default patterns."""
    return mask_secrets(text, PATTERNS)


def of(*parts: str | tuple[str, int]) -> st.SearchStrategy[str]:
    """Return texts made of fixed parts, and of random ones given as an alphabet and a length."""
    drawn = [
        st.just(part)
        if isinstance(part, str)
        # Begins and ends with a letter or digit, so that the text around it stays apart
        else st.tuples(
            st.sampled_from(_word(part[0])),
            st.text(part[0], min_size=part[1] - 2, max_size=part[1] - 2),
            st.sampled_from(_word(part[0])),
        ).map("".join)
        for part in parts
    ]
    return st.tuples(*drawn).map("".join)


def _word(alphabet: str) -> str:
    return "".join(sign for sign in alphabet if sign.isalnum())


ISSUED: dict[str, st.SearchStrategy[str]] = {
    "htpasswd": of("$ap", "r1$", (LETTERS, 8), "$", (LETTERS + "./", 22)),
    "bcrypt": of("$2", "y$", "10$", (LETTERS + "./", 53)),
    "bcrypt in compose": of("$$2", "y$$", "10$$", (LETTERS + "./", 53)),
    "shadow": of("$", "6$", (LETTERS, 16), "$", (LETTERS + "./", 86)),
    "argon2": of("$arg", "on2id$v=19$m=65536,t=3,p=4$", (LETTERS, 22), "$", (LETTERS + "+/", 43)),
    "htpasswd sha1": of("{S", "HA}", (LETTERS + "+/", 27), "="),
    "this service": of(
        "ct", "x_", (string.ascii_lowercase + string.digits, 12), "_", (URL_SAFE, 43)
    ),
    "openai": of("s", "k-", (LETTERS, 48)),
    "openai project": of("s", "k-proj-", (URL_SAFE, 80)),
    "anthropic": of("s", "k-ant-api03-", (URL_SAFE, 93), "AA"),
    "openrouter": of("s", "k-or-v1-", (HEX, 64)),
    "hugging face": of("h", "f_", (LETTERS, 34)),
    "groq": of("gs", "k_", (LETTERS, 52)),
    "xai": of("xa", "i-", (LETTERS, 80)),
    "replicate": of("r", "8_", (LETTERS, 37)),
    "perplexity": of("pp", "lx-", (LETTERS, 48)),
    "aws key id": of("AK", "IA", (UPPER, 16)),
    "aws temporary key id": of("AS", "IA", (UPPER, 16)),
    "google api key": of("AI", "za", (URL_SAFE, 35)),
    "google access token": of("ya", "29.", (URL_SAFE, 60)),
    "google client secret": of("GOC", "SPX-", (URL_SAFE, 28)),
    "azure client secret": of((LETTERS, 3), "8", "Q", "~", (LETTERS + "_-.~", 34)),
    "azure storage key": of((LETTERS + "+/", 76), "+A", "St", (LETTERS, 6), "=", "="),
    "github": of("gh", "p_", (LETTERS, 36)),
    "github app": of("gh", "s_", (LETTERS, 36)),
    "github fine-grained": of("github", "_pat_", (LETTERS, 22), "_", (LETTERS, 59)),
    "gitlab": of("gl", "pat-", (URL_SAFE, 20)),
    "gitlab runner": of("gl", "rt-", (URL_SAFE, 20)),
    "atlassian": of("ATA", "TT3", (URL_SAFE, 100), "=", (UPPER, 8)),
    "npm": of("np", "m_", (LETTERS, 36)),
    "pypi": of("py", "pi-AgEIcHlwaS5vcmc", (URL_SAFE, 80)),
    "rubygems": of("ruby", "gems_", (HEX, 48)),
    "docker": of("dck", "r_pat_", (URL_SAFE, 27)),
    "stripe": of("s", "k_live_", (LETTERS, 24)),
    "stripe restricted": of("r", "k_test_", (LETTERS, 24)),
    "stripe webhook": of("wh", "sec_", (LETTERS, 32)),
    "sendgrid": of("S", "G.", (URL_SAFE, 22), ".", (URL_SAFE, 43)),
    "mailgun": of("ke", "y-", (HEX, 32)),
    "mailchimp": of((HEX, 32), "-u", "s12"),
    "twilio": of("S", "K", (HEX, 32)),
    "shopify": of("shp", "at_", (HEX, 32)),
    "slack": of("xo", "xb-", (string.digits, 12), "-", (string.digits, 12), "-", (LETTERS, 24)),
    "slack app": of("xa", "pp-1-A", (UPPER, 10), "-", (string.digits, 13), "-", (HEX, 64)),
    "slack webhook": of("T", (UPPER, 8), "/B", (UPPER, 10), "/", (LETTERS, 24)),
    "discord": of("M", "T", (LETTERS, 22), ".", (URL_SAFE, 6), ".", (URL_SAFE, 38)),
    "telegram": of((string.digits[1:], 10), ":A", "A", (URL_SAFE, 33)),
    "digitalocean": of("do", "p_v1_", (HEX, 64)),
    "heroku": of("HR", "KU-", (URL_SAFE, 60)),
    "vault": of("hv", "s.", (URL_SAFE, 95)),
    "terraform": of((LETTERS, 14), ".atlas", "v1.", (URL_SAFE, 67)),
    "databricks": of("da", "pi", (HEX, 32)),
    "linear": of("lin", "_api_", (LETTERS, 40)),
    "notion": of("nt", "n_", (string.digits, 11), (LETTERS, 35)),
    "figma": of("fi", "gd_", (URL_SAFE, 40)),
    "grafana": of("gl", "sa_", (LETTERS, 32), "_", (HEX, 8)),
    "postman": of("PM", "AK-", (HEX, 24), "-", (HEX, 34)),
    "new relic": of("NR", "AK-", (UPPER, 27)),
    "tailscale": of("ts", "key-auth-", (LETTERS, 12), "-", (LETTERS, 30)),
    "age": of("AGE-SECRET", "-KEY-1", (UPPER, 58)),
    "json web token": of(
        "e", "yJ", (URL_SAFE, 33), ".e", "yJ", (URL_SAFE, 60), ".", (URL_SAFE, 43)
    ),
}
"""Keys with a form of their own, each with a strategy that draws one."""

BEFORE = {"slack webhook": "https://hooks." + "slack.com/services/"}
"""Text before a key that belongs to its form and is no secret."""

PLACES: dict[str, Callable[[str], str]] = {
    "bare": lambda secret: secret,
    "sentence": lambda secret: f"The value was {secret}, as it seems.",
    "environment file": lambda secret: f"HOST=db\nVALUE={secret}\nPORT=1",
    "json": lambda secret: json.dumps({"a": 1, "value": secret, "b": [True]}),
    "json in json": lambda secret: json.dumps({"body": json.dumps({"value": secret})}),
    "json in json in json": lambda secret: json.dumps(
        {"a": json.dumps({"body": json.dumps({"value": secret})})}
    ),
    "escaped lines": lambda secret: json.dumps({"file": f"one\n{secret}\nthree\t{secret}"}),
    "yaml": lambda secret: f"app:\n  value: {secret}\n  other: 1\n",
    "shell": lambda secret: f"curl -H 'X-Value: {secret}' https://example.com | jq .",
    "terminal": lambda secret: f"\x1b[32m{secret}\x1b[0m",
    "user and hash": lambda secret: f"me:{secret}\nyou:{secret}:19000:0:99999:7:::\n",
    "header": lambda secret: f"GET / HTTP/1.1\r\nX-Value: {secret}\r\nAccept: */*\r\n",
    "code": lambda secret: f"client = Client('{secret}', retries=3)",
    "diff": lambda secret: f"--- a\n+++ b\n-value = '{secret}'\n+value = load()\n",
    "markdown": lambda secret: f"Use `{secret}` or **{secret}**.",
    "query": lambda secret: f"https://example.com/?a=1&v={secret}&b=2",
}


@pytest.mark.parametrize("kind", ISSUED)
@settings(max_examples=10)
@given(data=st.data())
def test_a_key_with_a_form_is_masked_wherever_it_stands(kind: str, data: st.DataObject) -> None:
    """A key with a known prefix is masked without a name; the text around it stays."""
    secret = data.draw(ISSUED[kind])
    for place in PLACES.values():
        text = place(BEFORE.get(kind, "") + secret)
        assert masked(text) == text.replace(secret, MASK)


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
    "yaml block": lambda name, secret: f"a:\n  {name}: |\n    {secret}\n\n    {secret}\n  b: 1\n",
    "json": lambda name, secret: json.dumps({"a": 1, name: secret, "b": 2}, ensure_ascii=False),
    "json in json": lambda name, secret: json.dumps(
        {"body": json.dumps({name: secret, "b": 2}, ensure_ascii=False)}, ensure_ascii=False
    ),
    "file in json": lambda name, secret: json.dumps(
        {"content": f"HOST=db\n{name}={secret}\nPORT=1"}, ensure_ascii=False
    ),
    "yaml block in json": lambda name, secret: json.dumps(
        {"content": f"a:\n  {name}: |\n    {secret}\n  b: 1\n"}, ensure_ascii=False
    ),
    "diff": lambda name, secret: f"-{name}={secret}\n+{name}=${{{name}}}\n",
    "python": lambda name, secret: f'settings["{name}"] = "{secret}"',
    "keyword": lambda name, secret: f'connect(host="db", {name}="{secret}")',
    "option": lambda name, secret: f"run --{name} {secret} --fast",
    "arguments": lambda name, secret: f'["run", "--{name}", "{secret}"]',
    "header": lambda name, secret: f"{name}: {secret}\r\nAccept: */*\r\n",
    "query": lambda name, secret: f"https://example.com/?a=1&{name}={secret}&b=2",
    "connection": lambda name, secret: f"Server=db;User=app;{name}={secret};Timeout=3",
    "xml": lambda name, secret: f"<{name}>{secret}</{name}>",
    "html": lambda name, secret: f"{{&quot;{name}&quot;:&quot;{secret}&quot;}}",
    "field and value": lambda name, secret: json.dumps(
        {"name": name, "value": secret}, ensure_ascii=False
    ),
    "yaml field and value": lambda name, secret: f"- name: {name}\n  value: {secret}\n",
    "default of a variable": lambda name, secret: f"{name}: ${{X:-1}}\n{name}={secret}",
    "coloured name": lambda name, secret: f"HOST=db\n\x1b[1;32m{name}\x1b[0m={secret}",
    "coloured json": lambda name, secret: (
        f'{{\x1b[34;1m"{name}"\x1b[0m\x1b[39m:\x1b[0m \x1b[32m"{secret}"\x1b[0m}}'
    ),
    "coloured in json": lambda name, secret: json.dumps(
        {"out": f"\x1b[32m{name}\x1b[0m=\x1b[33m{secret}\x1b[0m\n"}, ensure_ascii=False
    ),
    "cut off": lambda name, secret: f'{{"{name}": "{secret}',
}

VALUES = of((LETTERS + "!@#%^*_-+", 10), (string.digits, 3), (string.ascii_lowercase, 4))


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
        assert len(kept.replace(MASK, "")) >= len(text) - text.count(secret) * len(secret) - 12, (
            text
        )


@settings(max_examples=10)
@given(secret=VALUES)
def test_a_value_is_masked_in_an_encoded_query(secret: str) -> None:
    """Encoded once or more often, as in the address of a redirect; what follows stays."""
    for name in filter(str.isascii, NAMES):
        value, query = secret, f"/b?a=1&{name}={secret}&c=1"
        for _ in range(3):
            value, query = quote(value, safe=""), quote(query, safe="")
            text = f"https://example.com/?next={query}&d=1"
            kept = masked(text)
            assert value not in kept and kept.endswith("&d=1"), text
        assert "26c%3D1" in masked(f"https://example.com/?next={unquote(unquote(query))}")


PHRASES = of((LETTERS + "!#$,;:() ", 12), " ", (string.ascii_lowercase, 6), " ", (LETTERS, 6))


@settings(max_examples=25)
@example("0123456789:a aaaaaa a0000a")
@given(secret=PHRASES)
def test_a_quoted_value_is_masked_up_to_its_quote(secret: str) -> None:
    """Blanks and signs do not end a quoted password, or a block of YAML."""
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
            f"set -x {name.lower()}_token '{secret}'; run",
            f"$env:APP_TOKEN = '{secret}'; run",
            f"\x1b[32m{name}\x1b[0m=\x1b[33m'{secret}'\x1b[0m; run",
            f"run --{name} '{secret}' --fast",
            f"a:\n  {name}: |-\n    {secret}\n    {secret}\n  b: 1\n",
            json.dumps({"file": f"a:\n  {name}: >\n    {secret}\n  b: 1\n"}),
        ):
            kept = masked(text)
            assert secret not in kept and secret[:-7] not in kept, text
            assert sum(sign in kept for sign in ('"port": 1', "b: 1", "run", "user", name)) > 0


@settings(max_examples=25)
@example("q9 the password is hunter27z")
@given(secret=st.text(LETTERS + "\"'\\/ ", min_size=12).map(lambda text: f"q9{text}7z"))
def test_an_escaped_quote_does_not_end_a_value(secret: str) -> None:
    """JSON stays JSON, and so does the JSON in it, whatever the secret is made of."""
    inner = json.dumps({"password": secret, "port": 1})
    assert json.loads(masked(inner)) == {"password": MASK, "port": 1} or secret.strip(
        "\"'\\"
    ) not in str(json.loads(masked(inner))["password"])
    outer = json.loads(masked(json.dumps({"body": inner})))
    assert outer["body"].count(MASK) == 1
    assert outer["body"].endswith(', "port": 1}')


@pytest.mark.parametrize("secret", ["hunter2!", "dom\\hunter2"])
def test_a_password_in_a_sentence_ends_before_an_escaped_quote(secret: str) -> None:
    """A password at the end of a sentence in JSON takes no backslash of the quote after it."""
    text = f"The password is {secret}"
    for _ in range(4):
        kept = masked(text)
        assert kept.count(MASK) == 1 and "hunter2" not in kept
        text = json.dumps({"a": text})
        json.loads(masked(text))


DIGEST = 'username="me", realm="a b", uri="/d?a=1", qop=auth, response="6629fae4", opaque="5cc"'


@pytest.mark.parametrize("end", ["", "\n", "\r\nHost: b"])
def test_digest_credentials_end_where_the_header_ends(end: str) -> None:
    """A header of digest authentication is masked whole, and JSON around it stays JSON."""
    text = f"GET /\r\nAuthorization: Digest {DIGEST}{end}"
    assert masked(text) == f"GET /\r\nAuthorization: Digest {MASK}{end}"
    for value in ({"request": text, "port": 1}, {"Authorization": f"Digest {DIGEST}", "port": 1}):
        kept = masked(json.dumps(value))
        assert "6629fae4" not in kept and "5cc" not in kept
        assert json.loads(kept)["port"] == 1
        inner = json.loads(masked(json.dumps({"a": json.dumps(value)})))["a"]
        assert "6629fae4" not in inner and json.loads(inner)["port"] == 1


def lines_of(size: int) -> st.SearchStrategy[str]:
    """Return lines of base64 as they stand in an armoured key."""
    line = st.text(LETTERS + "+/", min_size=64, max_size=64)
    return st.lists(line, min_size=size, max_size=size).map("\n".join)


DASHES = "-" * 5
ARMOURED = {
    "pkcs8": "PRIVATE KEY",
    "rsa": "RSA PRIVATE KEY",
    "openssh": "OPENSSH PRIVATE KEY",
    "ec": "EC PRIVATE KEY",
    "encrypted": "ENCRYPTED PRIVATE KEY",
    "pgp": "PGP PRIVATE KEY BLOCK",
}


@pytest.mark.parametrize("kind", ARMOURED)
@pytest.mark.parametrize(
    "headers", ["", "Version: GnuPG v2\nComment: (mine)\n\n", "Proc-Type: 4,ENCRYPTED\n\n"]
)
@settings(max_examples=10)
@given(body=lines_of(4))
def test_a_private_key_is_masked(kind: str, headers: str, body: str) -> None:
    """With its headers, whole or cut off, in text, JSON, a diff and a numbered list."""
    begin, end = (f"{DASHES}{word} {ARMOURED[kind]}{DASHES}" for word in ("BEGIN", "END"))
    key = f"{begin}\n{headers}{body}\n{end}"
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
        assert not [line for line in body.split("\n") if line in kept], text
        assert kept.startswith("before ")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy"),
        ("'Authorization': 'Basic dXNlcjpodW50ZXIyMg=='", "dXNlcjpodW50ZXIyMg=="),
        ("-H 'authorization: Token 9944b09199c62bcf9418'", "9944b09199c62bcf9418"),
        ('Proxy-Authorization: Digest username="me", response=6629fae4', "6629fae4"),
        ("Authorization: Bearer abcdefghijklmnop1234", "abcdefghijklmnop1234"),
        ('{"Authorization": "4f9a61b27c0d4e55"}', "4f9a61b27c0d4e55"),
        ('{\\"Authorization\\": \\"Bearer 4f9a61b27c0d4e55\\"}', "4f9a61b27c0d4e55"),
        ("PRIVATE-TOKEN: 9koXpg98eAheJpvBs5tK", "9koXpg98eAheJpvBs5tK"),
        ("Cookie: theme=dark; session=f3a9c2d17b8e", "f3a9c2d17b8e"),
        ("Set-Cookie: sid=f3a9c2d17b8e4411; Path=/", "f3a9c2d17b8e4411"),
        ("postgres://me:topsecret@db/x", "topsecret"),
        ("redis://:p4ss@cache:6379/0", "p4ss"),
        ("https://oauth2:glx9aB7cD1eF@git.example.com/a.git", "glx9aB7cD1eF"),
        ("https://f3a9c2d17b8e44110d2f@git.example.com/a.git", "f3a9c2d17b8e44110d2f"),
        ('network={\n  ssid="a"\n  psk="sword fish"\n}', "sword fish"),
        ("https://a.example/?next=%2F%3Fpassword%3Dswordfish%26b%3D1", "swordfish"),
        ("body: user%3Dme%26password%3Dsword%2Bfish%21", "sword%2Bfish%21"),
        ("%7B%22password%22%3A%22swordfish%22%7D", "swordfish"),
        ("[Interface]\nPresharedKey = Zm9vYmFyYmF6cXV4MTIzNA==", "Zm9vYmFyYmF6cXV4MTIzNA"),
        ("export TOKEN='correct horse battery'", "correct horse battery"),
        ("machine example.com login me password swordfish", "swordfish"),
        ("db.internal:5432:app:me:swordfish", "swordfish"),
        ("CREATE USER me IDENTIFIED BY 'sword fish'", "sword fish"),
        ("ALTER ROLE me WITH PASSWORD 'swordfish';", "swordfish"),
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
        ("curl -u me:swordfish https://example.com", "swordfish"),
        ("mysql -h db -u me -ps3cretpw app", "s3cretpw"),
        ("sshpass -p 'sw0rdfish' ssh me@host", "sw0rdfish"),
        ("redis-cli -h cache -a swordfish ping", "swordfish"),
        ("echo swordfish | sudo -S apt-get update", "swordfish"),
        ("//registry.npmjs.org/:_authToken=f3a9c2d17b8e44110d2f", "f3a9c2d17b8e44110d2f"),
        ('{"auths": {"ghcr.io": {"auth": "dXNlcjpodW50ZXIy"}}}', "dXNlcjpodW50ZXIy"),
        ("client-key-data: LS0tLS1CRUdJTg==", "LS0tLS1CRUdJTg=="),
        ("kind: Secret\ndata:\n  password: aHVudGVyMg==\n", "aHVudGVyMg=="),
        ("environment:\n  - POSTGRES_PASSWORD=swordfish\n", "swordfish"),
        ("POSTGRES_PASSWORD: ${DB_PASSWORD:-swordfish}", "swordfish"),
        ('<add key="ApiSecret" value="f3a9c2d1" />', "f3a9c2d1"),
        ("The password is hunter2!", "hunter2"),
        ("The new password for admin is now: s3cret", "s3cret"),
        ('os.environ["DB_PASSWORD"] = "swordfish"', "swordfish"),
        ("if token == 'f3a9c2d17b8e':", "f3a9c2d17b8e"),
        ('"password":\\u0022swordfish\\u0022', "swordfish"),
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
        ("  token: |\n    a b\n\n    c\n  next: 1\n", f"  token: |\n{MASK}\n  next: 1\n"),
        ("- pwd: >-\r\n    a b\r\n  next: 1\r\n", f"- pwd: >-\r\n{MASK}\r\n  next: 1\r\n"),
        ('{"y": "token: |\\n  a b\\nnext: 1"}', f'{{"y": "token: |\\n{MASK}\\nnext: 1"}}'),
        ('{"y": "token: |\\n  a b\\n"}', f'{{"y": "token: |\\n{MASK}\\n"}}'),
    ],
)
def test_only_the_secret_part_is_masked(text: str, kept: str) -> None:
    """The name of the secret stays readable."""
    assert masked(text).replace("\r\n\r\n", "\r\n") == kept


ORDINARY = """\
the password is needed
The password must have at least 12 characters, a digit and a sign.
def login(user: str, password: str) -> Token:
password = getpass.getpass()
    password = self.password
token = self._next_token(stream)
tokens = tokenizer.encode(text)
tokens_used: 33, max_tokens=4096, token_count = 128000
"tokens": 12, "token": 50256
{"token": "hello", "logprob": -0.1}
const accessToken = useAuthStore.getState().accessToken;
privateKey: Uint8Array;
password: process.env.DB_PASSWORD
password: ${DB_PASSWORD}
DB_PASSWORD=<your-password>
API_KEY=
SECRET_KEY = os.environ["SECRET_KEY"]
api_key = os.getenv("API_KEY")
POSTGRES_PASSWORD_FILE=/run/secrets/db
TOKEN_TTL=3600
PWD=/home/me/project
Authorization: Bearer $TOKEN
headers = {"Authorization": f"Bearer {token}"}
curl -H "Authorization: Bearer ${TOKEN}" https://example.com
curl -u "$USER:$PASS" https://example.com
secrets: inherit
{"password": {"type": "string", "minLength": 8}}
{"password": null, "secret": "", "token": true}
password: "********"
"password": "string"
--password <password>  the password to use
git commit -m "Rotate the token"
bypass = True
The key is in the door; the secret of good code is reading it.
the bearer of this letter
primary_key=True, foreign_key="users.id"
public_key: ssh-ed25519
task-scheduler-with-a-very-long-name-that-goes-on
commit 3f786850e387550fdab836ed7e6dc881de23001b
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
id: 0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b
https://example.com:8080/path?page=2&page_token=abc
https://user@example.com/repo.git
/usr/local/lib/python3.11/site-packages/tokenizers/__init__.py
Traceback: KeyError: 'password'
error: invalid token
SELECT password_hash FROM users WHERE id = $1
raise ValueError("password: too short")
password_field = page.locator("#password")
if password != confirm_password:
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


@settings(max_examples=40)
@given(
    st.lists(PIECES, max_size=8).map("".join),
    st.lists(PIECES, max_size=8).map("".join),
)
def test_the_filter_leaves_no_pattern_out(before: str, after: str) -> None:
    """The filter finds all that the patterns find one by one."""
    data = f"{before}\n{after}".encode()
    found = {place for pattern in PATTERNS.patterns for place in pattern.spans(data)}
    covered = PATTERNS.spans(data)
    assert overlap(union(found), covered) == union(found)


def test_secret_patterns_can_be_set() -> None:
    """The pattern set is configurable."""
    assert mask_secrets("id-42 sk-x", compile_patterns([r"id-\d+"])) == f"{MASK} sk-x"
    assert mask_secrets("id-42 é", compile_patterns([r"(?P<token>id)-\d+"])) == f"{MASK}-42 é"
    assert mask_secrets("id-42 é sk-x", compile_patterns([])) == "id-42 é sk-x"


@pytest.mark.parametrize("pattern", ["(", "(?<=a)b", r"(a)\1", "a{5000}", "\ud800", "a*", ""])
def test_patterns_that_cannot_be_used_are_refused(pattern: str) -> None:
    """Patterns that RE2 does not support, or that match the empty text, are refused."""
    with pytest.raises(ValueError, match=r"RE2 does not know|the empty text"):
        compile_patterns([pattern])


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
    patterns = compile_patterns([r"(a+)+$", r"(?:a|aa|\w)+=secret", *DEFAULT_SECRET_PATTERNS])
    began = time.process_time()
    mask_secrets(hostile, patterns)
    assert time.process_time() - began < 3


@given(st.text())
def test_masking_can_never_raise(text: str) -> None:
    """Any text is masked, lone surrogates and NUL included. [neutral.no-empty-content]"""
    kept = masked(text)
    kept.encode("utf-8")
    assert "\x00" not in kept

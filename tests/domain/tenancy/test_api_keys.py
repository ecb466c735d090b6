"""API keys: their form, their hash, and when they open. [tenancy.key-storage]"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.common.errors import ValidationError
from app.domain.tenancy.api_keys import (
    ApiKey,
    PresentedKey,
    bearer_of,
    hash_of,
    key_text,
    presented_key,
    require_tenant_id,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ID = "0a1b2c3d4e5f"
SECRET = "s" * 43
KEY = ApiKey(ID, "acme", "", hash_of(SECRET), NOW)

ids = st.text("0123456789abcdefghijklmnopqrstuvwxyz", min_size=12, max_size=12)
secrets = st.from_regex(r"[A-Za-z0-9_-]{43}", fullmatch=True)


@given(ids, secrets)
def test_a_key_is_taken_apart_as_it_was_put_together(key_id: str, secret: str) -> None:
    """Whatever characters its secret has, dashes and underscores among them."""
    assert presented_key(key_text(key_id, secret)) == PresentedKey(key_id, secret)


@given(st.text())
def test_no_text_breaks_the_reading(text: str) -> None:
    """What is no key is None, and what is one says the same again."""
    found = presented_key(text)
    assert found is None or key_text(found.key_id, found.secret) == text


@given(secrets, secrets)
def test_only_the_secret_opens(secret: str, other: str) -> None:
    """A key opens by its own secret and by no other, and the hash does not hold it."""
    key = ApiKey(ID, "acme", "", hash_of(secret), NOW)
    assert PresentedKey(ID, secret).matches(key, NOW)
    assert PresentedKey(ID, other).matches(key, NOW) == (other == secret)
    assert not PresentedKey(ID, key.secret_hash).matches(key, NOW)
    assert secret not in repr(key)


@pytest.mark.parametrize(
    ("key", "opens"),
    [
        (KEY, True),
        (None, False),
        (ApiKey(ID, "acme", "", KEY.secret_hash, NOW, revoked_at=NOW), False),
        (ApiKey(ID, "acme", "", KEY.secret_hash, NOW, expires_at=NOW), False),
        (ApiKey(ID, "acme", "", KEY.secret_hash, NOW, NOW + timedelta(seconds=1)), True),
    ],
)
def test_a_key_opens_until_it_ends(key: ApiKey | None, opens: bool) -> None:
    """Unknown, revoked and expired keys open nothing."""
    assert PresentedKey(ID, SECRET).matches(key, NOW) is opens


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer   abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("abc", None),
        ("", None),
    ],
)
def test_the_token_is_read_from_the_header(header: str, token: str | None) -> None:
    """The scheme's name has no case; another scheme has no token of ours."""
    assert bearer_of(header) == token


@pytest.mark.parametrize("tenant_id", ["", " ", "a b", "-a", "a/b", "ä", "a" * 65, "a\n", "."])
def test_odd_ids_of_tenants_are_refused(tenant_id: str) -> None:
    """An id can stand in a log line, a path and a shell as it is."""
    with pytest.raises(ValidationError, match="tenant's id"):
        require_tenant_id(tenant_id)

"""API keys: their form, their hash, and when they open. [tenancy.key-storage]"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.tenancy.api_keys import (
    ApiKey,
    PresentedKey,
    hash_of,
    key_text,
    network_of,
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
def test_a_key_is_parsed_into_its_parts(key_id: str, secret: str) -> None:
    """A secret may have any characters, also dashes and underscores."""
    assert presented_key(key_text(key_id, secret)) == PresentedKey(key_id, secret)


@given(secrets, secrets)
def test_only_the_own_secret_matches(secret: str, other: str) -> None:
    """A key matches its own secret only, and the hash does not contain it."""
    key = ApiKey(ID, "acme", "", hash_of(secret), NOW)
    assert PresentedKey(ID, secret).matches(key, NOW)
    assert PresentedKey(ID, other).matches(key, NOW) == (other == secret)
    assert not PresentedKey(ID, key.secret_hash).matches(key, NOW)
    assert secret not in repr(key)


@pytest.mark.parametrize("tenant_id", ["", " ", "a b", "-a", "a/b", "ä", "a" * 65, "a\n", "."])
def test_invalid_tenant_ids_are_refused(tenant_id: str) -> None:
    """A valid id is safe in a log line, a path and a shell."""
    with pytest.raises(ValidationError, match="tenant's id"):
        require_tenant_id(tenant_id)


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("192.0.2.7", "192.0.2.8", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("unknown", "testclient", True),
    ],
)
def test_networks(first: str, second: str, is_one: bool) -> None:
    """An IPv6 client has a /64 of addresses."""
    assert (network_of(first) == network_of(second)) is is_one

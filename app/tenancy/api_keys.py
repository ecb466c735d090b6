"""API keys and the tenants that they authenticate.

1. A key is `ctx_{id}_{secret}`. The id is public: it selects the row and appears in logs and lists.
2. Only the SHA-256 of the secret is stored. A secret is 32 random bytes and cannot be guessed from
   a dictionary, so a slow password hash would add cost and no safety.
3. Secrets are compared in constant time. An unknown id costs a comparison as well.
4. A key is revoked, never deleted. A service that once had keys never accepts requests without one.
5. Rotation replaces a key by a new one of the same tenant, name, scope and lifetime. Both are valid
   until the overlap ends, or the old key's own expiry.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Network, ip_address

from app.common.answers import answer
from app.common.errors import ValidationError

DEFAULT_TENANT = "default"
"""The tenant of all requests while there are no keys."""

_TENANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

_KEY = re.compile(r"ctx_([0-9a-z]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_DUMMY_HASH = "0" * 64
_MAX_ADDRESS_CHARS = 64


@answer()
@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant of a key, and what the key may do."""

    tenant_id: str
    """The tenant."""
    key_id: str | None = None
    """Id of the key; null while the service has no keys."""
    read_only: bool = False
    """Whether it may only read."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored key; `secret_hash` is hexadecimal. With `is_disabled` its tenant is disabled."""

    key_id: str
    tenant_id: str
    name: str
    secret_hash: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    read_only: bool = False
    is_disabled: bool = False

    def is_usable(self, now: datetime) -> bool:
        """Return whether the key is neither revoked nor expired."""
        expired = self.expires_at is not None and self.expires_at <= now
        return self.revoked_at is None and not expired

    def replacement(self, key_id: str, secret: str, now: datetime) -> ApiKey:
        """Return the key that replaces this one (rule 5)."""
        expires_at = now + (self.expires_at - self.created_at) if self.expires_at else None
        return replace(
            self,
            key_id=key_id,
            secret_hash=hash_of(secret),
            created_at=now,
            expires_at=expires_at,
            last_used_at=None,
        )


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """The id and the secret of the key that a request brought."""

    key_id: str
    secret: str

    def matches(self, key: ApiKey | None, now: datetime) -> bool:
        """Return whether the secret is that of `key` and the key is usable (rule 3)."""
        stored = key.secret_hash if key is not None else _DUMMY_HASH
        is_same = hmac.compare_digest(hash_of(self.secret), stored)
        return is_same and key is not None and key.is_usable(now)


def require_tenant_id(text: str) -> None:
    """Raise ValidationError unless the text is a valid tenant id."""
    if not _TENANT_ID.fullmatch(text):
        raise ValidationError(
            "A tenant's id has 1 to 64 letters, digits, dots, dashes and underscores, and begins"
            " with a letter or digit"
        )


def key_text(key_id: str, secret: str) -> str:
    """Return the text of a key."""
    return f"ctx_{key_id}_{secret}"


def presented_key(text: str) -> PresentedKey | None:
    """Parse the text of a key; None if it is not one."""
    match = _KEY.fullmatch(text)
    return PresentedKey(match[1], match[2]) if match else None


def hash_of(secret: str) -> str:
    """Return the stored hash of a secret (rule 2)."""
    return hashlib.sha256(secret.encode()).hexdigest()


def bearer_of(header: str) -> str | None:
    """Return the token of an `Authorization` header, None when it holds none."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def is_address(text: str) -> bool:
    """Return whether the text is an IP address; proxies and clients may send any text."""
    return len(text) <= _MAX_ADDRESS_CHARS and bool(network_of(text))


@lru_cache(maxsize=4096)
def network_of(text: str) -> str:
    """Return the network of a client's address: of IPv6 the /64, which one client has whole."""
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), 64), strict=False))

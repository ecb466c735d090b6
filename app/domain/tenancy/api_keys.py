"""API keys and the tenants they stand for (architecture, decision 34).

1. A key is `ctx_{id}_{secret}`. The id is public: it finds the row, and stands in logs and lists.
2. Of the secret only its SHA-256 is stored. A secret is 32 random bytes, so nothing is gained by a
   slow hash: there are no words to guess.
3. Secrets are compared in constant time, and an unknown id costs a comparison as well.
4. A key is never deleted, only revoked: its row tells what it was, and a service that once had
   keys never answers strangers again.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address

from app.domain.common.errors import ValidationError

DEFAULT_TENANT = "default"
"""The tenant of all requests while there are no keys."""

_TENANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

_KEY = re.compile(r"ctx_([0-9a-z]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_NOTHING = "0" * 64
_LONGEST_ADDRESS = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request; `key_id` is None while there are no keys."""

    tenant_id: str
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is stored; `secret_hash` is hexadecimal."""

    key_id: str
    tenant_id: str
    name: str
    secret_hash: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def is_usable(self, now: datetime) -> bool:
        """Tell whether it may be used at this time."""
        expired = self.expires_at is not None and self.expires_at <= now
        return self.revoked_at is None and not expired


@dataclass(frozen=True, slots=True)
class KeyUse:
    """How often a key came in an hour from an address, and was admitted or refused."""

    key_id: str
    hour: datetime
    address: str
    admitted: int
    refused: int


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """What came with a request, taken apart."""

    key_id: str
    secret: str

    def opens(self, key: ApiKey | None, now: datetime) -> bool:
        """Tell whether this is that key and it may be used (rule 3)."""
        stored = key.secret_hash if key is not None else _NOTHING
        is_same = hmac.compare_digest(hash_of(self.secret), stored)
        return is_same and key is not None and key.is_usable(now)


def require_tenant_id(text: str) -> None:
    """Raise ValidationError for what could be no tenant's id."""
    if not _TENANT_ID.fullmatch(text):
        raise ValidationError(
            "A tenant's id has 1 to 64 letters, digits, dots, dashes and underscores, and begins"
            " with a letter or digit"
        )


def key_text(key_id: str, secret: str) -> str:
    """Return a key as its holder keeps it."""
    return f"ctx_{key_id}_{secret}"


def presented_key(text: str) -> PresentedKey | None:
    """Take a key apart; None for a text that is none."""
    found = _KEY.fullmatch(text)
    return PresentedKey(found[1], found[2]) if found else None


def hash_of(secret: str) -> str:
    """Return what is stored of a secret (rule 2)."""
    return hashlib.sha256(secret.encode()).hexdigest()


def bearer_of(header: str) -> str | None:
    """Return the token of an `Authorization` header, None when it holds none."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def is_address(text: str) -> bool:
    """Tell whether it is an IP address: what a proxy or a client names may be anything."""
    return len(text) <= _LONGEST_ADDRESS and _is_parsed(text)


@lru_cache(maxsize=4096)
def _is_parsed(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

"""Ids of conversations: the public id that callers use, and the key of the rows.

1. A public id is a UUID in lower case, or a caller's own string. It is unique in its tenant.
2. A key is a UUID. The key of an own string is derived from the tenant and the string, so that no
   lookup is needed. Two pairs of tenant and id have two keys.
3. The key of a UUID is the UUID itself, unless another tenant has it: then it is derived like that
   of a string. So a tenant can neither notice nor take the ids of another one.
4. Derived keys are UUIDs of version 8. A caller's UUID of version 8 is never a key itself, so that
   no caller can occupy a key that is derived for another tenant.
"""

from __future__ import annotations

import hashlib
import re
from uuid import UUID

MAX_CHARS = 256
# Control, space and format characters, and slashes. The characters are listed, because the set that
# a Unicode database calls printable differs between versions of Python.
_EXCLUDED = (
    r"\u0000-\u001f\u007f-\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
    r"\ufff9-\uffff/\\"
)
PATTERN = rf"^(?!\.\.?$)[^ {_EXCLUDED}]([^{_EXCLUDED}]*[^ {_EXCLUDED}])?$"
"""The pattern of a public id, for JSON Schema; it has 1 to `MAX_CHARS` characters."""
RULE = (
    f"must be a UUID or 1 to {MAX_CHARS} printable characters without / and \\, not . or .., and"
    " without a space at its start or end"
)
_ID = re.compile(PATTERN)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_VERSION_PLACE = 14


def public_id_from(text: str) -> str | None:
    """Return the public id that a text is, a UUID in lower case; None for any other text."""
    if _UUID.fullmatch(text):
        return text.lower()
    if len(text) > MAX_CHARS or not _ID.fullmatch(text) or _SURROGATE.search(text):
        return None
    return text


def keys_of(tenant_id: str, public_id: str) -> tuple[str, ...]:
    """Return the keys that a tenant's conversation with this id may have, the likeliest first.

    A new conversation has the first one that is free.
    """
    digest = hashlib.sha256(f"{tenant_id}\0{public_id}".encode()).digest()
    number = int.from_bytes(digest[:16], "big")
    number = number & ~(0xF << 76) | (8 << 76)
    derived = str(UUID(int=number & ~(0b11 << 62) | (0b10 << 62)))
    if _UUID.fullmatch(public_id) and public_id[_VERSION_PLACE] != "8":
        return public_id, derived
    return (derived,)

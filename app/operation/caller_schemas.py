"""Schema of the caller of a request."""

from __future__ import annotations

from app.http.fields import ResponseSchema, examples


class CallerShown(ResponseSchema):
    """The tenant of a key, and what the key may do."""

    model_config = examples({"tenant_id": "acme", "key_id": "3f9a0c11d2e4", "read_only": False})

    tenant_id: str
    """The tenant."""
    key_id: str | None
    """Id of the key; null while the service has no keys."""
    read_only: bool
    """Whether it may only read."""

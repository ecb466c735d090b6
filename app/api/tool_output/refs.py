"""The paths of blobs and the refs in them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request

from app.api.http.dependencies import conversation_id_from, tenant_of
from app.api.tool_output.blob_schemas import REF
from app.domain.common.errors import NotFound
from app.domain.common.messages import is_sendable

_MAX_REF = 256

BLOBS_PATH = "/v1/conversations/{conversation_id}/blobs"
RefPath = Annotated[
    str,
    Path(description="Id of a blob, or of a message whose result has no blob.", examples=[REF]),
]
BINARY: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}


def output_of(request: Request, conversation_id: str, ref: str) -> tuple[str, str, str]:
    """Return the tenant, conversation and ref of a path; raises NotFound for invalid ids."""
    known_id = conversation_id_from(conversation_id)
    if not 0 < len(ref) <= _MAX_REF or not is_sendable(ref):
        raise NotFound(f"No output {ref!r} in this conversation", {"ref": ref})
    return tenant_of(request), known_id, ref

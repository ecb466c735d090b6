"""The paths of blobs and the refs in them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request

from app.api.http.dependencies import conversation_id_from, services, tenant_of
from app.api.tool_output.blob_schemas import REF
from app.domain.common.errors import NotFound
from app.domain.common.messages import is_sendable
from app.services.tool_output.reading import Source

_MAX_REF = 256

BLOBS_PATH = "/v1/conversations/{conversation_id}/blobs"
RefPath = Annotated[
    str,
    Path(description="Id of a blob, or of a message whose result has no blob.", examples=[REF]),
]
BINARY: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}


def ref_from(text: str) -> str:
    """Return the ref of a path; raises NotFound for a text that cannot be one."""
    if not 0 < len(text) <= _MAX_REF or not is_sendable(text):
        raise NotFound(f"No output {text!r} in this conversation", {"ref": text})
    return text


async def source_of(request: Request, conversation_id: str, ref: str) -> Source:
    """Return the output of a ref; raises NotFound or Gone."""
    known_id = conversation_id_from(conversation_id)
    return await services(request).blobs.find(tenant_of(request), known_id, ref_from(ref))

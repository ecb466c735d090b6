"""Request and response schemas of blobs."""

from __future__ import annotations

from datetime import datetime

from app.blobs.blobs import ToolOutputRef
from app.http.fields import RequestSchema, ResponseSchema, examples
from app.http.pages import Page

REF = "blob_9f86d081884c7d659a2feaa0"
_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class Blob(ResponseSchema):
    """A stored output. Equal bytes are stored once in a conversation."""

    id: str
    """Id of its blob, or of its message if it has no blob."""
    byte_size: int
    """Size of the whole output in bytes."""
    line_count: int
    """Number of lines; text after the last newline is a line."""

    sha256: str
    """SHA-256 of the bytes, in hex."""
    media_type: str
    """Media type of the content."""
    tool_name: str | None
    """Name of the tool, if known."""
    tool_call_id: str | None
    """Id of the tool call, if known."""
    attached: bool
    """Whether a message refers to it; if not, it is collected."""
    created_at: datetime | None
    """Time at which it was stored."""


class UploadedBlob(Blob):
    """An uploaded blob and its preview."""

    view: str
    """The preview that a message without content shows."""


class BlobPage(Page[Blob]):
    """Blobs of a conversation, newest first."""


class CollectRequest(RequestSchema):
    """Options of a collection."""

    model_config = examples({"dry_run": True})

    dry_run: bool = False
    """true: report what would be collected, without collecting it."""


class CollectedBlobs(ResponseSchema):
    """The blobs that were collected, or would be in a dry run."""

    dry_run: bool
    """Whether this was a dry run, which collects nothing."""
    collected: list[ToolOutputRef]
    """The blobs; reading one is now a `410`."""
    byte_size: int
    """Total size of the blobs in bytes."""
    uploads: int
    """Number of unfinished uploads that were dropped."""

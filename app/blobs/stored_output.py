"""The metadata of a tool result in the log: its size, its blob and its preview."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.blobs.chunks import ToolOutputRef, count_lines, encode
from app.blobs.preview import WHOLE, Preview, PreviewKind
from app.common import json_text
from app.formats import media
from app.formats.message import File, Image, Message, Part, Text

SEQ_REF = "seq-"
"""Prefix of a ref made from a message's seq, where the message's id cannot be a ref."""
# A client's message id is a ref if it is safe in a URL path and differs from every generated ref.
_MESSAGE_ID_REF = re.compile(rf"(?!{SEQ_REF}|blob_)[A-Za-z0-9_-][A-Za-z0-9_.:-]{{0,35}}")


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """The output column of a tool result's row.

    `ref` is the id of its blob, None if the row holds the whole result. The texts of the `preview`
    are in the message; `texts` are the positions of the whole ones in the blob, as start and length
    in bytes. `is_object` is true if the text is the JSON of a Gemini response object.
    """

    byte_size: int
    line_count: int
    ref: str | None = None
    preview: Preview = WHOLE
    texts: tuple[tuple[int, int], ...] = ()
    is_object: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether the message has less text than its blob."""
        return self.preview.kind is not PreviewKind.WHOLE

    def ref_in(self, message_id: str, seq: int) -> ToolOutputRef:
        """Return the ref of this result in the message with this id and seq."""
        ref = self.ref or message_ref(message_id, seq)
        return ToolOutputRef(ref, self.byte_size, self.line_count)

    def as_json(self) -> str:
        """Return the stored JSON; fields with default values are left out."""
        stored: dict[str, Any] = {"bytes": self.byte_size, "lines": self.line_count}
        if self.ref is not None:
            stored |= {"ref": self.ref, "texts": self.texts}
        if self.is_cut:
            preview = self.preview
            stored |= {"view": preview.kind, "note": preview.note}
            stored |= {"plain_note": preview.plain_note, "mentions": preview.mentions}
        if self.is_object:
            stored["object"] = True
        return json_text.dumps(stored)


@lru_cache(maxsize=4096)
def stored_output_from(text: str) -> StoredOutput:
    """Parse the JSON of `as_json`; cached, because builds and pages parse the same rows again."""
    raw = json_text.loads(text)
    return StoredOutput(
        byte_size=raw["bytes"],
        line_count=raw["lines"],
        ref=raw.get("ref"),
        preview=Preview(
            PreviewKind(raw.get("view", PreviewKind.WHOLE)),
            note=raw.get("note", ""),
            plain_note=raw.get("plain_note", ""),
            mentions=tuple(raw.get("mentions", ())),
        ),
        texts=tuple((start, length) for start, length in raw.get("texts", ())),
        is_object=raw.get("object", False),
    )


def message_ref(message_id: str, seq: int) -> str:
    """Return the ref of a message without a blob: its id, or else one made from its seq."""
    return message_id if _MESSAGE_ID_REF.fullmatch(message_id) else f"{SEQ_REF}{seq}"


def inline_output(message: Message) -> StoredOutput:
    """Return the metadata of a result that its row holds as a whole."""
    data = output_text(message)
    return StoredOutput(len(data), count_lines(data))


def output_text(message: Message) -> bytes:
    """Return the output of a result without a blob: its parts, joined by newlines."""
    return b"\n".join(encode(part_text(part)) for part in message.parts)


def part_text(part: Part) -> str:
    """Return the text of a part; a label for an image or a document without text."""
    match part:
        case Text():
            return part.text
        case Image():
            return media.image_label(part)
        case File(text=str(text)):
            return text
        case File():
            return media.file_label(part)
    return json_text.dumps(getattr(part, "block", {}))


def without_tool_names(text: str, output: StoredOutput) -> str:
    """Return a preview's text with the note that names no tool [tool-output.notes-match-tools]."""
    preview = output.preview
    return text.removesuffix(preview.note) + preview.plain_note if preview.note else text

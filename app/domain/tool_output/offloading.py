"""Offloading: what becomes of a tool result on its way into the log, and back (F1, F6).

1. The output of a result is its text. Several parts are joined by newlines, and each image or
   document that came as bytes stands among them as a line that names the blob of those bytes.
2. A large output goes whole into its blob; the message keeps its texts as their view. Media stay
   in the message as they came, because the view shows them.
3. `Output` is what the log's row says of it. It gives the original texts back, byte for byte, and
   tells whether another result is the same without reading the blob: its id is its content.
4. Results of the service's own tools are never offloaded (decision 27), nor those that have no
   place for a view, such as the tools that a Responses tool search found.
5. Where a Gemini response is an object of its own, its text is its JSON, and `{"output": view}`
   stands in its place.
6. A small output with a line longer than `max_line_length` goes the same way, if its view is
   shorter than it is. A Gemini object has no lines.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import ValidationError
from app.domain.common.messages import File, FormatName, Image, Message, Part, Text
from app.domain.common.policy import ToolOutputPolicy
from app.domain.common.policy import ToolView as ViewMode
from app.domain.formats import FORMATS, gemini, labels
from app.domain.formats.inline_media import media_type_of
from app.domain.tool_output.blobs import (
    TEXT,
    Blob,
    Chunk,
    Chunker,
    ToolOutputRef,
    blob_id,
    encode,
    show,
)
from app.domain.tool_output.preview import (
    TOOL_NAMES,
    PreviewKind,
    PreviewRules,
    ToolView,
    has_long_line,
    preview_of_texts,
    should_offload,
)

SEQ_REF = "seq-"
"""Begins the ref of a result whose message's id cannot stand as one: its seq follows."""
OPAQUE = "application/octet-stream"
_NO_CONTENT: tuple[Any, ...] = (None, "", [])
# Of a client's own ids only those that are one step of any path, and like no other ref.
_OWN_REF = re.compile(rf"(?!{SEQ_REF}|blob_)[A-Za-z0-9_-][A-Za-z0-9_.:-]{{0,35}}")

NewBlob = tuple[Blob, tuple[Chunk, ...]]
"""A blob that has no content id yet, with all its chunks."""
_Origin = tuple[str | None, str | None]  # the tool's name, and the call's id


def message_ref(message_id: str, seq: int) -> str:
    """Return what a message without a blob is called for by: its id, or else its seq."""
    return message_id if _OWN_REF.fullmatch(message_id) else f"{SEQ_REF}{seq}"


@dataclass(frozen=True, slots=True)
class Output:
    """What a row of the log says of its result.

    `ref` is its blob's id, None where the row itself holds it all. `texts` are where in the blob
    the message's texts are, as start and length in bytes. `note` ends the view and names tools,
    `plain_note` says the same without. `is_object` tells that the text is the JSON of an object.
    """

    byte_size: int
    line_count: int
    ref: str | None = None
    view: PreviewKind = PreviewKind.WHOLE
    texts: tuple[tuple[int, int], ...] = ()
    note: str = ""
    plain_note: str = ""
    mentions: tuple[str, ...] = ()
    is_object: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether the message shows less than its blob holds."""
        return self.view is not PreviewKind.WHOLE

    def ref_in(self, message_id: str, seq: int) -> ToolOutputRef:
        """Return what the result of this row is called for by."""
        own = self.ref or message_ref(message_id, seq)
        return ToolOutputRef(own, self.byte_size, self.line_count)

    def as_json(self) -> str:
        """Return the text that is stored in the row."""
        short: dict[str, Any] = {"bytes": self.byte_size, "lines": self.line_count}
        if self.ref is not None:
            short |= {"ref": self.ref, "texts": self.texts}
        if self.is_cut:
            short |= {"view": self.view, "note": self.note, "plain_note": self.plain_note}
            short["mentions"] = self.mentions
        if self.is_object:
            short["object"] = True
        return json_text.dumps(short)


@lru_cache(maxsize=4096)
def output_from(text: str) -> Output:
    """Read back what `as_json` wrote; builds and pages read the same ones again."""
    raw = json_text.loads(text)
    return Output(
        byte_size=raw["bytes"],
        line_count=raw["lines"],
        ref=raw.get("ref"),
        view=PreviewKind(raw.get("view", PreviewKind.WHOLE)),
        texts=tuple((start, length) for start, length in raw.get("texts", ())),
        note=raw.get("note", ""),
        plain_note=raw.get("plain_note", ""),
        mentions=tuple(raw.get("mentions", ())),
        is_object=raw.get("object", False),
    )


@dataclass(frozen=True, slots=True)
class Attached:
    """A blob that a message refers to, with the view it has by the policy of now (F1)."""

    blob: Blob
    view: ToolView


@dataclass(frozen=True, slots=True)
class Terms:
    """By what results are taken in: the policy, the tools' names by call id, attached blobs."""

    policy: ToolOutputPolicy = field(default_factory=ToolOutputPolicy)
    names: Mapping[str, str] = field(default_factory=dict)
    attached: Mapping[str, Attached] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """A result as the log takes it: the piece to store, its output, the blobs it needs."""

    piece: dict[str, Any]
    output: Output
    blobs: tuple[NewBlob, ...] = ()
    attaches: str | None = None


def take(
    piece: dict[str, Any], message: Message, format: FormatName, terms: Terms, pointer: str
) -> Taken:
    """Return a tool message's piece as it is stored, offloaded where the policy wants it."""
    call_id = message.tool_call_id or ""
    name = terms.names.get(call_id) or message.name
    asked = attached_ref(piece, format, pointer)
    if asked is not None:
        if asked not in terms.attached:
            detail = f"No blob {asked!r} in this conversation: upload it first"
            raise ValidationError.at(f"{pointer}/output_ref", detail)
        return _attach(piece, format, terms.attached[asked])
    if name in TOOL_NAMES:
        return Taken(piece, inline_output(message))
    kept = [_kept(part) for part in message.parts]
    size = sum(len(item.data) for item in kept) + len(kept) - 1
    if not _has_places(piece, kept, format):
        return Taken(piece, inline_output(message))
    origin = (name, message.tool_call_id)
    if should_offload(size, terms.policy):
        return _offload(piece, kept, format, PreviewRules.of(terms.policy), origin)
    if _has_long_lines(kept, terms.policy) and not _is_object(piece, format):
        rules = replace(PreviewRules.of(terms.policy), mode=ViewMode.TRUNCATE)
        taken = _offload(piece, kept, format, rules, origin)
        if len(json_text.dump_stored(taken.piece)) < len(json_text.dump_stored(piece)):
            return taken
    return Taken(piece, inline_output(message))


def attached_ref(piece: Mapping[str, Any], format: FormatName, pointer: str) -> str | None:
    """Return the id of the blob that a tool message refers to, None where it names none."""
    asked = _result_in(piece, format).get("output_ref")
    if asked is None:
        return None
    ref = asked.get("id") if isinstance(asked, Mapping) else asked
    if not isinstance(ref, str) or not ref:
        raise ValidationError.at(f"{pointer}/output_ref", "An object with the id of a blob")
    return ref


def has_content(piece: Mapping[str, Any], format: FormatName) -> bool:
    """Whether a tool message brings content of its own."""
    return _result_in(piece, format).get(FORMATS[format].RESULT_KEY) not in _NO_CONTENT


def restored(body: str, format: FormatName, output: Output, content: bytes) -> dict[str, Any]:
    """Return a stored message as it came, its texts out of the blob's bytes (rule 3)."""
    piece: dict[str, Any] = json_text.loads(body)
    texts = [show(content[start : start + length]) for start, length in output.texts]
    if output.is_object:
        (text,) = texts
        _result_in(piece, format)[FORMATS[format].RESULT_KEY] = json_text.loads_exact(text)
        return piece
    for (holder, key), text in zip(_text_places(piece, format), texts, strict=True):
        holder[key] = text
    return piece


def is_same_result(body: str, output: Output, piece: Mapping[str, Any], format: FormatName) -> bool:
    """Whether a stored result with a blob came as this one does (A2, rule 3).

    By what policy either is offloaded does not matter, nor whether the blob was collected.
    """
    stored: dict[str, Any] = json_text.loads(body)
    given: dict[str, Any] = json_text.loads(json_text.dump_stored(piece))
    asked = _result_in(given, format).get("output_ref")
    if asked != _result_in(stored, format).get("output_ref"):
        return False
    if asked is None:
        (message,) = FORMATS[format].parse(given, "")
        if _main_ref(message) != output.ref or _is_object(given, format) < output.is_object:
            return False
        if output.is_object:
            _put_view(given, format, "")
            _put_view(stored, format, "")
        elif not _is_object(given, format):
            texts = [(0, len(encode(holder[key]))) for holder, key in _text_places(given, format)]
            if len(texts) != len(output.texts):
                return False
            _blank(given, format, texts)
            _blank(stored, format, output.texts)
    elif output.texts:
        if has_content(given, format):
            return False
        key = FORMATS[format].RESULT_KEY
        _result_in(given, format).pop(key, None)
        _result_in(stored, format).pop(key, None)
    return given == stored


def inline_output(message: Message) -> Output:
    """Return what is to say of a result that its row holds whole."""
    data = output_text(message)
    return Output(len(data), data.count(b"\n") + (data[-1:] not in (b"", b"\n")))


def output_text(message: Message) -> bytes:
    """Return the output of a result that has no blob, as reading it shows it (rule 1)."""
    return b"\n".join(encode(_described(part)) for part in message.parts)


def viewed(text: str, output: Output) -> str:
    """Return a view's text with its closing note in the words that name no tool (L1)."""
    return text.removesuffix(output.note) + output.plain_note if output.note else text


# --- taking in --------------------------------------------------------------------------------


def _attach(piece: dict[str, Any], format: FormatName, attached: Attached) -> Taken:
    blob, view = attached.blob, attached.view
    output = Output(blob.byte_size, blob.line_count, blob.id)
    if not has_content(piece, format):
        piece = deepcopy(piece)
        _put_view(piece, format, view.texts[0])
        output = replace(
            output,
            view=view.kind,
            texts=((0, blob.byte_size),),
            note=view.note,
            plain_note=view.plain_note,
            mentions=view.mentions,
        )
    return Taken(piece, output, attaches=blob.id)


def _offload(
    piece: dict[str, Any],
    kept: Sequence[_Kept],
    format: FormatName,
    rules: PreviewRules,
    origin: _Origin,
) -> Taken:
    main, media = _joined(kept), [item for item in kept if item.media_type is not None]
    blobs = [_new_blob(item.data, item.media_type or OPAQUE, origin) for item in media]
    if main is None:
        (blob, _) = blobs[0]
        return Taken(piece, Output(blob.byte_size, blob.line_count, blob.id), tuple(blobs))
    blobs.insert(0, _new_blob(main, TEXT, origin))
    blob = blobs[0][0]
    is_object = _is_object(piece, format)
    texts = [holder[key] for holder, key in _text_places(piece, format)]
    if is_object:
        texts = [show(item.data) for item in kept if item.is_text]
    view = preview_of_texts(texts, rules, blob.ref, origin[0])
    is_cut = view.kind is not PreviewKind.WHOLE
    if is_cut:
        piece = deepcopy(piece)
        if is_object:
            _put_view(piece, format, "")
        for (holder, key), text in zip(_text_places(piece, format), view.texts, strict=True):
            holder[key] = text
    output = Output(
        byte_size=blob.byte_size,
        line_count=blob.line_count,
        ref=blob.id,
        view=view.kind,
        texts=tuple(_places(kept)),
        note=view.note,
        plain_note=view.plain_note,
        mentions=view.mentions,
        is_object=is_object and is_cut,
    )
    return Taken(piece, output, tuple({item[0].id: item for item in blobs}.values()))


@dataclass(frozen=True, slots=True)
class _Kept:
    """The bytes that are kept of a part, and what stands for it in the main blob (rule 1).

    Only what gets a blob of its own has a media type.
    """

    data: bytes
    line: bytes
    media_type: str | None = None
    is_text: bool = False


def _kept(part: Part) -> _Kept:
    if isinstance(part, Image | File) and (data := _bytes_of(part)) is not None:
        media_type = media_type_of(part) or OPAQUE
        ref = blob_id(sha256(data).hexdigest())
        return _Kept(data, encode(f"[{media_type}; {len(data):,} bytes; ref={ref}]"), media_type)
    line = encode(_described(part))
    return _Kept(line, line, is_text=isinstance(part, Text))


def _has_long_lines(kept: Sequence[_Kept], policy: ToolOutputPolicy) -> bool:
    """Whether a result has a line that its view cuts, though it is small (rule 6)."""
    if not policy.enabled:
        return False
    texts = (show(item.data) for item in kept if item.is_text)
    return any(has_long_line(text, policy.max_line_length) for text in texts)


def _joined(kept: Sequence[_Kept]) -> bytes | None:
    """Return the main blob's bytes; None for a medium alone, which has none besides its own."""
    if len(kept) == 1 and kept[0].media_type is not None:
        return None
    return b"\n".join(item.line for item in kept)


def _places(kept: Iterable[_Kept]) -> Iterator[tuple[int, int]]:
    """Yield where the texts stand in the main blob, as start and length."""
    at = 0
    for item in kept:
        size = len(item.line)
        if item.is_text:
            yield at, size
        at += size + 1


def _main_ref(message: Message) -> str:
    """Return the id of the blob that a result would have, were it offloaded."""
    kept = [_kept(part) for part in message.parts]
    main = _joined(kept)
    return blob_id(sha256(kept[0].data if main is None else main).hexdigest())


def _new_blob(data: bytes, media_type: str, origin: _Origin) -> NewBlob:
    name, call_id = origin
    chunker = Chunker()
    chunks = (*chunker.feed(data), *chunker.finish())
    blob = Blob(
        id=blob_id(chunker.sha256),
        content_id="",
        byte_size=chunker.byte_size,
        line_count=chunker.line_count,
        sha256=chunker.sha256,
        media_type=media_type,
        tool_name=name,
        tool_call_id=call_id,
        attached=True,
    )
    return blob, chunks


def _bytes_of(part: Image | File) -> bytes | None:
    """Return the bytes of an inline image or document, None where there are none to keep."""
    if not part.data:
        return None
    data = "".join(part.data.split()).rstrip("=")  # broken into lines, or padded in any way
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _described(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case Image():
            return labels.image_label(part)
        case File(text=str(text)):
            return text
        case File():
            return labels.file_label(part)
    return json_text.dumps(getattr(part, "block", {}))


# --- where the texts of a result are -----------------------------------------------------------


def _result_in(piece: Any, format: FormatName) -> Any:
    """Return the object that holds a result's content: the message, or its one block."""
    return FORMATS[format].results(piece)[0][1]


def _is_object(piece: Any, format: FormatName) -> bool:
    """Whether a result says an object instead of texts (rule 5)."""
    if format is not FormatName.GEMINI:
        return False
    response = _result_in(piece, format).get(gemini.RESULT_KEY)
    return bool(response) and gemini.text_key(response) is None


def _text_places(piece: Any, format: FormatName) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the container and key of every text of a result, in order."""
    holder, key = _result_in(piece, format), FORMATS[format].RESULT_KEY
    content = holder.get(key)
    if isinstance(content, str):
        yield holder, key
    elif isinstance(content, list):
        for part in content:
            if part.get("type") in ("text", "input_text"):
                yield part, "text"
    elif format is FormatName.GEMINI and content and (said := gemini.text_key(content)):
        yield content, said


def _has_places(piece: Any, kept: Sequence[_Kept], format: FormatName) -> bool:
    """Whether each text of a result can give way to its view (rule 4)."""
    texts = sum(item.is_text for item in kept)
    return _is_object(piece, format) or texts == sum(1 for _ in _text_places(piece, format))


def _put_view(piece: Any, format: FormatName, view: str) -> None:
    """Put a view in the place of all that a result says."""
    content = {"output": view} if format is FormatName.GEMINI else view
    _result_in(piece, format)[FORMATS[format].RESULT_KEY] = content


def _blank(piece: Any, format: FormatName, places: Iterable[tuple[int, int]]) -> None:
    """Put the length of each text in its place."""
    for (holder, key), (_, length) in zip(_text_places(piece, format), places, strict=True):
        holder[key] = length

"""Previews of large tool results: the shortened text that the model gets [tool-output.preview].

1. Every line is cut at `max_line_length` characters and keeps its line ending, carriage returns
   included. The text is cut before the character that would exceed `max_message_bytes` of UTF-8.
2. If nothing is cut, the preview is the whole text. Otherwise a note on a line of its own tells how
   to read the rest. The note counts towards `max_message_bytes`; if that is smaller than the note,
   the preview is the note.
3. Every note also exists without the names of tools [tool-output.notes-match-tools].
4. The texts of one result share `max_message_bytes`, in order. The offset in a note counts the
   lines of all texts, joined by newlines as in the blob.
5. A preview takes at most a share of the effective window.
6. Bytes are fed in pieces of any size, in constant memory; the size of the pieces does not change
   the preview.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from app.blobs.chunks import (
    MAX_CHARACTER_BYTES,
    ToolOutputRef,
    decode,
    decode_lossy,
    encode,
    whole_characters,
)
from app.models.budget import Limits
from app.policy.policy import AGENT_TOOL_NAMES, PreviewMode, ToolOutputPolicy

READ_LINES, GREP, READ_BYTES, TOOL_SEARCH, COMPACT_CONTEXT, RECALL, PIN_MESSAGES = AGENT_TOOL_NAMES
"""Agent tools, whose results are never offloaded [tool-output.own-tools-inline].

The first three read the rest of a cut result.
"""

NOTE_BYTES = 224
"""The largest size of a note and the newline before it."""
EXCERPT_CHARACTERS = 200
"""The length of the excerpt in a reference [tool-output.preview-reference]."""
WINDOW_SHARE, BYTES_PER_TOKEN = 0.25, 3
MIN_BOUND_BYTES = 1024
"""However small the context window is, a preview may have so many bytes."""
_STEP = 65_536  # characters that are searched for long lines at once
_CUT = r"\g<1>--"  # what is kept of a long line for now: that it is longer, and not how it ended


class PreviewKind(StrEnum):
    """The whole text, the text cut to its limits, or a reference with an excerpt."""

    WHOLE = "whole"
    CUT = "cut"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of a result: one text for each of its texts.

    The last non-empty text ends with `note`, which names the tools in `mentions`. `plain_note`
    replaces it in payloads without those tools. Both are empty if nothing is cut.
    """

    kind: PreviewKind = PreviewKind.WHOLE
    texts: tuple[str, ...] = ()
    note: str = ""
    plain_note: str = ""
    mentions: tuple[str, ...] = ()


WHOLE = Preview()
"""The preview of a result that is shown whole, without its texts."""


def bounded_by_window(policy: ToolOutputPolicy, limits: Limits | None) -> ToolOutputPolicy:
    """Return the policy with previews of at most a share of the effective window, if known."""
    if limits is None:
        return policy
    share = int(limits.effective_window * WINDOW_SHARE * BYTES_PER_TOKEN)
    max_bytes = min(policy.max_message_bytes, max(MIN_BOUND_BYTES, share))
    return policy.model_copy(update={"max_message_bytes": max_bytes})


def should_offload(size_bytes: int, output: ToolOutputPolicy) -> bool:
    """Whether a result of this size is offloaded."""
    threshold = min(output.offload_threshold_bytes, output.max_message_bytes)
    return output.enabled and size_bytes > threshold


def has_long_line(text: str, max_line_length: int) -> bool:
    """Whether a preview cuts a line of the text (rule 1)."""
    return len(text) > max_line_length and max(map(len, text.split("\n"))) > max_line_length


def placeholder(ref: str, byte_size: int, *, named: bool) -> str:
    """Return the placeholder of a cleared result, with or without the name of the read tool."""
    how = f"; read with {READ_LINES}" if named else ""
    return f"[tool output trimmed; ref={ref}; {byte_size:,} bytes{how}]"


def preview_of_texts(
    texts: Sequence[str], policy: ToolOutputPolicy, ref: ToolOutputRef, tool_name: str | None
) -> Preview:
    """Return the preview of a result's texts (rule 4)."""
    if not texts:
        return WHOLE
    most = policy.max_message_bytes
    if policy.view is PreviewMode.REFERENCE:
        return _reference(texts, ref, tool_name, most)
    if _cut(texts, policy.max_line_length, most)[0] == [*texts]:
        return Preview(PreviewKind.WHOLE, tuple(texts))
    shown, offset = _cut(texts, policy.max_line_length, max(0, most - NOTE_BYTES))
    # A byte outside a UTF-8 character is shown as three.
    size = sum(len(encode(text)) - 2 * text.count("\ufffd") for text in shown)
    what = f"{size:,} of {ref.byte_size:,} bytes shown"
    if offset is not None:
        how = f'Read the rest with {READ_LINES} ref_id="{ref.id}" offset={offset}'
        what, or_search, reader = f"Output cut: {what}", "or search it with", READ_LINES
    else:
        how = f'Read them whole with {READ_BYTES} ref_id="{ref.id}"'
        what, or_search, reader = f"Long lines cut: {what}", "or search them with", READ_BYTES
    note = f"[{what}. {how}, {or_search} {GREP}.]"
    last = max((index for index, text in enumerate(shown) if text), default=0)
    shown[last] += ("" if shown[last].endswith("\n") or not shown[last] else "\n") + note
    plain_note = f'[{what}; ref="{ref.id}".]'
    return Preview(PreviewKind.CUT, tuple(shown), note, plain_note, (reader, GREP))


def _reference(
    texts: Sequence[str], ref: ToolOutputRef, tool_name: str | None, max_bytes: int
) -> Preview:
    plain_note = f'ref_id="{ref.id}"'
    note = f'Use the "{READ_BYTES}" tool with {plain_note} to read specific portions.'
    header = f'[Tool result stored — {ref.byte_size:,} bytes from "{tool_name or "tool"}".\n'
    header += f"First {EXCERPT_CHARACTERS} chars: "
    room = max(0, max_bytes - len(encode(f"{header}]\n{note}")))
    start = "".join(text[:EXCERPT_CHARACTERS] for text in texts)[:EXCERPT_CHARACTERS]
    text = f"{header}{decode(whole_characters(encode(start), room))}]\n{note}"
    others = ("",) * (len(texts) - 1)
    return Preview(PreviewKind.REFERENCE, (text, *others), note, plain_note, (READ_BYTES,))


def _cut(texts: Sequence[str], max_line: int, room: int) -> tuple[list[str], int | None]:
    """Return texts cut to a number of bytes together, and in which line that was, if it was."""
    shown: list[str] = []
    offset = None
    for text in texts:
        data = encode(_with_cut_lines(text, max_line, room)) if offset is None else b""
        is_over = len(data) > room
        if is_over:
            data = whole_characters(data, room)
        room -= len(data)
        shown.append(decode(data))
        if is_over:
            offset = "\n".join(shown).count("\n")
    return shown, offset


def _with_cut_lines(text: str, max_line: int, room: int) -> str:
    """Return a text with its lines cut, as far as it is needed for so many bytes."""
    start = text[: room + 1]
    if not has_long_line(start, max_line):
        return start
    kept, at = "", 0
    while at < len(text) and len(kept) <= room + 2 * (kept.count("\n") + 1):
        step = text[at : at + _STEP]
        kept = _long_lines(max_line).sub(_CUT, kept + step)
        at += len(step)
    return _long_lines(max_line).sub(r"\1", kept)


@lru_cache(16)
def _long_lines(size: int) -> re.Pattern[str]:
    return re.compile(rf"(?m)^([^\n]{{{size}}})[^\n]*[^\r\n]")


class PreviewBuilder:
    """Makes a preview of a stream of bytes, in constant memory (rule 6).

    `is_full` is true once more bytes cannot change it.
    """

    def __init__(self, policy: ToolOutputPolicy) -> None:
        self._policy = policy
        self._data = bytearray()
        self.is_full = False
        size = MAX_CHARACTER_BYTES * policy.max_line_length
        self._long_lines = re.compile(rb"(?m)^([^\n]{%d})[^\n]*[^\r\n]" % size)

    def feed(self, piece: bytes) -> None:
        """Add bytes."""
        most, max_line = self._policy.max_message_bytes, self._policy.max_line_length
        for start in range(0, len(piece), _STEP):
            if self.is_full:
                return
            self._data += piece[start : start + _STEP]
            if self._policy.view is PreviewMode.REFERENCE:
                self.is_full = len(self._data) >= EXCERPT_CHARACTERS * MAX_CHARACTER_BYTES
            elif len(self._data) > most:
                self._data[:] = self._long_lines.sub(_CUT.encode(), self._data)
                # The last character may be incomplete, and the last line go on after its returns.
                text = decode_lossy(bytes(self._data.rstrip(b"\r")))[: 1 - MAX_CHARACTER_BYTES]
                self.is_full = _cut([text], max_line, most)[1] is not None

    def finish(self, ref: ToolOutputRef, tool_name: str | None = None) -> Preview:
        """Return the preview of all bytes, with the notes for this ref."""
        return preview_of_texts([decode_lossy(bytes(self._data))], self._policy, ref, tool_name)

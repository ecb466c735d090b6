"""Previews of large tool results: the shortened text that the model gets [tool-output.preview].

1. Every line is cut at `max_line_length` characters and keeps its line ending. The text is cut
   before the character that would exceed `max_message_bytes` of UTF-8.
2. If nothing is cut, the preview is the whole text. Otherwise a note on a line of its own tells how
   to read the rest. The note counts towards `max_message_bytes`; if that is smaller than the note,
   the preview is the note.
3. Every note also exists without the names of tools [tool-output.notes-match-tools].
4. The texts of one result share `max_message_bytes`, in order. The offset in a note counts the
   lines of all texts, joined by newlines as in the blob.
5. A preview takes at most a share of the window.
6. Bytes are fed in pieces of any size, in constant memory; the size of the pieces does not change
   the preview.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from app.blobs.blobs import (
    MAX_CHARACTER_BYTES,
    ToolOutputRef,
    decode,
    decode_lossy,
    encode,
    prefix_size,
    split_character,
)
from app.models.budget import Limits
from app.policy.policy import AGENT_TOOL_NAMES, ToolOutputPolicy, ToolView

READ_LINES, GREP, READ_BYTES, TOOL_SEARCH, COMPACT_CONTEXT, RECALL = AGENT_TOOL_NAMES
"""Agent tools, whose results are never offloaded [tool-output.own-tools-inline].

The first three read the rest of a cut result.
"""

NOTE_BYTES = 224
"""The largest size of a note and the newline before it."""
EXCERPT_CHARACTERS = 200
"""The length of the excerpt in a reference [tool-output.preview-reference]."""
WINDOW_SHARE, BYTES_PER_TOKEN = 0.25, 3
MIN_BOUND_BYTES = 1024
"""However small the window is, a preview may have so many bytes."""
_RUN_BYTES = 4096


class PreviewKind(StrEnum):
    """The whole text, the text cut to its limits, or a reference with an excerpt."""

    WHOLE = "whole"
    CUT = "cut"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class ToolPreview:
    """The preview of a result: one text for each of its texts.

    The last non-empty text ends with `note`, which names the tools in `mentions`. `plain_note`
    replaces it in payloads without those tools. Both are empty if nothing is cut.
    """

    kind: PreviewKind
    texts: tuple[str, ...]
    note: str = ""
    plain_note: str = ""
    mentions: tuple[str, ...] = ()


def bounded_by_window(policy: ToolOutputPolicy, limits: Limits | None) -> ToolOutputPolicy:
    """Return the policy with previews of at most a share of the window, where that is known."""
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
    if len(text) <= max_line_length:
        return False
    start = 0
    while (end := text.find("\n", start)) >= 0:
        if end - start > max_line_length:
            return True
        start = end + 1
    return len(text) - start > max_line_length


def placeholder(ref: str, byte_size: int, *, named: bool) -> str:
    """Return the placeholder of a cleared result, with or without the name of the read tool."""
    how = f"; read with {READ_LINES}" if named else ""
    return f"[tool output trimmed; ref={ref}; {byte_size:,} bytes{how}]"


def preview_of_texts(
    texts: Sequence[str], policy: ToolOutputPolicy, ref: ToolOutputRef, tool_name: str | None
) -> ToolPreview:
    """Return the preview of a result's texts (rule 4)."""
    if not texts or (policy.view is ToolView.TRUNCATE and _fits(texts, policy)):
        return ToolPreview(PreviewKind.WHOLE, tuple(texts))
    builder = PreviewBuilder(policy)
    for text in texts:
        builder.feed(encode(text))
        builder.end_text()
    return builder.finish(ref, tool_name)


def _fits(texts: Sequence[str], policy: ToolOutputPolicy) -> bool:
    """Whether a cheap check shows that nothing is cut."""
    return (
        sum(map(len, texts)) <= policy.max_message_bytes
        and not any(has_long_line(text, policy.max_line_length) for text in texts)
        and sum(len(encode(text)) for text in texts) <= policy.max_message_bytes
    )


class PreviewBuilder:
    """Makes a preview of a stream of bytes, in constant memory (rule 6)."""

    def __init__(self, policy: ToolOutputPolicy) -> None:
        self._mode, self._max_bytes = policy.view, policy.max_message_bytes
        if policy.view is ToolView.REFERENCE:
            limit = EXCERPT_CHARACTERS * MAX_CHARACTER_BYTES
            self._lines = self._with_note = _PreviewText(limit + 1, limit)
        else:
            limit = policy.max_message_bytes
            self._lines = _PreviewText(policy.max_line_length, limit)
            # A note is known to be needed only at the end: a second text leaves bytes for it.
            self._with_note = _PreviewText(policy.max_line_length, max(0, limit - NOTE_BYTES))

    @property
    def is_full(self) -> bool:
        """Whether more bytes cannot change the preview."""
        return self._lines.is_full

    def feed(self, piece: bytes) -> None:
        """Add bytes to the current text."""
        self._lines.feed(piece)
        if self._with_note is not self._lines:
            self._with_note.feed(piece)

    def end_text(self) -> None:
        """End the current text; the next bytes belong to another one (rule 4)."""
        self._lines.end_text()
        if self._with_note is not self._lines:
            self._with_note.end_text()

    def finish(self, ref: ToolOutputRef, tool_name: str | None = None) -> ToolPreview:
        """Return the preview of all bytes, with the notes for this ref."""
        if self._lines.has_open_text:
            self.end_text()
        if self._mode is ToolView.REFERENCE:
            return _reference(self._lines.texts, ref, tool_name, self._max_bytes)
        if not self._lines.is_full and not self._lines.has_cut_lines:
            return ToolPreview(PreviewKind.WHOLE, tuple(self._lines.texts))
        texts = self._with_note.texts
        note, plain_note, mentions = self._notes(ref)
        last = max((index for index, text in enumerate(texts) if text), default=0)
        gap = "" if texts[last].endswith("\n") or not texts[last] else "\n"
        texts[last] += gap + note
        return ToolPreview(PreviewKind.CUT, tuple(texts), note, plain_note, mentions)

    def _notes(self, ref: ToolOutputRef) -> tuple[str, str, tuple[str, ...]]:
        shown = f"{self._with_note.shown_bytes:,} of {ref.byte_size:,} bytes shown"
        if self._with_note.is_full:
            offset = self._with_note.newlines
            how = f'Read the rest with {READ_LINES} ref_id="{ref.id}" offset={offset}'
            what, or_search, mentions = "Output cut", "or search it with", (READ_LINES, GREP)
        else:
            how = f'Read them whole with {READ_BYTES} ref_id="{ref.id}"'
            what, or_search, mentions = "Long lines cut", "or search them with", (READ_BYTES, GREP)
        note = f"[{what}: {shown}. {how}, {or_search} {GREP}.]"
        return note, f'[{what}: {shown}; ref="{ref.id}".]', mentions


def _reference(
    texts: Sequence[str], ref: ToolOutputRef, tool_name: str | None, max_bytes: int
) -> ToolPreview:
    plain_note = f'ref_id="{ref.id}"'
    note = f'Use the "{READ_BYTES}" tool with {plain_note} to read specific portions.'
    header = f'[Tool result stored — {ref.byte_size:,} bytes from "{tool_name or "tool"}".\n'
    header += f"First {EXCERPT_CHARACTERS} chars: "
    limit = max(0, max_bytes - len(encode(f"{header}]\n{note}")))
    excerpt = encode("".join(texts)[:EXCERPT_CHARACTERS])
    split = split_character(excerpt, limit) if limit < len(excerpt) else None
    excerpt = excerpt[: split[0] if split else limit]
    text = f"{header}{decode(excerpt)}]\n{note}"
    others = ("",) * (len(texts) - 1)
    return ToolPreview(PreviewKind.REFERENCE, (text, *others), note, plain_note, (READ_BYTES,))


class _PreviewText:
    """The texts of a preview, with lines cut at their limit, up to a number of bytes.

    `shown_bytes` counts bytes of the source. `newlines` counts newlines in them and between texts.
    `is_full` is true once a character was left out because of the byte limit.
    """

    def __init__(self, max_line_length: int, max_bytes: int) -> None:
        self.texts: list[str] = []
        self.shown_bytes = 0
        self.newlines = 0
        self.is_full = False
        self.has_cut_lines = False
        self._max_line_length = max_line_length
        self._remaining_bytes = max_bytes
        self._text: list[str] = []
        self._line = bytearray()
        self._is_skipping = False
        self._skipped_last = b""

    @property
    def has_open_text(self) -> bool:
        """Whether the current text has to be ended; the first one always has."""
        return bool(self._text or self._line or self._is_skipping or not self.texts)

    def feed(self, piece: bytes) -> None:
        at = 0
        while at < len(piece) and not self.is_full:
            start, at = at, self._add_run(piece, at)
            if at > start:
                continue
            end = piece.find(b"\n", at)
            if end < 0:
                self._buffer(piece[at:])
                return
            self._buffer(piece[at:end])
            self._end_line(b"\n")
            at = end + 1

    def end_text(self) -> None:
        if self._line or self._is_skipping:
            self._end_line(b"")
        self.texts.append("".join(self._text))
        self._text.clear()
        self.newlines += not self.is_full

    def _add_run(self, piece: bytes, at: int) -> int:
        """Add several whole lines at once, and return the position after them."""
        if self._line or self._is_skipping:
            return at
        # A byte outside a UTF-8 character becomes three bytes.
        limit = min(_RUN_BYTES, self._remaining_bytes // 3)
        stop = piece.rfind(b"\n", at, at + limit) + 1
        lines = piece[at:stop].split(b"\n")
        if max(map(len, lines)) > self._max_line_length:
            before = [*takewhile(lambda line: len(line) <= self._max_line_length, lines)]
            stop = at + sum(map(len, before)) + len(before)
        if stop <= at:
            return at
        run = piece[at:stop]
        text = decode_lossy(run)
        self._text.append(text)
        self._remaining_bytes -= len(encode(text))
        self.shown_bytes += len(run)
        self.newlines += run.count(b"\n")
        return stop

    def _buffer(self, part: bytes) -> None:
        if self._is_skipping:
            self._skipped_last = part[-1:] or self._skipped_last
            return
        # A line of this size is cut, even if it ends here.
        limit = min(
            (self._max_line_length + 2) * MAX_CHARACTER_BYTES,
            self._remaining_bytes + 2 * MAX_CHARACTER_BYTES,
        )
        self._line += part[: limit - len(self._line)]
        if len(self._line) >= limit:
            self._add_line(bytes(self._line))
            self._line.clear()
            self._is_skipping = True
            self._skipped_last = part[-1:]

    def _end_line(self, newline: bytes) -> None:
        if self._is_skipping:
            self._is_skipping = False
            has_return = self._skipped_last == b"\r"
        else:
            line = bytes(self._line)
            self._line.clear()
            has_return = line.endswith(b"\r")
            self._add_line(line[:-1] if has_return else line)
        end = b"\r" + newline if has_return else newline
        if end and not self.is_full:
            self._add(decode(end), end)
            self.newlines += newline != b"" and not self.is_full

    def _add_line(self, line: bytes) -> None:
        text = decode_lossy(line)
        if len(text) > self._max_line_length:
            text = text[: self._max_line_length]
            self.has_cut_lines = True
        self._add(text, line)

    def _add(self, text: str, source: bytes) -> None:
        """Add a text, cut at the byte limit; `source` are the bytes of its line."""
        data = encode(text)
        if len(data) > self._remaining_bytes:
            self.is_full = True
            split = split_character(data, self._remaining_bytes)
            text = decode(data[: split[0] if split else self._remaining_bytes])
            data = encode(text)
        self._text.append(text)
        self._remaining_bytes -= len(data)
        whole = data == source
        self.shown_bytes += len(source) if whole else prefix_size(source, len(text))

"""Views of large tool results: the shortened text that the model sees (F1, F2).

1. Every line is cut at `max_line_length` characters and keeps its end; lines follow until the
   next character would take the text over `max_message_bytes` of UTF-8.
2. If nothing is cut, the view is the whole text. Otherwise a note follows on a line of its own
   and says how to get the rest. The note counts towards `max_message_bytes`; where that is less
   than the note takes, the view is the note.
3. Every note exists a second time without the names of tools, for payloads that have none (L1).
4. The texts of one result share the bytes, in order. The offset in a note counts the lines of
   all of them, joined by newlines as they are in the blob.
5. Bytes are fed in pieces of any size, and only what is shown is kept: the view of a stream is
   that of the same text in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from app.domain.common.policy import ToolOutputPolicy
from app.domain.common.policy import ToolView as ViewMode
from app.domain.tool_output.blobs import (
    MAX_CHARACTER_BYTES,
    ToolOutputRef,
    character_across,
    decode,
    encode,
    prefix_size,
    show,
)

READ_LINES = "tool_output_cache"
GREP = "tool_output_cache_grep"
READ_BYTES = "read_result"
TOOL_SEARCH = "tool_search"
COMPACT_CONTEXT = "compact_context"
RECALL = "recall"
TOOL_NAMES = (READ_LINES, GREP, READ_BYTES, TOOL_SEARCH, COMPACT_CONTEXT, RECALL)
"""The service's own tools, whose results are never offloaded (L1, decision 27).

The first three read what a view leaves out.
"""

NOTE_BYTES = 224
"""What a note and the newline before it take at most."""
OPENING_CHARACTERS = 200
"""How much of a result a reference shows (F2)."""
_RUN_BYTES = 4096


class PreviewKind(StrEnum):
    """What a view is: all of the text, as much as fits, or a reference with its opening."""

    WHOLE = "whole"
    CUT = "cut"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class PreviewRules:
    """How views are made, out of a policy; lengths of lines are in characters (F2)."""

    mode: ViewMode
    max_line_length: int
    max_message_bytes: int

    @classmethod
    def of(cls, output: ToolOutputPolicy) -> PreviewRules:
        """Return the rules that a policy sets."""
        return cls(output.view, output.max_line_length, output.max_message_bytes)


@dataclass(frozen=True, slots=True)
class ToolView:
    """What is shown of a result, one text for each of its texts.

    `note` closes the last text that is not empty, `plain_note` may stand in its place where the
    tools in `mentions` are absent (rule 3); both are empty for a whole view.
    """

    kind: PreviewKind
    texts: tuple[str, ...]
    note: str = ""
    plain_note: str = ""
    mentions: tuple[str, ...] = ()


def should_offload(size_bytes: int, output: ToolOutputPolicy) -> bool:
    """Whether a result of this size goes into a blob and is shown as a view (F1)."""
    least = min(output.offload_threshold_bytes, output.max_message_bytes)
    return output.enabled and size_bytes > least


def has_long_line(text: str, max_line_length: int) -> bool:
    """Whether a view would cut a line of the text (rule 1)."""
    if len(text) <= max_line_length:
        return False
    start = 0
    while (end := text.find("\n", start)) >= 0:
        if end - start > max_line_length:
            return True
        start = end + 1
    return len(text) - start > max_line_length


def placeholder(ref: str, byte_size: int, *, named: bool) -> str:
    """Return what stands in the place of a trimmed result, its tool named or not (F3, L1)."""
    how = f"; read with {READ_LINES}" if named else ""
    return f"[tool output trimmed; ref={ref}; {byte_size:,} bytes{how}]"


def preview_of_texts(
    texts: Sequence[str], rules: PreviewRules, ref: ToolOutputRef, tool_name: str | None
) -> ToolView:
    """Return the view of a result's texts, in their order (F2, rule 4)."""
    if not texts or (rules.mode is ViewMode.TRUNCATE and _fits(texts, rules)):
        return ToolView(PreviewKind.WHOLE, tuple(texts))
    builder = PreviewBuilder(rules)
    for text in texts:
        builder.feed(encode(text))
        builder.end_text()
    return builder.finish(ref, tool_name)


def _fits(texts: Sequence[str], rules: PreviewRules) -> bool:
    """Whether it is plain to see that nothing has to be cut."""
    if sum(map(len, texts)) > rules.max_message_bytes:
        return False
    longest = max(len(line) for text in texts for line in text.split("\n"))
    size = sum(len(encode(text)) for text in texts)
    return longest <= rules.max_line_length and size <= rules.max_message_bytes


class PreviewBuilder:
    """Makes the view of what it is fed, in constant memory (rule 5)."""

    def __init__(self, rules: PreviewRules) -> None:
        self._mode, self._most_bytes = rules.mode, rules.max_message_bytes
        if rules.mode is ViewMode.REFERENCE:
            most = OPENING_CHARACTERS * MAX_CHARACTER_BYTES
            self._lines = _Lines(most + 1, most)
            self._noted = self._lines
        else:
            most = rules.max_message_bytes
            self._lines = _Lines(rules.max_line_length, most)
            # Whether there will be a note is known at the end, so its room is kept from the start.
            self._noted = _Lines(rules.max_line_length, max(0, most - NOTE_BYTES))

    @property
    def is_full(self) -> bool:
        """Whether nothing fed from here on can change the view."""
        return self._lines.is_full

    def feed(self, piece: bytes) -> None:
        """Take in more bytes of the text under way."""
        self._lines.feed(piece)
        if self._noted is not self._lines:
            self._noted.feed(piece)

    def end_text(self) -> None:
        """End the text under way; what is fed next belongs to another one (rule 4)."""
        self._lines.end_text()
        if self._noted is not self._lines:
            self._noted.end_text()

    def finish(self, ref: ToolOutputRef, tool_name: str | None = None) -> ToolView:
        """Return the view of all that was fed, with the notes for this ref."""
        if self._lines.has_open_text:
            self.end_text()
        if self._mode is ViewMode.REFERENCE:
            return _reference(self._lines.texts, ref, tool_name, self._most_bytes)
        if not self._lines.is_full and not self._lines.has_cut_lines:
            return ToolView(PreviewKind.WHOLE, tuple(self._lines.texts))
        texts = self._noted.texts
        note, plain_note, mentions = self._notes(ref)
        last = max((index for index, text in enumerate(texts) if text), default=0)
        gap = "" if texts[last].endswith("\n") or not texts[last] else "\n"
        texts[last] += gap + note
        return ToolView(PreviewKind.CUT, tuple(texts), note, plain_note, mentions)

    def _notes(self, ref: ToolOutputRef) -> tuple[str, str, tuple[str, ...]]:
        shown = f"{self._noted.shown_bytes:,} of {ref.byte_size:,} bytes shown"
        if self._noted.is_full:
            how = f'Read the rest with {READ_LINES} ref_id="{ref.id}" offset={self._noted.newlines}'
            what, or_search, mentions = "Output cut", "or search it with", (READ_LINES, GREP)
        else:
            how = f'Read them whole with {READ_BYTES} ref_id="{ref.id}"'
            what, or_search, mentions = "Long lines cut", "or search them with", (READ_BYTES, GREP)
        note = f"[{what}: {shown}. {how}, {or_search} {GREP}.]"
        return note, f'[{what}: {shown}; ref="{ref.id}".]', mentions


def _reference(
    texts: Sequence[str], ref: ToolOutputRef, tool_name: str | None, most_bytes: int
) -> ToolView:
    plain_note = f'ref_id="{ref.id}"'
    note = f'Use the "{READ_BYTES}" tool with {plain_note} to read specific portions.'
    head = f'[Tool result stored — {ref.byte_size:,} bytes from "{tool_name or "tool"}".\n'
    head += f"First {OPENING_CHARACTERS} chars: "
    room = max(0, most_bytes - len(encode(f"{head}]\n{note}")))
    opening = encode("".join(texts)[:OPENING_CHARACTERS])
    across = character_across(opening, room) if room < len(opening) else None
    text = f"{head}{decode(opening[: across[0] if across else room])}]\n{note}"
    others = ("",) * (len(texts) - 1)
    return ToolView(PreviewKind.REFERENCE, (text, *others), note, plain_note, (READ_BYTES,))


class _Lines:
    """Keeps the lines that are shown, each cut to its length, as far as the bytes reach.

    `shown_bytes` are bytes of the source, `newlines` those among them and between texts; `is_full`
    once something had to be left out because it went over the bytes.
    """

    def __init__(self, max_line_length: int, max_bytes: int) -> None:
        self.texts: list[str] = []
        self.shown_bytes = 0
        self.newlines = 0
        self.is_full = False
        self.has_cut_lines = False
        self._max_line_length = max_line_length
        self._room = max_bytes
        self._text: list[str] = []
        self._line = bytearray()
        self._is_skipping = False
        self._skipped_last = b""

    @property
    def has_open_text(self) -> bool:
        """Whether the text under way has to be ended; the first one always has."""
        return bool(self._text or self._line or self._is_skipping or not self.texts)

    def feed(self, piece: bytes) -> None:
        at = 0
        while at < len(piece) and not self.is_full:
            start, at = at, self._take_run(piece, at)
            if at > start:
                continue
            end = piece.find(b"\n", at)
            if end < 0:
                self._hold(piece[at:])
                return
            self._hold(piece[at:end])
            self._end_line(b"\n")
            at = end + 1

    def end_text(self) -> None:
        if self._line or self._is_skipping:
            self._end_line(b"")
        self.texts.append("".join(self._text))
        self._text.clear()
        self.newlines += not self.is_full

    def _take_run(self, piece: bytes, at: int) -> int:
        """Take lines that fit whole at once, and return where they end."""
        if self._line or self._is_skipping:
            return at
        # A byte that is in no character is shown as three.
        most = min(_RUN_BYTES, self._room // 3)
        stop = piece.rfind(b"\n", at, at + most) + 1
        lines = piece[at:stop].split(b"\n")
        if max(map(len, lines)) > self._max_line_length:
            before = [*takewhile(lambda line: len(line) <= self._max_line_length, lines)]
            stop = at + sum(map(len, before)) + len(before)
        if stop <= at:
            return at
        run = piece[at:stop]
        text = show(run)
        self._text.append(text)
        self._room -= len(encode(text))
        self.shown_bytes += len(run)
        self.newlines += run.count(b"\n")
        return stop

    def _hold(self, part: bytes) -> None:
        if self._is_skipping:
            self._skipped_last = part[-1:] or self._skipped_last
            return
        # With so many bytes the line is cut, whatever follows and be it its end.
        enough = min(
            (self._max_line_length + 2) * MAX_CHARACTER_BYTES,
            self._room + 2 * MAX_CHARACTER_BYTES,
        )
        self._line += part[: enough - len(self._line)]
        if len(self._line) >= enough:
            self._take_line(bytes(self._line))
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
            self._take_line(line[:-1] if has_return else line)
        end = b"\r" + newline if has_return else newline
        if end and not self.is_full:
            self._take(decode(end), end)
            self.newlines += newline != b"" and not self.is_full

    def _take_line(self, line: bytes) -> None:
        text = show(line)
        if len(text) > self._max_line_length:
            text = text[: self._max_line_length]
            self.has_cut_lines = True
        self._take(text, line)

    def _take(self, text: str, source: bytes) -> None:
        """Show a text, as far as there is room; it is the beginning of what `source` shows."""
        data = encode(text)
        if len(data) > self._room:
            self.is_full = True
            across = character_across(data, self._room)
            text = decode(data[: across[0] if across else self._room])
            data = encode(text)
        self._text.append(text)
        self._room -= len(data)
        whole = data == source
        self.shown_bytes += len(source) if whole else prefix_size(source, len(text))

"""Digests: the text of the built-in summariser, in sections of one-line items.

1. A digest can be read back: a later digest has the items of an earlier one, newest last.
   Items that do not fit are dropped from the oldest, and counted.
2. The text never exceeds `max_chars`. Each section has a share. What one does not use is given
   to the sections above it in the list, requests and decisions first.
3. An earlier summary that is no digest is kept as quoted lines, within its share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

ITEM_CHARS = 300
LATEST_CHARS = 1200
_MAX_ITEMS = 400

HEADING = "Digest of the earlier conversation, picked out without a model."

REQUESTS = "User requests"
REQUIREMENTS = "Requirements and preferences"
DECISIONS = "Decisions and findings"
LATEST = "Last assistant message"
OPEN = "Open items"
ERRORS = "Errors"
FILES = "Files"
IDENTIFIERS = "Identifiers and links"
TOOLS = "Tools used"
EARLIER = "Earlier summary"

SHARES: dict[str, float] = {
    REQUESTS: 0.20,
    REQUIREMENTS: 0.10,
    DECISIONS: 0.18,
    LATEST: 0.12,
    OPEN: 0.10,
    ERRORS: 0.08,
    FILES: 0.08,
    IDENTIFIERS: 0.06,
    TOOLS: 0.03,
    EARLIER: 0.05,
}
"""The sections in order, each with the share of the text it may take when all are full."""

_COUNT_CHARS = 40
"""Reserved for the line that counts the items left out."""
_SPACE = re.compile(r"\s+")
_OMITTED = re.compile(r"^\((\d+) (?:earlier|more) not listed\)$")
_TOOL_LINE = re.compile(r"^(.+) ×(\d+)(?:, (\d+) failed)?$")  # noqa: RUF001 - as written below


@dataclass(slots=True)
class Digest:
    """The items of each section, in the order of last mention.

    `omitted` counts the items left out of each section, `tools` the calls and failures of each
    tool.
    """

    items: dict[str, dict[str, None]] = field(default_factory=lambda: {s: {} for s in SHARES})
    omitted: dict[str, int] = field(default_factory=dict)
    tools: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, section: str, item: str, max_chars: int = ITEM_CHARS) -> None:
        """Put an item last in its section; the oldest beyond the limit is only counted."""
        line = one_line(item, max_chars)
        if not line:
            return
        lines = self.items[section]
        lines.pop(line, None)
        lines[line] = None
        if len(lines) > _MAX_ITEMS:
            del lines[next(iter(lines))]
            self.omit(section, 1)

    def omit(self, section: str, count: int) -> None:
        """Count items that are left out of a section."""
        self.omitted[section] = self.omitted.get(section, 0) + count

    def count_tool(self, name: str, calls: int, failures: int) -> None:
        """Add calls and failures of a tool."""
        earlier_calls, earlier_failures = self.tools.get(name, (0, 0))
        self.tools[name] = (earlier_calls + calls, earlier_failures + failures)


def one_line(text: str, max_chars: int) -> str:
    """Return the text on one line, cut with an ellipsis."""
    line = _SPACE.sub(" ", text[: 2 * max_chars + 200]).strip()
    cut = len(line) > max_chars
    return f"{line[: max_chars - 1].rstrip()}…" if cut else line


def read_digest(text: str) -> Digest:
    """Read an earlier digest back; any other text becomes its earlier summary."""
    digest = Digest()
    if not text.startswith(HEADING):
        for line in text.splitlines():
            digest.add(EARLIER, line, LATEST_CHARS)
        return digest
    section: str | None = None
    for line in text.splitlines()[1:]:
        if line.startswith("## "):
            section = line[3:] if line[3:] in SHARES else None
        elif section is not None and line.startswith("- "):
            _read_item(digest, section, line[2:])
    return digest


def _read_item(digest: Digest, section: str, item: str) -> None:
    if omitted := _OMITTED.match(item):
        digest.omit(section, int(omitted[1]))
    elif section == TOOLS:
        if counted := _TOOL_LINE.match(item):
            digest.count_tool(counted[1], int(counted[2]), int(counted[3] or 0))
    else:
        digest.add(section, item, LATEST_CHARS)


def render_digest(digest: Digest, max_chars: int) -> str:
    """Return the text of a digest, at most `max_chars` characters long."""
    digest.items[TOOLS] = dict.fromkeys(_tool_lines(digest.tools))
    filled = [section for section in SHARES if digest.items[section] or section in digest.omitted]
    limits = _section_limits(digest, filled, max_chars - len(HEADING))
    parts = [HEADING]
    for section in filled:
        lines = _section_lines(digest, section, limits[section])
        if lines:
            parts.append("\n".join((f"\n## {section}", *lines)))
    return "\n".join(parts)[: max(max_chars, 0)]


def _tool_lines(tools: dict[str, tuple[int, int]]) -> Iterator[str]:
    """Yield the tools, the most used last, because the first are dropped first."""
    for name, (calls, failures) in sorted(tools.items(), key=lambda tool: (tool[1], tool[0])):
        failed = f", {failures} failed" if failures else ""
        yield f"{name} ×{calls}{failed}"  # noqa: RUF001 - a multiplication sign is meant


def _section_limits(digest: Digest, filled: Sequence[str], max_chars: int) -> dict[str, int]:
    """Return the limit of each section: its share, and characters that others do not use."""
    total = sum(SHARES[section] for section in filled) or 1.0
    needs = {section: _needed_chars(digest, section) for section in filled}
    limits = {
        section: min(needs[section], int(max_chars * SHARES[section] / total)) for section in filled
    }
    unused_chars = max_chars - sum(limits.values())
    for section in filled:
        added_chars = min(unused_chars, needs[section] - limits[section])
        limits[section] += added_chars
        unused_chars -= added_chars
    return limits


def _needed_chars(digest: Digest, section: str) -> int:
    lines = sum(len(item) + 3 for item in digest.items[section])
    return lines + len(section) + 6 + (_COUNT_CHARS if section in digest.omitted else 0)


def _section_lines(digest: Digest, section: str, max_chars: int) -> list[str]:
    """Return the newest items that fit, oldest first, and a count of those that do not."""
    items = list(digest.items[section])
    omitted = digest.omitted.get(section, 0)
    remaining_chars = max_chars - len(section) - 6
    if omitted or sum(len(item) + 3 for item in items) > remaining_chars:
        remaining_chars -= _COUNT_CHARS
    lines: list[str] = []
    while items and len(items[-1]) + 3 <= remaining_chars:
        lines.append(f"- {items.pop()}")
        remaining_chars -= len(lines[-1]) + 1
    omitted += len(items)
    if items and not lines and remaining_chars > _COUNT_CHARS:
        lines.append(f"- {one_line(items[-1], remaining_chars - 3)}")
        omitted -= 1
    if omitted and remaining_chars + _COUNT_CHARS >= 0:
        which = "more" if section == TOOLS else "earlier"
        lines.append(f"- ({omitted} {which} not listed)")
    return lines[::-1]

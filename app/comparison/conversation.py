"""Reads the conversation to compare: an export, or JSON of messages in any of the four formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from app.demo import leading_sections, text_of
from app.domain.common import json_text
from app.domain.common.messages import FormatName

MAX_FILE_BYTES = 64 * 2**20
MAX_NAMED = 10
"""How many conversations of a file an error names."""
_ITEMS = {"messages": None, "input": FormatName.OPENAI_RESPONSES, "contents": FormatName.GEMINI}
"""The fields that hold a request's messages, and the format that each is of."""
_ANTHROPIC_BLOCKS = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"}
)
_SYSTEM_FIELDS = ("system", "instructions", "systemInstruction", "system_instruction")


@dataclass(frozen=True, slots=True)
class Appended:
    """A message as it is appended; `pinned` of a message of an export that was pinned."""

    format: FormatName
    raw: Mapping[str, Any]
    pinned: bool = False

    @property
    def is_answer(self) -> bool:
        """Whether a model wrote it."""
        role, kind = self.raw.get("role"), str(self.raw.get("type", ""))
        return role in ("assistant", "model") or (role is None and not kind.endswith("_output"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A conversation to replay; `policy` is what an export's conversation overrides."""

    name: str
    format: FormatName
    messages: Sequence[Appended]
    sections: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Any] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Export:
    """An export as it was written, which an import reads."""

    name: str
    data: bytes


def read(path: Path, wanted: str | None, format: FormatName | None) -> Recorded | Export:
    """Read the conversation of a file, the one with the id or number `wanted` if it holds several.

    Raises click.ClickException that says what is wrong with the file.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise click.ClickException(
            f"{path.name} has {size:,} bytes; a file to compare may have {MAX_FILE_BYTES:,}."
        )
    data = path.read_bytes()
    if _is_export(data):
        if wanted is not None or format is not None:
            raise click.ClickException(
                f"{path.name} is an export, which holds one conversation in its own format:"
                " leave out --conversation and --format."
            )
        return Export(path.name, data)
    found = list(_conversations(data, path.name))
    number, raw = _chosen(found, wanted, path.name)
    return _recorded(raw, f"{path.name}, conversation {number}", format)


def _is_export(data: bytes) -> bool:
    first, _, _ = data.lstrip().partition(b"\n")
    try:
        line = json_text.loads(first)
    except ValueError:
        return False
    return isinstance(line, dict) and line.get("type") == "export" and "version" in line


def _conversations(data: bytes, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the conversations of a file; messages alone are one conversation."""
    try:
        values = [json_text.loads(data)]
    except ValueError as exc:
        values = list(_lines(data, name, exc))
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not values or not all(isinstance(value, dict) for value in values):
        raise click.ClickException(f"{name} holds no messages: JSON objects are expected.")
    whole = [any(isinstance(value.get(key), list) for key in _ITEMS) for value in values]
    if all(whole):
        yield from values
    elif any(whole):
        place = whole.index(not whole[0]) + 1
        raise click.ClickException(f"{name} mixes conversations and messages, at number {place}.")
    else:
        yield {"messages": values}


def _lines(data: bytes, name: str, of_whole: ValueError) -> Iterator[Any]:
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if len(lines) < 2:
        raise click.ClickException(f"{name} is neither JSON nor lines of JSON ({of_whole}).")
    for number, line in lines:
        try:
            yield json_text.loads(line)
        except ValueError as exc:
            raise click.ClickException(
                f"{name} is neither JSON nor lines of JSON (line {number}: {exc})."
            ) from exc


def _chosen(
    found: Sequence[Mapping[str, Any]], wanted: str | None, name: str
) -> tuple[int, Mapping[str, Any]]:
    if wanted is None and len(found) == 1:
        return 1, found[0]
    for number, raw in enumerate(found, 1):
        if wanted is not None and wanted in (str(raw.get("id")), str(number)):
            return number, raw
    names = [str(raw.get("id") or number) for number, raw in enumerate(found[:MAX_NAMED], 1)]
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    problem = f"has no conversation {wanted!r}" if wanted is not None else "holds several"
    raise click.ClickException(
        f"{name} {problem}: choose one with --conversation, by its number or id:"
        f" {', '.join(names)}{more}."
    )


def _recorded(raw: Mapping[str, Any], place: str, format: FormatName | None) -> Recorded:
    key = next(key for key in _ITEMS if isinstance(raw.get(key), list))
    messages: list[Any] = raw[key]
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise click.ClickException(f"{place}: `{key}` holds no messages.")
    sections, messages = leading_sections(messages)
    systems = [text for name in _SYSTEM_FIELDS if (text := _system_text(raw.get(name)))]
    sections = [
        *({"name": f"system-field-{at}", "content": text} for at, text in enumerate(systems, 1)),
        *sections,
    ]
    chosen = format or _named_format(raw) or _ITEMS[key] or _format_of(raw, messages)
    name = str(raw.get("id") or place)
    appended = [Appended(chosen, message) for message in messages]
    if not appended:
        raise click.ClickException(f"{place}: there are no messages after the system prompt.")
    return Recorded(name, chosen, appended, sections, list(_tools(raw.get("tools"))))


def _named_format(raw: Mapping[str, Any]) -> FormatName | None:
    name = raw.get("format")
    return FormatName(name) if name in {known.value for known in FormatName} else None


def _tools(tools: object) -> Iterator[Any]:
    """Yield the tools one by one; Gemini has the declarations of several in one."""
    for tool in tools if isinstance(tools, list) else ():
        declared = tool.get("functionDeclarations") if isinstance(tool, dict) else None
        yield from declared if isinstance(declared, list) else (tool,)


def _system_text(system: object) -> str:
    if isinstance(system, dict):
        system = system.get("parts")
    return text_of(system)


def _format_of(raw: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> FormatName:
    """Return the format that messages look like: what they do not share with OpenAI Chat."""
    if "system" in raw:
        return FormatName.ANTHROPIC
    for message in messages:
        if "parts" in message:
            return FormatName.GEMINI
        if "role" not in message or "output" in message:
            return FormatName.OPENAI_RESPONSES
        content = message.get("content")
        blocks = content if isinstance(content, list) else ()
        kinds = {block.get("type") for block in blocks if isinstance(block, dict)}
        if kinds & _ANTHROPIC_BLOCKS:
            return FormatName.ANTHROPIC
        if any(str(kind).startswith(("input_", "output_")) for kind in kinds - {"input_audio"}):
            return FormatName.OPENAI_RESPONSES
    return FormatName.OPENAI_CHAT

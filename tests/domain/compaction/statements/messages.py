"""Messages and summaries for tests of statements."""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.compaction.summaries.statements.fitting import FittedSummary, fit
from app.compaction.summaries.statements.ledger import StatementLedger
from app.compaction.summaries.statements.statement import Kind, Statement
from app.compaction.summaries.statements.summary_text import Closing, read_into
from app.formats.message import Message, Role, Text, ToolCall

PLENTY = 6000


def count(text: str) -> int:
    """Return a token for each four characters, and for each wide one."""
    wide = sum(character > "\u2e80" for character in text)
    return (len(text) - wide + 3) // 4 + wide


def user(text: str) -> Message:
    """Return a user message."""
    return Message(Role.USER, (Text(text),))


def assistant(text: str, *calls: ToolCall) -> Message:
    """Return an assistant message."""
    return Message(Role.ASSISTANT, (Text(text), *calls))


def call(call_id: str, name: str, **arguments: object) -> ToolCall:
    """Return a tool call."""
    return ToolCall(call_id, name, json.dumps(arguments))


def result(text: str, call_id: str, *, failed: bool = False) -> Message:
    """Return a tool message."""
    return Message(Role.TOOL, (Text(text),), tool_call_id=call_id, is_error=failed)


def run(call_id: str, command: str, output: str, *, failed: bool = False) -> list[Message]:
    """Return a shell command with its output."""
    return [
        assistant("", call(call_id, "bash", command=command)),
        result(output, call_id, failed=failed),
    ]


def summarised(
    messages: Sequence[Message],
    previous: str | None = None,
    tokens: int = PLENTY,
    closing: Closing | None = None,
    *,
    opens: bool = True,
) -> FittedSummary:
    """Return the summary of messages after an earlier one."""
    ledger = StatementLedger()
    if previous is not None:
        read_into(ledger, previous)
    if opens:
        ledger.expect_first_request()
    for message in messages:
        ledger.add_message(message)
    return fit(ledger, tokens, count, closing or Closing())


def statements_of(messages: Sequence[Message]) -> list[Statement]:
    """Return what messages state, oldest mention first, replaced statements left out."""
    ledger = StatementLedger()
    for message in messages:
        ledger.add_message(message)
    found = [entry.statement for entry in ledger.entries()]
    return [statement for statement in found if statement.kind is not Kind.REPLACED]


def sections(text: str) -> dict[str, list[str]]:
    """Return the items of a summary by section, read apart from the service's own reader."""
    found: dict[str, list[str]] = {}
    items: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            items = found.setdefault(line[3:], [])
        elif line.startswith("- "):
            items.append(line[2:])
        elif line.startswith("  ") and items:
            items[-1] += f"\n{line[2:]}"
    return found

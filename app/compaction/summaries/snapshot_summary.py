"""The summary of a snapshot without a model: two to four sentences about its messages."""

from __future__ import annotations

from collections.abc import Sequence

from app.compaction.summaries.statements.calls import shortened
from app.compaction.summaries.statements.segments import segments
from app.formats.message import Message, Role, Text, ToolCall

SENTENCE_CHARS = 160
SCAN_CHARS = 2048


def extract_snapshot_summary(
    message_count: int, conversation_count: int, first: Sequence[Message], last: Sequence[Message]
) -> str:
    """Return a few sentences about the messages of a snapshot: requests, last answer, open calls.

    `first` are some of the beginning, `last` some of the end.
    """
    content = (
        f"{_counted(message_count, 'message')} of {_counted(conversation_count, 'conversation')}"
    )
    requests = [text for text in map(_request, first) if text]
    latest = [text for text in map(_request, last) if text] or requests
    sentences = [f"A window of {content}."]
    if not requests:
        sentences.append("Nothing was asked in it.")
    elif requests[0] == latest[-1]:
        sentences.append(f"Asked was “{requests[0]}”.")
    else:
        sentences.append(f"First asked was “{requests[0]}”, last “{latest[-1]}”.")
    answers = [message.text for message in last if message.role is Role.ASSISTANT]
    answer = next((text for text in reversed(answers) if text.strip()), None)
    if answer is not None:
        sentences.append(f"The last answer began “{_first_sentence(answer)}”.")
    if open_items := _open_items(last):
        sentences.append(open_items)
    return " ".join(sentences)


def _request(message: Message) -> str:
    return _first_sentence(opening_text(message)) if message.role is Role.USER else ""


def opening_text(message: Message) -> str:
    """Return the beginning of a user's text, or the kinds of the parts where there is no text."""
    for part in message.parts:
        if isinstance(part, Text) and (text := part.text[:SCAN_CHARS].strip()):
            return text
    kinds = sorted({type(part).__name__.lower() for part in message.parts})
    return f"[{', '.join(kinds)}]" if kinds else ""


def _first_sentence(text: str) -> str:
    first = next(segments(text[:SCAN_CHARS]), None)
    return shortened(first.text if first is not None else "", SENTENCE_CHARS).rstrip(".。")


def _open_items(messages: Sequence[Message]) -> str | None:
    calls = [shortened(call.name, 80) or "a tool" for call in unanswered_calls(messages)]
    if calls:
        more = f" and {len(calls) - 3} more" if len(calls) > 3 else ""
        return f"Open is the result of {', '.join(calls[:3])}{more}."
    if messages and messages[-1].role is Role.USER:
        return "The last request is not answered yet."
    return None


def unanswered_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the calls of the last call group that have no result yet."""
    answered: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            answered.add(message.tool_call_id)
        else:
            return [call for call in message.calls if call.id not in answered]
    return []


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

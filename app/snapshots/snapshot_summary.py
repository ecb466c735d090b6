"""The summary of a snapshot without a model: two to four sentences about its messages."""

from __future__ import annotations

from collections.abc import Sequence

from app.compaction.summaries.sentences import one_line, sentences
from app.formats.message import Message, Role

SENTENCE_CHARS = 160
SCAN_CHARS = 2048


def extract_snapshot_summary(
    message_count: int, conversation_count: int, first: Sequence[Message], last: Sequence[Message]
) -> str:
    """Return a few sentences about the messages of a snapshot: requests, last answer, open calls.

    `first` are some of the beginning, `last` some of the end.
    """
    requests = [text for text in map(_request, first) if text]
    latest = [text for text in map(_request, last) if text] or requests
    counts = f"{message_count:,} message{'s' * (message_count != 1)}"
    counts += f" of {conversation_count:,} conversation{'s' * (conversation_count != 1)}"
    found = [f"A window of {counts}."]
    if not requests:
        found.append("Nothing was asked in it.")
    elif requests[0] == latest[-1]:
        found.append(f"Asked was “{requests[0]}”.")
    else:
        found.append(f"First asked was “{requests[0]}”, last “{latest[-1]}”.")
    answers = (message.text for message in reversed(last) if message.role is Role.ASSISTANT)
    if answer := next((text for text in answers if text.strip()), None):
        found.append(f"The last answer began “{_first_sentence(answer)}”.")
    return " ".join(filter(None, (*found, _open_items(last))))


def _request(message: Message) -> str:
    """Return the first sentence of a user's text."""
    return _first_sentence(message.text) if message.role is Role.USER else ""


def _first_sentence(text: str) -> str:
    first = next(sentences(text[:SCAN_CHARS].strip()), "")
    return one_line(first, SENTENCE_CHARS).rstrip(".。")


def _open_items(messages: Sequence[Message]) -> str:
    if messages and messages[-1].role is Role.USER:
        return "The last request is not answered yet."
    answered = {message.tool_call_id for message in messages}
    last = next((each for each in reversed(messages) if each.role is not Role.TOOL), None)
    open_calls = [call for call in last.calls if call.id not in answered] if last else []
    names = ", ".join(one_line(call.name, 80) or "a tool" for call in open_calls[:3])
    more = " and more" * (len(open_calls) > 3)
    return f"Open is the result of {names}{more}." if open_calls else ""

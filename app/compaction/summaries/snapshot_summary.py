"""The summary of a snapshot without a model: two to four sentences about its messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

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
    """Return the first sentence of a user's text."""
    return _first_sentence(message.text) if message.role is Role.USER else ""


def _first_sentence(text: str) -> str:
    first = next(sentences(text[:SCAN_CHARS].strip()), "")
    return one_line(first, SENTENCE_CHARS).rstrip(".。")


def _open_items(messages: Sequence[Message]) -> str | None:
    results = list(takewhile(lambda message: message.role is Role.TOOL, reversed(messages)))
    last = messages[-len(results) - 1] if len(results) < len(messages) else None
    answered = {message.tool_call_id for message in results}
    open_calls = [call for call in last.calls if call.id not in answered] if last else []
    if open_calls:
        names = ", ".join(one_line(call.name, 80) or "a tool" for call in open_calls[:3])
        return f"Open is the result of {names}{' and more' * (len(open_calls) > 3)}."
    if last is not None and not results and last.role is Role.USER:
        return "The last request is not answered yet."
    return None


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

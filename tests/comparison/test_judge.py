"""What survives: a statement's text, or its values and words, in the text of a payload.

[compaction.compare]
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.comparison.judge import REACH, detected, flat, payload_text, stays, survives
from app.domain.common.messages import Message, Role, Text, ToolCall
from app.domain.compaction.summaries.statements.statement import Kind

STATEMENT = "The staging database listens on port 6543, never on the default one."


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (STATEMENT, True),
        (f"Notes.\n- {STATEMENT.upper()}\n", True),
        (STATEMENT.replace(" ", "\n  "), True),
        ("Staging: the database listens at port 6543.", True),
        ("The staging database listens on port 6544, never on the default one.", False),
        ("Port 6543 is mentioned without any more.", False),
        (f"The staging database listens.{' x' * REACH} Number 6543.", False),
        ("", False),
    ],
)
def test_a_statement_survives_by_its_values(payload: str, expected: bool) -> None:
    """All values and most words, near each other; another value is another statement."""
    assert survives(STATEMENT, flat(payload)) is expected


@pytest.mark.parametrize(
    ("statement", "payload", "expected"),
    [
        ("Always answer politely in short sentences", "answers: polite, short sentences", True),
        ("Always answer politely in short sentences", "answer whatever you like", False),
        ("Fine", "something else entirely", False),
        ("ポートは必ず使ってください", "ポートは必ず使ってください。", True),
        ("ポートは必ず使ってください", "ポートは使わない", False),
    ],
)
def test_a_statement_without_values_survives_by_its_words(
    statement: str, payload: str, expected: bool
) -> None:
    """Most of its words are needed; text without spaces is compared whole."""
    assert survives(statement, flat(payload)) is expected


@given(st.text(min_size=1), st.text(max_size=300), st.text(max_size=300))
def test_a_text_that_stands_in_a_payload_survives(text: str, before: str, after: str) -> None:
    """Whatever the text, and whatever stands around it."""
    if flat(text):
        assert survives(text, flat(f"{before} {text} {after}"))


def test_the_text_of_every_format_is_read() -> None:
    """Arguments in a string are read as the texts in them; ids and media are not."""
    arguments = json.dumps({"todos": [{"content": "line one\nline two"}]})
    text = payload_text(
        {
            "system": [{"type": "text", "text": "Be Kind"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Port 1"}]},
                {"tool_calls": [{"id": "id-1", "function": {"arguments": arguments}}]},
                {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;x"}}]},
            ],
            "contents": [{"parts": [{"functionCall": {"args": {"path": "src/a.py"}}}]}],
        }
    )
    for expected in ("be kind", "port 1", "line one line two", "src/a.py"):
        assert expected in text
    assert survives("src/b.py", payload_text({"args": {"path": "C:\\src\\b.py"}}))
    assert "id-1" not in text and "data:" not in text


def test_a_message_stays_with_all_its_texts() -> None:
    """The text and the arguments of calls."""
    call = ToolCall("c1", "edit", json.dumps({"path": "a.py", "text": "x = 1\ny = 2"}))
    message = Message(Role.ASSISTANT, (Text("Editing."), call))
    assert stays(message, flat('Editing. "a.py" x = 1 y = 2'))
    assert not stays(message, flat('Editing. "a.py"'))


def test_what_is_read_from_calls_is_judged_by_its_own_words() -> None:
    """Tasks without marks and numbers; no description of a call that has no result."""
    todos = {"todos": [{"id": "7", "content": "Write the parser", "status": "pending"}]}
    call = ToolCall("c1", "TodoWrite", json.dumps(todos))
    asked = ToolCall("c2", "Read", json.dumps({"file_path": "/src/a.py"}))
    messages = [
        Message(Role.ASSISTANT, (call,)),
        Message(Role.TOOL, (Text("ok"),), tool_call_id="c1"),
        Message(Role.ASSISTANT, (asked,)),
    ]
    assert detected(messages) == {Kind.TODO: ["Write the parser"]}


def test_statements_are_detected_by_kind() -> None:
    """What was replaced is not asked for, and kinds without statements are left out."""
    said = ["From now on answer in French.", "The port is 8080.", "Update: the port is now 9090."]
    messages = [Message(Role.USER, (Text(text),)) for text in said]
    found = detected(messages)
    assert found[Kind.STANDING] == ["From now on answer in French."]
    everything = str(found)
    assert "9090" in everything and "8080" not in everything
    assert Kind.TODO not in found

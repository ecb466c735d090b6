"""Files to compare: formats are recognised, and what is wrong with a file is said.

[compaction.compare]
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from app.comparison.conversation import MAX_FILE_BYTES, Export, Recorded, read
from app.comparison.steps import neutral, rounds_of, segments
from app.domain.common.messages import FormatName

CONVERSATIONS = sorted((Path(__file__).parents[1] / "conversations").glob("*.json"))
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
FORMATS: list[tuple[Any, FormatName, str]] = [
    ({"messages": [{"role": "system", "content": "Be kind."}, *CHAT]}, FormatName.OPENAI_CHAT, "k"),
    (CHAT, FormatName.OPENAI_CHAT, ""),
    ({"system": "Be kind.", "messages": CHAT}, FormatName.ANTHROPIC, "k"),
    (
        [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}],
            }
        ],
        FormatName.ANTHROPIC,
        "",
    ),
    (
        {"instructions": "Be kind.", "input": [{"role": "user", "content": "Hi"}]},
        FormatName.OPENAI_RESPONSES,
        "k",
    ),
    (
        [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        FormatName.OPENAI_RESPONSES,
        "",
    ),
    (
        {
            "systemInstruction": {"parts": [{"text": "Be kind."}]},
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "tools": [{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}],
        },
        FormatName.GEMINI,
        "k",
    ),
    ([{"role": "user", "parts": [{"text": "Hi"}]}], FormatName.GEMINI, ""),
]


def written(folder: Path, text: str) -> Path:
    """Write a file and return its path."""
    path = folder / "talk.json"
    path.write_text(text, encoding="utf-8")
    return path


def recorded(path: Path, wanted: str | None = None) -> Recorded:
    """Read a conversation that is no export."""
    found = read(path, wanted, None)
    assert isinstance(found, Recorded)
    return found


@pytest.mark.parametrize(("value", "format", "system"), FORMATS)
@pytest.mark.parametrize("lines", [False, True], ids=["json", "lines"])
def test_formats_are_recognised(
    tmp_path: Path, value: Any, format: FormatName, system: str, lines: bool
) -> None:
    """JSON and lines of JSON are read, in all formats; the system prompt becomes a section."""
    items = value if isinstance(value, list) and lines else [value]
    found = recorded(written(tmp_path, "\n".join(map(json.dumps, items))))
    if isinstance(value, list) and lines and len(items) == 1:
        assert len(found.messages) == 1  # one message alone is a conversation as well
    assert found.format is format
    assert [section["content"] for section in found.sections] == ["Be kind."] * bool(system)
    assert all("functionDeclarations" not in tool for tool in found.tools)
    assert neutral(found.messages)[0].text in ("Hi", "1", "")


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_formats_are_recognised_by_the_messages(tmp_path: Path, path: Path) -> None:
    """Without the name of its format, a conversation is recognised by what is in it."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert recorded(written(tmp_path, json.dumps(raw))).format == raw.pop("format")
    named = recorded(written(tmp_path, json.dumps(raw)))
    assert named.format == json.loads(path.read_text(encoding="utf-8"))["format"]


def test_one_of_several_conversations_is_chosen(tmp_path: Path) -> None:
    """By number or id; without a choice the error names them."""
    several = [{"id": f"talk {at}", "messages": CHAT[:at]} for at in (1, 2)]
    path = written(tmp_path, "\n".join(map(json.dumps, several)))
    assert len(recorded(path, "2").messages) == len(recorded(path, "talk 2").messages) == 2
    for wanted in (None, "3"):
        with pytest.raises(click.ClickException, match=r"choose one .*: talk 1, talk 2"):
            read(path, wanted, None)


def test_an_export_is_kept_as_it_is(tmp_path: Path) -> None:
    """An import reads it; a format of its own would be a contradiction."""
    path = written(tmp_path, '{"type":"export","version":1}\n{"type":"end"}\n')
    found = read(path, None, None)
    assert isinstance(found, Export) and found.data == path.read_bytes()
    with pytest.raises(click.ClickException, match="is an export"):
        read(path, None, FormatName.GEMINI)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "neither JSON nor lines of JSON"),
        ("hello", "neither JSON nor lines of JSON"),
        ('{"role": "user"}\n{oops', "line 2"),
        ("[]", "holds no messages"),
        ("5", "holds no messages"),
        ('["a", "b"]', "holds no messages"),
        ('{"messages": []}', "holds no messages"),
        ('{"messages": ["a"]}', "holds no messages"),
        ('{"messages": [{"role": "system", "content": "a"}]}', "after the system prompt"),
        ('[{"messages": []}, {"role": "user"}]', "mixes conversations and messages, at number 2"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, error: str) -> None:
    """The error says what is wrong, and where."""
    with pytest.raises(click.ClickException, match=error):
        read(written(tmp_path, text), None, None)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """The size is checked before anything is read."""
    path = written(tmp_path, "")
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(click.ClickException, match="has 67,108,865 bytes"):
        read(path, None, None)


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rounds", [1, 3, 50])
def test_rounds_hold_every_message_once(path: Path, rounds: int) -> None:
    """Rounds are cut before answers of the model, and no message is left out or repeated."""
    found = recorded(path)
    steps = list(segments(found.messages))
    parts = rounds_of(steps, rounds)
    assert 1 <= len(parts) <= rounds
    assert [message for part in parts for step in part for message in step] == list(found.messages)
    assert all(step[0].is_answer for step in steps[1:])
    assert all(not step[-1].is_answer for step in steps[:-1])

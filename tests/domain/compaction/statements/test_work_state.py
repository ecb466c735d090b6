"""The state of the work is read from calls, never from prose. [summary.state-from-calls]"""

from __future__ import annotations

import pytest

from app.formats.message import Message
from tests.domain.compaction.statements.messages import (
    assistant,
    call,
    result,
    run,
    sections,
    summarised,
    user,
)

TODOS = [
    {"content": "write the test", "status": "completed", "activeForm": "Writing"},
    {"content": "fix the bug", "status": "in_progress", "activeForm": "Fixing"},
    {"content": "update the docs", "status": "pending", "activeForm": "Updating"},
]
LISTED = ["[x] write the test", "[~] fix the bug", "[ ] update the docs"]


def listed(*messages: Message) -> list[str]:
    """Return the todo list of a summary."""
    return sections(summarised([user("go"), *messages]).text).get("Todo list", [])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("TodoWrite", {"todos": TODOS}),
        ("update_plan", {"plan": [{"step": t["content"], "status": t["status"]} for t in TODOS]}),
        ("write_todos", {"todos": [{"description": t["content"], **t} for t in TODOS]}),
        ("task_tracker", {"task_list": [{"title": t["content"], **t} for t in TODOS]}),
        (
            "update_todo_list",
            {"todos": "- [x] write the test\n- [-] fix the bug\n- [ ] update the docs"},
        ),
    ],
)
def test_the_last_todo_list_is_kept(name: str, arguments: dict[str, object]) -> None:
    """Of several lists the last one, in the formats of several harnesses."""
    first = assistant("", call("a", "TodoWrite", todos=[{"content": "old", "status": "pending"}]))
    last = assistant("", call("b", name, **arguments))
    assert listed(first, result("ok", "a"), last, result("ok", "b")) == LISTED


def test_errors_are_those_of_failed_results_and_commands() -> None:
    """What a command prints of a file is no error; a later success ends one."""
    source = "class ValueError(Exception): pass\nERROR: not one\nraise KeyError('x')"
    messages = [
        user("go"),
        *run("a", "cat errors.py", source),
        assistant("", call("b", "Read", file_path="errors.py")),
        result(source, "b"),
        assistant("", call("g", "Grep", pattern="Error")),
        result("a.py:1: Error: x", "g"),
        *run("c", "cd /w && pytest -x", "E   ValueError: bad salt\n1 failed, 2 passed in 0.1s"),
        *run("d", "make lint", "lint.py:3 unused\n[exit code: 1]"),
        *run("e", "make docs", "fatal: no docs\nexit code 2"),
        *run("f", "make docs", "built\nexit code 0"),
        assistant("", call("h", "fetch", url="https://a.example")),
        result("<tool_use_error>404 Not Found</tool_use_error>", "h", failed=True),
    ]
    found = sections(summarised(messages).text)
    assert found["Errors"] == [
        "`pytest -x` failed: E ValueError: bad salt",
        "`make lint` failed: [exit code: 1]",
        "fetch failed: 404 Not Found",
    ]
    assert found["Commands and tests"] == ["`pytest -x` → 1 failed, 2 passed in 0.1s"]


def test_references_to_stored_output_are_kept() -> None:
    """A result that was stored can still be read."""
    text = 'Read the rest with tool_output_cache ref_id="blob_77" offset=3'
    messages = [user("go"), assistant("", call("a", "bash", command="ls")), result(text, "a")]
    assert sections(summarised(messages).text)["References"] == ["ref_id=blob_77"]


def test_calls_that_nothing_else_tells_of_are_listed() -> None:
    """What a call was and how its result begins: a loop of tools leaves no empty summary."""
    messages = [user("go")]
    for number in range(12):
        asked = call(str(number), "search_flights", origin="HOU", day=number)
        messages += [assistant("", asked), result(f"flight {number}\nat noon", str(number))]
    found = sections(summarised(messages).text)["Other calls"]
    assert len(found) == 8
    assert found[-1].startswith("search_flights {") and found[-1].endswith(" → flight 11 at noon")
    again = summarised([], summarised(messages).text)
    assert sections(again.text)["Other calls"] == found

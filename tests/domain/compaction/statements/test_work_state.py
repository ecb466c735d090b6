"""The state of the work is read from calls, never from prose. [summary.state-from-calls]"""

from __future__ import annotations

import pytest

from app.domain.common.messages import Message
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


def test_tasks_that_are_made_one_by_one_are_a_list() -> None:
    """Tasks are known by their ids, also in the next summary."""
    messages = [
        assistant("", call("a", "TaskCreate", subject="write the test", description="d")),
        result("Task #1 created successfully: write the test", "a"),
        assistant("", call("b", "TaskCreate", subject="fix the bug", description="d")),
        result("Task #2 created successfully: fix the bug", "b"),
        assistant("", call("c", "TaskUpdate", taskId="1", status="completed")),
        result("Updated task #1 status", "c"),
    ]
    assert listed(*messages) == ["[x] #1 write the test", "[ ] #2 fix the bug"]
    before = summarised(messages).text
    done = [assistant("", call("d", "TaskUpdate", taskId="2", status="in_progress"))]
    assert sections(summarised(done, before).text)["Todo list"] == [
        "[x] #1 write the test",
        "[~] #2 fix the bug",
    ]


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


def test_files_are_named_once_and_relative() -> None:
    """Absolute, relative and Windows paths of one file are one; edits count more than reads."""
    messages = [
        assistant("", call("a", "Read", file_path="/home/me/app/src/a.py")),
        result("…", "a"),
        assistant("", call("b", "Edit", file_path="/home/me/app/src/a.py", old_string="x")),
        result("ok", "b"),
        assistant("", call("c", "str_replace_editor", command="view", path="src/b.py")),
        result("…", "c"),
        assistant("", call("d", "Read", file_path="/home/me/app/src/b.py")),
        result("…", "d"),
        assistant(
            "", call("e", "apply_patch", input="*** Begin Patch\n*** Add File: docs/c.md\n+x")
        ),
        result("Done", "e"),
        assistant("", call("f", "Write", file_path="/home/me/app/gone.py", content="x")),
        result("permission denied", "f", failed=True),
    ]
    found = sections(summarised([user("go"), *messages]).text)
    assert found["Files changed"] == ["in /home/me/app", "src/a.py, docs/c.md"]
    assert found["Files read"] == ["in /home/me/app", "src/b.py"]
    again = summarised(
        [assistant("", call("g", "Read", file_path="/home/me/app/docs/c.md")), result("…", "g")],
        summarised([user("go"), *messages]).text,
    )
    assert sections(again.text)["Files changed"] == ["in /home/me/app", "src/a.py, docs/c.md"]


def test_references_to_stored_output_are_kept() -> None:
    """A result that was stored can still be read."""
    text = 'Read the rest with tool_output_cache ref_id="blob_77" offset=3'
    messages = [user("go"), assistant("", call("a", "bash", command="ls")), result(text, "a")]
    assert sections(summarised(messages).text)["References"] == ["ref_id=blob_77"]

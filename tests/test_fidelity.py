"""The judge of compactions: what counts as kept, stale, cut or listed twice."""

from __future__ import annotations

import json
from functools import cache
from itertools import chain
from typing import Any

import pytest

from benchmarks.fidelity import judge
from benchmarks.fidelity.planted.generated import Session, generated
from benchmarks.fidelity.planted.recorded import planted
from benchmarks.fidelity.planted.report_wording import WORDING as REPORT
from benchmarks.fidelity.planted.todos import TOOLS, calls_for, open_todos
from benchmarks.fidelity.planted.tune_wording import WORDING as TUNE
from benchmarks.fidelity.planted.wording import Kind, Plant
from benchmarks.fidelity.scripted_model import FAITHFUL, ScriptedModel
from tests.fake_llm import unpaired
from tests.recorded import COMMITTED, named_traces

SETS = {"tune": TUNE, "report": REPORT}
PORT = Plant(
    Kind.UPDATE,
    "The canary cache port is now 53474.",
    ("53474", "canary", "cache", "port"),
    old=("22446",),
)
NEWEST = "- The canary cache port is 53474.\n"


@cache
def session(name: str) -> Session:
    """Return a session whose name begins with that of its wordings."""
    return generated(SETS[name.partition("-")[0]], name)


def messages_of(name: str) -> list[dict[str, Any]]:
    """Return all messages of a session."""
    return list(chain.from_iterable(session(name).rounds))


def called(call_id: str, function: dict[str, str]) -> dict[str, Any]:
    """Return an assistant message with one call."""
    return {"role": "assistant", "tool_calls": [{"id": call_id, "function": function}]}


@pytest.mark.parametrize("name", ["tune-7", "tune-8", "report-7", "report-8"])
def test_a_whole_conversation_keeps_everything_and_nothing_else_does(name: str) -> None:
    """All statements are found in the messages they stand in, and none in an empty payload."""
    messages = messages_of(name)
    text = judge.payload_text({"messages": messages})
    texts = {text for message in messages for text in judge.content_texts(message)}
    written = judge.written_text({"messages": messages}, texts)
    assert written == ""
    for plant in session(name).plants:
        assert judge.survives(plant, text), plant
        assert not judge.survives(plant, "")
        assert judge.stale_values(plant, text, written) == []


@pytest.mark.parametrize("name", ["tune-7", "report-7"])
def test_what_the_faithful_model_writes_keeps_everything(name: str) -> None:
    """A summary with each newest statement word for word is full marks: nothing lost or stale."""
    model = ScriptedModel([session(name)], count=len)
    prompt = "\n".join(chain.from_iterable(map(judge.content_texts, messages_of(name))))
    asked = {"model": FAITHFUL, "messages": [{"role": "user", "content": prompt}]}
    answer = model.answer({**asked, "max_tokens": 50_000})["choices"][0]["message"]["content"]
    summary = answer.removeprefix("<summary>").removesuffix("</summary>")
    flat = judge.flat(summary)
    for plant in session(name).plants:
        assert judge.survives(plant, flat), plant
        assert judge.stale_values(plant, flat, summary) == []
    said, _ = judge.prose_and_code(messages_of(name))
    listed = judge.lines_under(summary, "decision")
    assert listed and not [item for item in listed if judge.is_cut(item, said)]


@pytest.mark.parametrize(
    ("written", "is_stale"),
    [
        (NEWEST, False),
        (f"{NEWEST}- The canary cache port is 22446.", True),
        (f"{NEWEST}- Earlier the canary cache port was 22446.", False),
        ("- The canary cache port is 53474 (22446 at first).", False),
        (f"## Superseded\n- canary cache port: 22446\n## Facts\n{NEWEST}", False),
        (f"## Superseded\n- Team: Oak\n## Facts\n- canary cache port: 22446\n{NEWEST}", True),
        ("- Earlier the canary cache port was 22446.", True),  # and the newest is not there
        (f"{NEWEST}{'x' * 300} 53474. The canary cache port is 22446.", True),
    ],
)
def test_an_old_value_is_stale_unless_it_is_named_as_history(written: str, is_stale: bool) -> None:
    """The old value is stale where it stands alone, or where the newest value is absent."""
    found = judge.stale_values(PORT, judge.flat(written), written)
    assert found == (["22446"] if is_stale else [])


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("canary cache port: 53474", True),
        ("53474 is what the canary uses as the port of its cache", True),
        ("the port is 53474", False),
        (f"the canary cache port {'x ' * 150} 53474", False),
        ("the canary cache port is 5347", False),
    ],
)
def test_a_statement_is_kept_where_all_of_it_stands_together(text: str, kept: bool) -> None:
    """A value without its subject is not kept, nor is a subject far from its value."""
    assert judge.survives(PORT, text) is kept


@pytest.mark.parametrize(
    ("item", "cut"),
    [
        ("I decided to use tabs because the team does.", False),
        ("I decided to use tabs because", True),
        ("use tabs because the team does", True),
        ("I decided to use tabs because the…", True),
        ("Tabs are used; the reason is the team's habit.", False),  # in words of its own
        ("The second line stands alone", False),
        ("[12] I decided to use tabs (assistant)", True),
        ("if decided: return tabs", True),
        ("py has it.", True),  # begins inside a word
        ("Decisions so far:", True),
    ],
)
def test_a_cut_item_is_part_of_a_sentence(item: str, cut: bool) -> None:
    """An item is whole as a sentence, as a line, or in words that no message has."""
    said = "Fine. I decided to use tabs because the team does. a.py has it."
    said = f"{said}\nThe second line stands alone"
    message = {"role": "assistant", "content": f"{said}\n```py\nif decided: return tabs\n```"}
    assert judge.is_cut(item, *judge.prose_and_code([message])) is cut


@pytest.mark.parametrize("tool", TOOLS)
def test_the_open_items_are_read_back_from_the_calls_of_each_tool(tool: str) -> None:
    """Whatever calls keep a list, the items that are not completed are its open ones."""
    first = [("Draft", "in_progress"), ("Review", "pending")]
    then = [("Draft", "completed"), ("Review", "in_progress"), ("Publish", "pending")]
    messages: list[dict[str, Any]] = []
    for before, now in (([], first), (first, then)):
        for name, given, result in calls_for(tool, before, now):
            call_id = str(len(messages))
            function = {"name": name, "arguments": json.dumps(given)}
            messages.append(called(call_id, function))
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
    assert open_todos(messages) == ["Review", "Publish"]


def test_a_recorded_conversation_keeps_its_messages_around_what_is_planted() -> None:
    """Its calls stay with their results, each round adds some, and all statements are in it."""
    [trace] = named_traces(COMMITTED / "coding-agent.json")
    found = planted(TUNE, trace)
    messages = list(chain.from_iterable(found.rounds))
    assert unpaired(messages) is None and all(found.rounds)
    results = [raw for raw in messages if raw["role"] == "tool"]
    added = [raw for raw in results if raw not in trace.messages]
    assert [raw["tool_call_id"] for raw in added] == ["call_planted_todos"]
    assert len(results) > len(trace.messages) / 2
    text = judge.payload_text({"messages": messages})
    assert all(judge.survives(plant, text) for plant in found.plants)
    assert judge.found_in([*found.todos, found.first_request], text) == len(found.todos) + 1

"""The session of the demo: a coding agent works through a shop's services, by fixed rules.

What the user says in message 9 is asked for at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

from app.common import json_text

Message = dict[str, Any]

SYSTEM = "You are a coding agent in the repository of a shop. Run the tests after each change."
FACT = "14 November at 18:00"
STATED = (
    f"Before you go on: the release freeze begins on {FACT}, and Marta Oduya signs off each hotfix"
    " after it. Keep that in mind."
)
QUESTION = "We are nearly done. When does the release freeze begin, and who signs off hotfixes?"
JOBS = (
    ("settings", "Read the settings of {} from the environment."),
    ("client", "Give the calls of {} a timeout and one retry."),
    ("handlers", "Let {} log each refused request with its reason."),
    ("store", "Let {} write its rows in one transaction."),
    ("events", "Publish the events of {} after the commit, not before it."),
)
TASK_MESSAGES = 6
WORDS = {
    "services": "basket billing catalogue checkout courier customer discount gift invoice label"
    " ledger order parcel payment pricing refund report review search shipping stock tax voucher",
    "verbs": "add apply check close collect count fetch find list merge move parse read split",
    "nouns": "address amount batch entry file item limit line note page price row total user",
}
SERVICES, VERBS, NOUNS = map(str.split, WORDS.values())


def tools() -> list[Message]:
    """Return the definitions of the agent's two tools."""
    described = {"read_file": "Read a file of the repository.", "run": "Run a shell command."}
    schema = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
    return [
        {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}
        for name, text in described.items()
    ]


def messages(count: int) -> list[Message]:
    """Return about so many messages in the OpenAI Chat format; the last one asks for the fact."""
    random, made = Random(12), [_said("user", "Go through the services, one job at a time.")]
    made.append(_said("assistant", "I begin with the first one."))
    for number, ((module, job), service) in enumerate(product(JOBS, SERVICES)):
        if number == 1:
            made += [_said("user", STATED), _said("assistant", "I will keep it in mind.")]
        elif len(made) >= count - TASK_MESSAGES:
            break
        made += _task(random, number, service, module, job.format(service))
    return [*made, _said("user", QUESTION)]


def _task(random: Random, number: int, service: str, module: str, job: str) -> Iterator[Message]:
    path, passed = f"services/{service}/{module}.py", random.randint(12, 60)
    names = [f"{random.choice(VERBS)}_{random.choice(NOUNS)}" for _ in range(random.randint(6, 18))]
    yield _said("user", job)
    yield from _called(f"call_{number}_read", "read_file", path, _source(random, names))
    log = [f"tests/{service}/test_{module}.py::test_{name} PASSED" for name in names]
    log.append(f"{passed} passed in {random.randint(40, 900) / 100} s")
    yield from _called(f"call_{number}_run", "run", f"pytest tests/{service}", "\n".join(log))
    changed = f"I changed `{names[0]}` in `{path}`"
    yield _said("assistant", f"{changed}, and {passed} tests pass. Nothing else uses it.")


def _source(random: Random, names: list[str]) -> str:
    return "\n\n".join(
        f"def {name}(request, limit={random.randint(2, 500)}):\n"
        f'    """{name.replace("_", " ").capitalize()}, at most {random.randint(2, 90)}."""\n'
        f"    found = request.store.{random.choice(VERBS)}({random.choice(NOUNS)!r}, limit)\n"
        f"    return [row.{random.choice(NOUNS)} for row in found]"
        for name in names
    )


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _called(call_id: str, name: str, what: str, result: str) -> Iterator[Message]:
    function = {"name": name, "arguments": json_text.dumps({"what": what})}
    call = {"id": call_id, "type": "function", "function": function}
    yield {"role": "assistant", "content": None, "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": call_id, "content": result}

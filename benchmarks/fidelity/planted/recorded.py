"""Recorded conversations with statements planted in them, cut into five rounds.

1. The conversations are those of `CONTEXT_TRACES_DIR`; those of one set of wordings are never those
   of the other. Without the folder there are none: those of the repository are too short.
2. A statement is added to a message of its author, or as a message of its own between call groups.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, chain

from app.demo import Trace
from benchmarks.fidelity.judge import content_texts
from benchmarks.fidelity.planted.generated import ROUND_CHARS, Message, Session, plant_in
from benchmarks.fidelity.planted.planting import Planter
from benchmarks.fidelity.planted.todos import TOOLS, calls_for, open_todos
from benchmarks.fidelity.planted.wording import Wording
from tests.payload_tokens import payload_texts, text_tokens
from tests.recorded import is_external, named_traces, trace_files, traces_dir

MIN_TOKENS, MAX_TOKENS = 8_000, 40_000
"""Shorter conversations are left out; longer ones are cut."""
MAX_GROUP_TOKENS = 6_000
"""Of a longer call group, most is one result that was too large for the agent as well."""
PER_FILE = 6
FULL_TOKENS = 20_000
"""A shorter conversation gets fewer statements, in proportion."""
QUIET_GROUPS = 12
TODO_PLACE = 0.6
_MACHINE = re.compile(r"\s*(?:<[a-z-]+>|Caveat|This session is being continued|\[Request|$)")


def names(wording: str, most: int) -> list[str]:
    """Return the names of the conversations of a set, at even distances over the files."""
    if not is_external():
        return []
    all_names = [name for names in _names_by_file() for name in names]
    mine = all_names[0 if wording == "tune" else 1 :: 2]
    count = min(most, len(mine))
    return [mine[place * len(mine) // count] for place in range(count)]


@cache
def _names_by_file() -> list[list[str]]:
    """Return the names of the conversations that are long enough, by file."""
    found = []
    for path in trace_files(traces_dir()):
        long = []
        for trace in named_traces(path):
            chars = sum(len(json.dumps(raw, ensure_ascii=False)) for raw in trace.messages)
            if chars > 5 * MIN_TOKENS:
                long.append((chars, trace.name))
        found.append([name for _, name in sorted(long, reverse=True)[:PER_FILE]])
    return found


def recording(name: str) -> Trace:
    """Return a recorded conversation by its name."""
    stem = name.partition(":")[0]
    path = next(path for path in trace_files(traces_dir()) if path.stem == stem)
    return next(trace for trace in named_traces(path) if trace.name == name)


def planted(wording: Wording, trace: Trace) -> Session:
    """Return a recorded conversation with statements."""
    groups = _cut(list(_groups(trace.messages)))
    tokens = sum(map(_group_tokens, groups))
    planter = Planter(wording, trace.name)
    session = Session(trace.name)
    messages = list(chain.from_iterable(groups))
    session.first_request = next(_requests(messages), "")
    session.todos = open_todos(messages)
    if not session.todos:
        session.todos = [planter.deck.draw(wording.todos) for _ in range(4)]
        groups.insert(int(len(groups) * TODO_PLACE), _todo_group(session.todos))
    quiet = min(QUIET_GROUPS, len(groups) // 4)
    session.chains = planter.chains(min(1.0, tokens / FULL_TOKENS))
    plant_in(groups[: len(groups) - quiet], session.chains, planter.random)
    session.rounds = list(_rounds(groups))
    return session


def _groups(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield copies of the messages, a call with its results together; drop unanswered calls."""
    group: list[Message] = []
    waiting: set[str] = set()
    for message in messages:
        if waiting and message["role"] != "tool":
            group, waiting = [], set()
        group.append(dict(message))
        waiting |= {call["id"] for call in message.get("tool_calls") or ()}
        waiting.discard(message.get("tool_call_id", ""))
        if not waiting:
            yield group
            group = []


def _cut(groups: list[list[Message]]) -> list[list[Message]]:
    """Return the groups from the start that are not too long, together and each for itself."""
    kept = [group for group in groups if _group_tokens(group) <= MAX_GROUP_TOKENS]
    reached = accumulate(map(_group_tokens, kept))
    return [group for group, tokens in zip(kept, reached, strict=True) if tokens <= MAX_TOKENS]


def _group_tokens(group: Sequence[Message]) -> int:
    return sum(map(text_tokens, payload_texts({"messages": list(group)})))


def _requests(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        text = "\n".join(content_texts(message))
        if message["role"] == "user" and not _MACHINE.match(text):
            yield text


def _todo_group(todos: Sequence[str]) -> list[Message]:
    name, given, result = calls_for(TOOLS[0], [], [(text, "pending") for text in todos])[0]
    function = {"name": name, "arguments": json.dumps(given)}
    call = {"id": "call_planted_todos", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


def _rounds(groups: Sequence[list[Message]]) -> Iterator[list[Message]]:
    """Yield the messages of each round; the lengths relate as those of generated sessions do."""
    sizes = list(map(_group_tokens, groups))
    total, reached, start = sum(sizes), list(accumulate(sizes)), 0
    for chars in accumulate(ROUND_CHARS):
        limit = total * chars / sum(ROUND_CHARS)
        end = sum(tokens <= limit + 1 for tokens in reached)
        yield [message for group in groups[start:end] for message in group]
        start = end

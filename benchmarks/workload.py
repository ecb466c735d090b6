"""The conversation that every measurement replays: generated, and the same in every run.

A turn is a user message, an assistant message with one to three tool calls, their results, and
a final answer. Of the results 80 % have about 1 KB, 15 % about 8 KB and 5 % about 60 KB. The text
is cut from pools of prose, code, logs and JSON made from word lists, so it counts and compresses
much like the real thing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

Message = dict[str, Any]

POOL_CHARS = 1_500_000
RESULT_SIZES = ((0.80, 700, 1_300), (0.15, 6_000, 10_000), (0.05, 45_000, 75_000))
"""Share of the results, least and most characters."""


def _words(text: str) -> list[str]:
    return text.split()


_PLAIN = _words("""
the a of to and in is it that for on with as this be are by an or from at not we can which when
will if all has was but one they more so out into only then there their how what no may each do
some time way use make need like look first after before new other than them our about between
because also same still without where most those over now should must never always while
""")
_NOUNS = _words("""
server request response query index table column cache window token message session user agent
queue worker job lock thread process file folder path module function class method argument
value error warning timeout retry deadline schema migration commit branch test fixture report
payload header body field record page cursor limit budget counter metric trace span event log
order invoice customer account price product region country currency balance payment refund
deploy release container image volume network proxy endpoint route handler client connection
parser encoder buffer stream chunk offset checksum hash key secret policy rule role permission
""")
_VERBS = _words("""
read write send return raise close open start stop load store fetch parse render validate check
update delete insert append merge split count measure compare replace rename move copy build
compile deploy retry skip ignore handle expect assert verify refactor document inspect debug
""")
_TOOLS = ("shell_exec", "read_file", "search_code", "run_tests", "http_get", "list_directory")


def conversation(seed: int) -> Iterator[Message]:
    """Yield the messages of an endless conversation in OpenAI Chat form."""
    rng = Random(seed)
    while True:
        yield from _turn(rng)


def plain_message(rng: Random, role: str, size: int) -> Message:
    """Return a message of about `size` characters of text and no calls."""
    return {"role": role, "content": _cut("prose", rng, size)}


def _turn(rng: Random) -> Iterator[Message]:
    yield plain_message(rng, "user", rng.randint(80, 600))
    calls = [_call(rng) for _ in range(rng.randint(1, 3))]
    yield {
        "role": "assistant",
        "content": _cut("prose", rng, rng.randint(40, 240)),
        "tool_calls": calls,
    }
    for call in calls:
        yield {"role": "tool", "tool_call_id": call["id"], "content": _result(rng)}
    yield plain_message(rng, "assistant", rng.randint(300, 1_500))


def _call(rng: Random) -> Message:
    name = rng.choice(_TOOLS)
    arguments = {
        "path": _path(rng),
        "pattern": f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}",
        "limit": rng.randint(1, 500),
    }
    return {
        "id": f"call_{rng.getrandbits(96):024x}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def _result(rng: Random) -> str:
    kind = rng.choice(("code", "log", "json", "prose"))
    shares = [share for share, _, _ in RESULT_SIZES]
    _, least, most = rng.choices(RESULT_SIZES, shares)[0]
    return _cut(kind, rng, rng.randint(least, most))


def _cut(kind: str, rng: Random, size: int) -> str:
    text = pool(kind)
    start = rng.randrange(len(text) - size)
    return text[start : start + size]


@cache
def pool(kind: str) -> str:
    """Return the text of one kind that messages are cut from: prose, code, log or json."""
    line = _LINES[kind]
    rng = Random(kind)
    lines, size = [], 0
    while size < POOL_CHARS:
        lines.append(line(rng))
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def _prose(rng: Random) -> str:
    words = []
    for _ in range(rng.randint(8, 60)):
        draw = rng.random()
        kind = _PLAIN if draw < 0.55 else _NOUNS if draw < 0.82 else _VERBS
        words.append(rng.choice(kind))
        if draw < 0.07:
            words[-1] += ","
    return " ".join(words).capitalize() + "."


def _code(rng: Random) -> str:
    name = f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}"
    first, second, third = rng.choice(_NOUNS), rng.choice(_NOUNS), rng.choice(_NOUNS)
    return (
        f"def {name}({first}: str, {second}: int = {rng.randint(0, 999)}) -> dict[str, int]:\n"
        f'    """{_prose(rng)[:70]}"""\n'
        f"    {third} = self.{rng.choice(_VERBS)}({first}, {second})\n"
        f"    if {third} is None or len({third}) > {rng.randint(1, 64)}:\n"
        f'        raise ValueError(f"no {third} for {{{first}}}")\n'
        f"    return {{{first}: {rng.randint(0, 9)} for {first} in {third}}}\n"
    )


def _log(rng: Random) -> str:
    level = rng.choice(("INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR"))
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
    day = f"2026-0{rng.randint(1, 9)}-{rng.randint(10, 28)}"
    return (
        f"{day}T{clock}.{rng.randint(0, 999):03}Z {level} "
        f"{rng.choice(_NOUNS)}.{rng.choice(_NOUNS)} {rng.choice(_VERBS)} {_path(rng)} "
        f"request_id={rng.getrandbits(64):016x} took={rng.randint(1, 9999)}ms"
    )


def _json(rng: Random) -> str:
    record = {
        "id": rng.getrandbits(40),
        rng.choice(_NOUNS): rng.choice(_NOUNS),
        rng.choice(_NOUNS): [rng.randint(0, 10_000) for _ in range(rng.randint(1, 6))],
        "enabled": rng.random() < 0.5,
        "note": _prose(rng)[:80],
    }
    return json.dumps(record)


def _path(rng: Random) -> str:
    return f"/srv/{rng.choice(_NOUNS)}/{rng.choice(_NOUNS)}_{rng.randint(1, 99)}.py"


_LINES: dict[str, Callable[[Random], str]] = {
    "prose": _prose,
    "code": _code,
    "log": _log,
    "json": _json,
}

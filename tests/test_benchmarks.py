"""The parts of the benchmarks that decide what their figures mean."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import islice
from random import Random
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.adapters.models.registry import ModelRegistry
from app.demo import Trace
from app.domain.common.policy import effective
from app.domain.compaction.summaries.prompt import SummaryRequest, summary_messages
from app.domain.conversations.view import SUMMARY_PREFIX
from app.domain.payload.reported_usage import TokenUsage
from benchmarks.figures import SAMPLE_HEADS, Samples
from benchmarks.floor_window import Window
from benchmarks.log_copies import copy_conversations, copying, extend
from benchmarks.loop_stalls import loop_stalls
from benchmarks.model_server import summary_of
from benchmarks.offloading import MODES, OFF, Run, messages_shown, policy_of
from benchmarks.outputs import MARKER_LINES, log_text
from benchmarks.prefix import BEST, piece_tokens, policies
from benchmarks.provider_cache import (
    ImplicitCache,
    MarkedCache,
    Piece,
    anthropic_pieces,
    chat_pieces,
    input_cost,
    shared_prefix,
)
from benchmarks.recorded import without_end
from benchmarks.replay import consecutive
from benchmarks.workload import plain_message
from tests.fake_llm import unpaired
from tests.patience import PATIENCE_SECONDS
from tests.replay import Tally


def call(*ids: str) -> dict[str, Any]:
    """Return an assistant message that calls a tool once for each id."""
    function = {"name": "shell", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> dict[str, Any]:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


def test_a_conversation_goes_on_from_its_start_with_new_call_ids() -> None:
    """A repeated conversation stays paired, and no id of the first time comes again."""
    messages = [{"role": "user", "content": "go"}, call("a", "b"), result("b"), result("a")]
    repeated = list(islice(without_end(Trace("t", [], [], messages)), 12))
    assert repeated[:4] == messages
    assert unpaired(repeated[1:4]) is unpaired(repeated[5:8]) is unpaired(repeated[9:]) is None
    ids = [entry["id"] for message in repeated for entry in message.get("tool_calls") or []]
    assert len(set(ids)) == len(ids) == 6


@pytest.mark.parametrize("head", [b"data:image/png;base64,", b'"media_type":"image/png","data":"'])
def test_an_image_costs_its_pixels(head: bytes) -> None:
    """A piece does not cost more where the base64 of its image is longer."""
    short, long = (piece_tokens(b'{"u":"' + head + b"A" * size + b'"}') for size in (40, 40_000))
    assert short == long > piece_tokens(b'{"u":"' + head + b'"}')


@pytest.mark.parametrize(
    ("before", "after", "shared"),
    [
        ([], [b"a"], 0),
        ([b"a", b"b"], [b"a", b"b", b"c"], 2),
        ([b"a", b"b", b"c"], [b"a", b"x", b"c"], 1),
        ([b"a", b"b"], [b"a"], 1),
        ([b"a"], [b"b"], 0),
    ],
)
def test_the_shared_prefix_ends_at_the_first_difference(
    before: list[bytes], after: list[bytes], shared: int
) -> None:
    """What a prefix cache could serve ends at the first item that differs."""
    assert shared_prefix(before, after) == shared


def test_the_model_summarises_the_transcript_alone_in_tags() -> None:
    """The model of the benchmarks answers in the tags asked for, shorter than its source."""
    text = " ".join(f"word{place}" for place in range(500))
    *_, last = summary_messages(text, SummaryRequest())
    answer = summary_of(last["content"], 1000)
    assert answer.startswith("<summary>word0 word10 ") and answer.endswith("</summary>")
    assert len(answer) < len(text) / 5
    *_, last = summary_messages(text, SummaryRequest(retain_directives=("paths",)))
    assert summary_of(last["content"], 1000).startswith("<retain>word0</retain>")


def test_a_searched_text_holds_each_marked_line_once() -> None:
    """A text has the size asked for, begins like a smaller one, and has one line per mark."""
    text = b"".join(log_text(8 * 2**20))
    assert len(text) == 8 * 2**20
    assert text.startswith(b"".join(log_text(2**20)))
    assert [text.count(mark) for mark in MARKER_LINES] == [1, 1]
    first, second = (text.index(mark) for mark in MARKER_LINES)
    assert len(text) / 4 < first < second


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_compares_the_same_window(mode: str) -> None:
    """What differs between two modes is how tool output is kept, and nothing else."""
    policy = policy_of(Run(mode, Trace("t", [], [], []), 32_000))
    assert effective(policy).budget.context_window == 32_000
    assert {**policy, "tool_output": {}} == {
        **policy_of(Run(OFF, Trace("t", [], [], []), 32_000)),
        "tool_output": {},
    }


@pytest.mark.parametrize(
    "given", [policy_of(Run(BEST, Trace("t", [], [], []), 32_000)), policies()[BEST]]
)
def test_the_best_possible_is_never_cut(given: dict[str, Any]) -> None:
    """The history that only grows is neither offloaded, cleared nor compacted."""
    policy = effective(given)
    assert not policy.tool_output.enabled
    assert policy.strategy == "full_history"


def pieces(*sizes: int, start: int = 0, marks: tuple[int, ...] = ()) -> list[Piece]:
    """Return pieces of so many tokens, named by their places from `start` on."""
    return [
        Piece(b"%d" % (start + place), size, start + place in marks)
        for place, size in enumerate(sizes)
    ]


def test_an_implicit_cache_serves_what_is_in_common_in_whole_steps() -> None:
    """OpenAI reads the longest common prefix, from 1 024 tokens in steps of 128."""
    cache = ImplicitCache()
    first = pieces(600, 500, 100)
    assert cache.take(first) == TokenUsage(input_tokens=1_200)
    other = [*first[:2], Piece(b"other", 1_000)]
    assert cache.take(other) == TokenUsage(input_tokens=2_100 - 1_024, cache_read_tokens=1_024)
    again = [*first, Piece(b"more", 300)]  # the payload before the last one is found as well
    assert cache.take(again) == TokenUsage(input_tokens=1_500 - 1_152, cache_read_tokens=1_152)


def test_an_implicit_cache_serves_nothing_short_or_changed_at_its_start() -> None:
    """OpenAI's cache needs 1 024 tokens in common, and a prefix begins at the start."""
    cache = ImplicitCache()
    cache.take(pieces(1_000, 2_000))
    changed = [Piece(b"x", 1_000), Piece(b"1", 2_000)]
    assert cache.take(changed) == TokenUsage(input_tokens=3_000)
    assert cache.take(pieces(1_000)) == TokenUsage(input_tokens=1_000)


def test_a_marked_cache_is_written_at_marks_alone() -> None:
    """Anthropic writes up to the last mark, reads up to the best entry; the rest is input.

    [performance.cacheable-prefix]
    """
    cache = MarkedCache(1_000)
    assert cache.take(pieces(800, 700, 50, marks=(0, 1))) == TokenUsage(
        input_tokens=50, cache_creation_tokens=1_500
    )
    assert cache.take(pieces(800, 700, 60, 40, marks=(2,))) == TokenUsage(
        input_tokens=40, cache_creation_tokens=60, cache_read_tokens=1_500
    )
    assert cache.take(pieces(800, 700, 60, 40)) == TokenUsage(input_tokens=1_600)
    short = pieces(800, 9, marks=(0,))  # shorter than the minimum, so never written
    assert cache.take(short) == cache.take(short) == TokenUsage(input_tokens=809)


@pytest.mark.parametrize(("appended", "read"), [(19, 2_000), (20, 0)])
def test_a_mark_looks_back_at_twenty_blocks(appended: int, read: int) -> None:
    """A mark finds an entry at its own block or one of the 19 before it, no further."""
    cache = MarkedCache(1_000)
    cache.take(pieces(2_000, marks=(0,)))
    told = cache.take(pieces(2_000, *[10] * appended, marks=(appended,)))
    assert (told.cache_read_tokens, told.sent_tokens) == (read, 2_000 + 10 * appended)


def test_marks_are_no_part_of_what_is_cached() -> None:
    """Of an Anthropic payload blocks are read in the provider's order, without marks."""
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "Hello"}
    payload = {
        "tools": [{"name": "look", "input_schema": {}}],
        "system": [{"type": "text", "text": "Be brief.", **mark}],
        "messages": [{"role": "user", "content": [text, {**text, **mark}]}],
    }
    found = anthropic_pieces(payload, len)
    assert [piece.is_marked for piece in found] == [False, True, False, True]
    assert [piece.tokens for piece in found] == [len(piece.body) for piece in found]
    assert not any(b"cache_control" in piece.body for piece in found)
    assert b"look" in found[0].body and b"user" in found[2].body
    unmarked = {**payload, "messages": [{"role": "user", "content": [text, text]}]}
    assert [piece.body for piece in anthropic_pieces(unmarked, len)] == [
        piece.body for piece in found
    ]
    chat = {"tools": [{"a": 1}], "messages": [{"role": "user", "content": "Hello"}]}
    assert [piece.body[:4] for piece in chat_pieces(chat, len)] == [b'{"a"', b'{"ro']


def test_cached_tokens_have_prices_of_their_own() -> None:
    """What was sent costs the registry's prices by what the cache did with it. [models.registry]"""
    claude, gpt = (ModelRegistry().find(model) for model in ("claude-sonnet-4-5", "gpt-4.1"))
    assert claude is not None and gpt is not None
    usage = TokenUsage(
        input_tokens=1_000_000, cache_creation_tokens=1_000_000, cache_read_tokens=1_000_000
    )
    prices = (claude.input_price, claude.cache_write_price, claude.cache_read_price)
    assert input_cost(usage, claude) == pytest.approx(1e6 * sum(price or 0 for price in prices))
    gpt_prices = (gpt.input_price, gpt.input_price, gpt.cache_read_price)  # it has none for writes
    assert input_cost(usage, gpt) == pytest.approx(1e6 * sum(price or 0 for price in gpt_prices))


def test_builds_that_begin_no_epoch_were_compared() -> None:
    """A replay compares every build that has one before it in its epoch. [epochs.extend]"""
    tally = Tally()
    tally.builds.update({"openai_chat 8000": 7, "gemini 8000": 5})
    tally.epochs.update({"None": 2, "compaction": 1})
    assert consecutive(tally) == 9


def test_summaries_and_the_system_prompt_are_no_messages_shown() -> None:
    """Of a payload only what stands in the log counts as shown. [log.append-only]"""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {"role": "user", "content": f"{SUMMARY_PREFIX}they went.]"},
        call("a"),
        result("a"),
    ]
    assert messages_shown({"messages": messages}) == 3


def rows(*seqs: int) -> list[tuple[int, int, bytes]]:
    """Return rows of 10 tokens with these seqs."""
    return [(seq, 10, b"%d" % seq) for seq in seqs]


def test_the_floors_window_is_current_only_without_a_gap() -> None:
    """A seq that is not the next one tells that another process has written."""
    window = Window(rows(5, 6))
    assert window.append(7, 10, b"7")
    assert not window.append(9, 10, b"9") and not window.append(7, 10, b"7")
    assert list(window.all()) == [b"5", b"6", b"7"] and window.last_seq == 7


def test_the_floors_window_keeps_the_newest_messages_that_fit() -> None:
    """The oldest messages are cut, the newest one never."""
    window = Window(rows(1, 2, 3, 4))
    window.cut(25)
    assert list(window.all()) == [b"3", b"4"]
    window.cut(0)
    assert list(window.all()) == [b"4"]


def test_the_floors_delta_has_the_messages_after_a_known_one() -> None:
    """Without all of them in the window there is no delta."""
    window = Window(rows(3, 4, 5))
    assert [window.after(seq) for seq in (5, 4, 2)] == [[], [b"5"], [b"3", b"4", b"5"]]
    assert window.after(1) is None and window.after(6) is None


def test_samples_have_a_cell_for_each_head() -> None:
    """Times and CPU times are printed in milliseconds; a clock that went back counts as none."""
    samples = Samples()
    for seconds in (0.001, 0.002, 0.003):
        samples.add(seconds, 0.0005, -0.1)
    assert samples.cells() == ("2.00", "3.00", "3.00", "0.50", "0.00")
    assert len(samples.cells()) == len(SAMPLE_HEADS)
    assert samples.cpu == [0.0005] * 3


def test_the_stall_of_a_served_loop_is_measured_inside_it() -> None:
    """A loop of uvicorn that is blocked shows it, with the CPU time of its thread."""
    code = """
import asyncio, time, uvicorn
from uvicorn.server import Server
class Blocked(Server):
    async def startup(self, sockets=None): pass
    async def shutdown(self, sockets=None): pass
async def app(*_): pass
server = Blocked(uvicorn.Config(app, lifespan="off"))
async def main():
    loop = asyncio.create_task(server.main_loop())
    await asyncio.sleep(1)
    time.sleep(0.2)
    await asyncio.sleep(0.2)
    server.should_exit = True
    await loop
asyncio.run(main())
"""
    with loop_stalls() as stalls:
        environ = {**os.environ, **stalls.environ}
        with subprocess.Popen([sys.executable, "-c", code], env=environ) as process:
            stalls.reset()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while (stall := stalls.longest()).seconds < 0.19 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert process.returncode == 0
    assert stall.seconds > 0.19
    assert stall.loop_cpu_seconds < stall.seconds


async def test_copied_logs_build_like_those_of_the_service(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """A log that SQL made longer goes on with its seqs, turns and sums, and so do its copies."""
    rng = Random(1)
    roles = ("user", "assistant")
    block = [plain_message(rng, roles[place % 2], 100) for place in range(4)]

    async def post(path: str, body: object) -> dict[str, Any]:
        answer = await client.post(path, json=body)
        assert answer.is_success, answer.text
        made: dict[str, Any] = answer.json()
        return made

    made = await post("/v1/conversations", {"model": "gpt-4o"})
    path = f"/v1/conversations/{made['conversation_id']}"
    await post(f"{path}/messages", {"messages": block})
    by_sql = await post("/v1/conversations", {"model": "gpt-4o"})
    source = by_sql["conversation_id"]
    await post(f"/v1/conversations/{source}/messages", {"messages": block})
    for _ in range(2):
        await post(f"{path}/messages", {"messages": block})
    async with copying(database_url) as connection:
        assert await extend(connection, UUID(source), 1, 4, 2) == 12
        [copy] = await copy_conversations(connection, UUID(source), 1)
    expected = await post(f"{path}/context", {})
    for name in (source, str(copy)):
        built = await post(f"/v1/conversations/{name}/context", {})
        assert built["payload"]["messages"] == expected["payload"]["messages"]
        assert built["tokens_used"] == expected["tokens_used"]
        step = await post(f"/v1/conversations/{name}/context", {"append": {"messages": block}})
        assert step["through_seq"] == 16
    async with copying(database_url) as connection:
        columns = "seq, turn, tokens, total_tokens, role"
        query = f"SELECT {columns} FROM messages WHERE conversation_id = $1 AND seq <= 12"
        logs = [
            [tuple(row) for row in await connection.fetch(f"{query} ORDER BY seq", UUID(name))]
            for name in (made["conversation_id"], source)
        ]
    assert logs[0] == logs[1]

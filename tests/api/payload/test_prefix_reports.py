"""What a provider says of the prefix: removed reasoning and cache misses. [usage.prefix]"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from anthropic.types import Diagnostics
from anthropic.types.beta import BetaThinkingDroppedInputTransformation as Dropped
from anthropic.types.beta import BetaThinkingMismatchAllowedInputTransformation as Allowed
from openai.types.responses.response import InputTransformation, PromptCacheDiagnostics
from pydantic import TypeAdapter

from tests.api.talk import append, assert_problem, new_conversation, user

SEALED = "gAAAAAB" + "x3Zk" * 300
OPENAI, ANTHROPIC = "openai_responses", "anthropic"
USAGE = {"input_tokens": 900, "output_tokens": 40}


def thought(format: str, number: int) -> list[dict[str, Any]]:
    """Return an answer with reasoning, as the provider made it."""
    if format == ANTHROPIC:
        signed = {"type": "thinking", "thinking": "", "signature": f"{number}{SEALED}"}
        content = [signed, {"type": "text", "text": f"Answer {number}."}]
        return [{"role": "assistant", "content": content}]
    said = {"type": "output_text", "text": f"Answer {number}.", "annotations": []}
    message = {"id": f"msg_{number}", "role": "assistant", "content": [said]}
    reasoning = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
    return [
        {**reasoning, "encrypted_content": f"{number}{SEALED}"},
        {"type": "message", "status": "completed", **message},
    ]


def removal(format: str, number: int, reason: str) -> dict[str, Any]:
    """Return what the provider says of the reasoning in an answer, by the types of its SDK."""
    if format == ANTHROPIC:
        path, why = f"messages.{2 * number - 1}.content.0", reason.replace("_m", "_binding_m")
        found = Dropped.model_validate({"type": "thinking_dropped", "path": path, "reason": why})
        return found.model_dump()
    entry = {"type": "reasoning", "action": "removed", "id": f"rs_{number}", "reason": reason}
    return InputTransformation.model_validate(entry).model_dump()


class Talk:
    """A conversation in one format whose model thinks."""

    def __init__(self, client: httpx.AsyncClient, format: str, path: str) -> None:
        self.client, self.format, self.path = client, format, path
        self.turns = 0

    async def turn(self) -> None:
        """Append a question and an answer."""
        self.turns += 1
        await append(self.client, self.path, user(f"{self.turns}?"), format=self.format)
        await append(self.client, self.path, *thought(self.format, self.turns), format=self.format)

    async def think(self, number: int) -> None:
        """Append an answer."""
        await append(self.client, self.path, *thought(self.format, number), format=self.format)

    async def ask(self) -> dict[str, Any]:
        """Append a question and return the build."""
        await append(self.client, self.path, user("Next?"), format=self.format)
        return await self.build()

    async def build(self) -> dict[str, Any]:
        """Return a build."""
        answer = await self.client.post(f"{self.path}/context", json={"format": self.format})
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def report(self, **body: Any) -> dict[str, Any]:
        """Report a call, and return the answer."""
        answer = await self.client.post(f"{self.path}/usage", json={"usage": USAGE, **body})
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found


def shown(build: dict[str, Any]) -> list[int]:
    """Return the answers whose reasoning is in a payload."""
    text = str(build["payload"])
    return [number for number in range(1, 9) if f"{number}{SEALED}" in text]


@pytest.fixture(params=[OPENAI, ANTHROPIC])
async def thinking(client: httpx.AsyncClient, request: pytest.FixtureRequest) -> Talk:
    """Return a conversation after three turns."""
    model = {OPENAI: "gpt-5.6", ANTHROPIC: "claude-opus-5"}[request.param]
    talk = Talk(client, request.param, await new_conversation(client, model=model))
    for _ in range(3):
        await talk.turn()
    return talk


async def test_removed_reasoning_is_neither_sent_nor_counted(thinking: Talk) -> None:
    """Of another model it goes alone; later reasoning stays, and the prefix holds from then on."""
    before = await thinking.ask()
    assert shown(before) == [1, 2, 3]
    named = [removal(thinking.format, number, "model_mismatch") for number in (1, 2)]
    answer = await thinking.report(build_id=before["build_id"], input_transformations=named)
    removed = [{"seq": seq, "reason": named[0]["reason"]} for seq in (2, 4)]
    assert (answer["removed_reasoning"], answer["calibrated"]) == (removed, False)
    listed = (await thinking.client.get(f"{thinking.path}/usage/reports")).json()["data"]
    assert [item["removed_reasoning"] for item in listed] == [removed]
    after = await thinking.build()
    assert shown(after) == [3]
    assert after["cache_break_reason"] == "reasoning_dropped"
    assert "reasoning_dropped" in after["degraded"]
    assert before["tokens_used"] - after["tokens_used"] > 500
    await append(
        thinking.client, thinking.path, *thought(thinking.format, 4), format=thinking.format
    )
    later = await thinking.ask()
    assert (shown(later), later["cache_break_reason"]) == ([3, 4], None)
    assert later["epoch"] == after["epoch"]


async def test_what_was_made_behind_a_changed_prefix_goes_too(thinking: Talk) -> None:
    """Reasoning made since had the removed one in its prefix: it would be removed next."""
    before = await thinking.ask()
    named = [removal(thinking.format, 2, "prefix_mismatch")]
    await thinking.report(build_id=before["build_id"], input_transformations=named)
    await append(
        thinking.client, thinking.path, *thought(thinking.format, 4), format=thinking.format
    )
    after = await thinking.ask()
    assert (shown(after), after["cache_break_reason"]) == ([], "reasoning_dropped")
    await append(
        thinking.client, thinking.path, *thought(thinking.format, 5), format=thinking.format
    )
    later = await thinking.ask()
    assert (shown(later), later["cache_break_reason"]) == ([5], None)


async def test_a_report_of_an_older_epoch_removes_nothing(thinking: Talk) -> None:
    """Its payload is not the one that the next build extends."""
    before = await thinking.ask()
    assert (
        await thinking.client.patch(thinking.path, json={"policy": {"budget": {"notice_at": 0.5}}})
    ).is_success
    assert (await thinking.build())["epoch"] == before["epoch"] + 1
    named = [removal(thinking.format, 1, "model_mismatch")]
    await thinking.report(build_id=before["build_id"], input_transformations=named)
    assert shown(await thinking.build()) == [1, 2, 3]


async def test_reasoning_that_was_shown_all_the_same_stays(client: httpx.AsyncClient) -> None:
    """Anthropic also reports thinking that it did not remove, and other types may come."""
    path = await new_conversation(client, model="claude-opus-5")
    talk = Talk(client, ANTHROPIC, path)
    await talk.turn()
    before = await talk.ask()
    allowed = Allowed(
        type="thinking_mismatch_allowed",
        path="messages.1.content.0",
        reason="prefix_binding_mismatch",
    )
    entries = [allowed.model_dump(), {"type": "something_new"}]
    answer = await talk.report(build_id=before["build_id"], input_transformations=entries)
    assert answer["removed_reasoning"] == []
    after = await talk.build()
    assert (shown(after), after["cache_break_reason"]) == ([1], None)


async def test_thinking_without_a_place_is_all_thinking(client: httpx.AsyncClient) -> None:
    """Without its build a path leads nowhere: nothing that was thought is sent again."""
    talk = Talk(client, ANTHROPIC, await new_conversation(client, model="claude-opus-5"))
    await talk.turn()
    await talk.ask()
    entries = [removal(ANTHROPIC, 1, "model_mismatch")]
    answer = await talk.report(format=ANTHROPIC, input_transformations=entries)
    assert [item["seq"] for item in answer["removed_reasoning"]] == [None]
    assert shown(await talk.build()) == []


MISSES: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]] = [
    (
        OPENAI,
        {"type": "cache_miss", "reason": "tools_changed", "cache_missed_tokens": 4096},
        {"reason": "tools_changed", "missed_tokens": 4096},
    ),
    (OPENAI, {"type": "cache_hit"}, None),
    (OPENAI, {"type": "unavailable"}, {"reason": "unavailable", "missed_tokens": None}),
    (
        ANTHROPIC,
        {"cache_miss_reason": {"type": "system_changed", "cache_missed_input_tokens": 812}},
        {"reason": "system_changed", "missed_tokens": 812},
    ),
    (
        ANTHROPIC,
        {"cache_miss_reason": {"type": "previous_message_not_found"}},
        {"reason": "previous_message_not_found", "missed_tokens": None},
    ),
    (ANTHROPIC, {"cache_miss_reason": None}, None),
    (ANTHROPIC, None, None),
]


@pytest.mark.parametrize(("format", "told", "miss"), MISSES)
async def test_why_the_cache_missed(
    client: httpx.AsyncClient, format: str, told: dict[str, Any] | None, miss: dict[str, Any] | None
) -> None:
    """The provider's diagnostics are in the answer and in the list of reports."""
    kind: Any = Diagnostics if format == ANTHROPIC else PromptCacheDiagnostics
    if told is not None:
        TypeAdapter(kind).validate_python(told)
    talk = Talk(client, format, await new_conversation(client, model="gpt-5.6"))
    await talk.ask()
    answer = await talk.report(cache_diagnostics=told)
    listed = (await client.get(f"{talk.path}/usage/reports")).json()["data"]
    assert answer["cache_miss"] == listed[0]["cache_miss"] == miss


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"usage": USAGE, "input_transformations": [3]}, "/input_transformations/0"),
        (
            {"usage": USAGE, "input_transformations": [{"type": "thinking_dropped"}]},
            "/input_transformations/0/path",
        ),
        ({"usage": USAGE, "cache_diagnostics": {"type": 3}}, "/cache_diagnostics/type"),
        ({"cache_diagnostics": {"type": "unavailable"}}, "/usage"),
    ],
)
async def test_wrong_diagnostics(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    """A malformed entry is an error at its place, and so are diagnostics without a usage."""
    path = await new_conversation(client, model="gpt-5.6")
    assert_problem(await client.post(f"{path}/usage", json=body), 422, "VALIDATION_ERROR", pointer)

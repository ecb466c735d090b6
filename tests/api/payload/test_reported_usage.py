"""`/v1/conversations/{id}/usage`.

[usage.judged-by-larger, usage.calibration, usage.any-provider]
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from anthropic.types import Usage as AnthropicUsage
from google.genai.types import GenerateContentResponseUsageMetadata
from openai.types import CompletionUsage
from openai.types.completion_usage import PromptTokensDetails
from openai.types.responses import ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from tests.api.talk import append, assert_problem, new_conversation, talk

POLICY = {"budget": {"context_window": 20_000, "max_output_tokens": 1_000}}
TOLD = {
    "input_tokens": 400,
    "output_tokens": 50,
    "cache_creation_tokens": 0,
    "cache_read_tokens": 600,
    "total_tokens": 1_050,
}
OBJECTS = {
    "openai_chat": CompletionUsage(
        prompt_tokens=1_000,
        completion_tokens=50,
        total_tokens=1_050,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=600),
    ),
    "openai_responses": ResponseUsage(
        input_tokens=1_000,
        input_tokens_details=InputTokensDetails(cached_tokens=600, cache_write_tokens=0),
        output_tokens=50,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        total_tokens=1_050,
    ),
    "anthropic": AnthropicUsage(input_tokens=400, output_tokens=50, cache_read_input_tokens=600),
    "gemini": GenerateContentResponseUsageMetadata(
        prompt_token_count=1_000,
        cached_content_token_count=600,
        candidates_token_count=30,
        thoughts_token_count=20,
        total_token_count=1_050,
    ),
}


async def built(client: httpx.AsyncClient, **body: Any) -> tuple[str, dict[str, Any]]:
    """Return the path of a conversation of some 1,000 tokens, and its first build."""
    path = await new_conversation(client, policy=POLICY)
    await append(client, path, *talk(40))
    answer = await client.post(f"{path}/context", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return path, made


async def report(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """Report usage and return the answer."""
    answer = await client.post(f"{path}/usage", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.parametrize("format", OBJECTS)
@pytest.mark.parametrize("is_named", [True, False])
async def test_usage_of_every_provider(
    client: httpx.AsyncClient, format: str, is_named: bool
) -> None:
    """Each SDK's object is taken as it is, and means the same in the end.

    [usage.any-provider, usage.disjoint]
    """
    path = await new_conversation(client, policy=POLICY)
    named = {"format": format} if is_named else {}
    told = await report(client, path, usage=OBJECTS[format].model_dump(mode="json"), **named)
    assert told["token_usage"] == TOLD
    assert told["should_compact"] is False
    assert told["judged_tokens"] == 1_050
    assert told["pressure"] == "ok"
    assert (await report(client, path))["token_usage"] == TOLD


async def test_a_tool_loop_with_usage_reports(client: httpx.AsyncClient) -> None:
    """Reported usage corrects later estimates, which state the correction."""
    path, build = await built(client)
    before = (await client.get(f"{path}/budget")).json()["budget"]["tokens_used"]
    usage = {"prompt_tokens": 2 * build["tokens_used"], "completion_tokens": 5}
    told = await report(
        client, path, usage=usage, epoch=build["epoch"], through_seq=build["through_seq"]
    )
    assert told["calibrated"]
    assert told["estimate"] == {"method": "tokenizer x 2 (1 report)", "margin": 0.05, "factor": 2.0}
    assert told["budget"]["tokens_used"] == 2 * before
    assert (await client.get(f"{path}/budget")).json()["budget"]["tokens_used"] == 2 * before


async def test_nothing_reported(client: httpx.AsyncClient) -> None:
    """With nothing reported, or no body at all, the own estimate answers. [usage.answer]"""
    path, build = await built(client)
    for told in (
        await report(client, path),
        await report(client, path, usage=None),
        (await client.post(f"{path}/usage")).json(),
    ):
        assert (told["token_usage"], told["report_id"]) == (None, None)
        assert told["judged_tokens"] == build["tokens_used"]
        assert told["estimate"]["method"] == "tokenizer"
        assert told["budget"] == build["diagnostics"]["budget"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"usage": {}}, "/usage"),
    ({"usage": []}, "/usage"),
    ({"usage": "x"}, "/usage"),
    ({"usage": {"prompt_tokens": -1}}, "/usage/prompt_tokens"),
    ({"usage": {"prompt_tokens": 10**13}}, "/usage/prompt_tokens"),
    ({"usage": {"prompt_tokens": 10**40}}, "/usage/prompt_tokens"),
    ({"usage": {"prompt_tokens": 5, "x": "y" * 70_000}}, "/usage"),
    ({"usage": {"completion_tokens": 5}, "format": "gemini"}, "/usage"),
    ({"format": "cohere"}, "/format"),
    ({"model": ""}, "/model"),
    ({"epoch": -1}, "/epoch"),
    ({"epoch": "1"}, "/epoch"),
    ({"usage": {"prompt_tokens": 5}, "epoch": 1}, "/epoch"),
    ({"through_seq": 1}, "/through_seq"),
    ({"through_seq": 2**60}, "/through_seq"),
    ({"tokens": 5}, "/tokens"),
]


@pytest.mark.parametrize(("body", "pointer"), WRONG, ids=lambda value: str(value)[:60])
async def test_wrong_reports(client: httpx.AsyncClient, body: dict[str, Any], pointer: str) -> None:
    """What cannot be is a 422 that points at it, and is not stored. [errors.problem-json]"""
    path = await new_conversation(client)
    answer = await client.post(f"{path}/usage", json=body)
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)
    assert (await report(client, path))["token_usage"] is None

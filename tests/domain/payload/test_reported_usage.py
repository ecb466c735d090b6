"""Usage: what a provider reported, and when it says that it is time to compact.

[usage.judged-by-larger, usage.any-provider]
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import ServerToolUsage, Usage
from google.genai.interactions import Usage as InteractionUsage
from google.genai.types import GenerateContentResponseUsageMetadata, ModalityTokenCount
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage
from openai.types.completion_usage import PromptTokensDetails
from openai.types.responses import ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from app.common.errors import ValidationError
from app.conversations.epoch import Epoch
from app.formats.message import FormatName
from app.models.usage import CallUsage, TokenUsage, read_usage

# --- reading --------------------------------------------------------------------------------

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
STEP = {
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 40,
    "input_tokens": 10,
    "output_tokens": 7,
}


def test_steps_of_the_provider_are_noticed() -> None:
    """A payload that grew at the provider is not the one that was counted [usage.calibration]."""
    served = Usage(
        input_tokens=10,
        output_tokens=1,
        server_tool_use=ServerToolUsage(web_search_requests=1, web_fetch_requests=0),
    )
    assert read_usage(served.model_dump(), ANTHROPIC).has_steps
    none_served = Usage(
        input_tokens=10,
        output_tokens=1,
        server_tool_use=ServerToolUsage(web_search_requests=0, web_fetch_requests=0),
    )
    assert not read_usage(none_served.model_dump(), ANTHROPIC).has_steps
    one = {"input_tokens": 10, "iterations": [{**STEP, "type": "message"}]}
    assert not read_usage(one, ANTHROPIC).has_steps
    compacted = {"input_tokens": 0, "iterations": [{**STEP, "type": "compaction"}]}
    paused = read_usage(compacted, ANTHROPIC)
    assert paused.has_steps and paused.usage.sent_tokens == 0
    assert paused.billed.sent_tokens > 0
    assert read_usage({"prompt_token_count": 1, "tool_use_prompt_token_count": 1}, GEMINI).has_steps
    searched = InteractionUsage(total_input_tokens=9, total_tool_use_tokens=5)
    found = read_usage(searched.model_dump(exclude_none=True), FormatName.INTERACTIONS)
    assert found.has_steps and found.billed.sent_tokens == 14


def test_the_format_decides_between_two_meanings() -> None:
    """Fields of Anthropic and of OpenAI beside each other mean what the format means."""
    raw_usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60},
        "cache_read_input_tokens": 60,
        "output_tokens": 20,
    }
    assert read_usage(raw_usage, ANTHROPIC).usage == TokenUsage(100, 20, 0, 60)
    for format in (CHAT, RESPONSES, GEMINI):
        assert read_usage(raw_usage, format).usage == TokenUsage(40, 20, 0, 60)
    del raw_usage["input_tokens_details"]
    for format in FormatName:
        assert read_usage(raw_usage, format).usage == TokenUsage(100, 20, 0, 60)


def shapes_of(fresh: int, output: int, write: int, read: int) -> dict[str, dict[str, Any]]:
    """Return one call in the shape of every provider, as its SDK or LiteLLM dumps it."""
    sent = fresh + write + read
    litellm = {
        "completion_tokens": output,
        "prompt_tokens": sent,
        "total_tokens": sent + output,
        "prompt_tokens_details": {"cached_tokens": read, "cache_creation_tokens": write},
        "cache_creation_input_tokens": write,
        "cache_read_input_tokens": read,
    }
    step = {
        "type": "message",
        "input_tokens": fresh,
        "output_tokens": output,
        "cache_creation_input_tokens": write,
        "cache_read_input_tokens": read,
    }
    objects: dict[str, Any] = {
        "chat": CompletionUsage(
            prompt_tokens=sent,
            completion_tokens=output,
            total_tokens=sent + output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=read, cache_write_tokens=write),
        ),
        "responses": ResponseUsage(
            input_tokens=sent,
            input_tokens_details=InputTokensDetails(cached_tokens=read, cache_write_tokens=write),
            output_tokens=output,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=sent + output,
        ),
        "anthropic": Usage(
            input_tokens=fresh,
            output_tokens=output,
            cache_creation_input_tokens=write,
            cache_read_input_tokens=read,
        ),
    }
    if not write:  # Gemini tells of none
        objects["gemini"] = GenerateContentResponseUsageMetadata(
            prompt_token_count=sent,
            cached_content_token_count=read,
            candidates_token_count=output,
            total_token_count=sent + output,
            prompt_tokens_details=[ModalityTokenCount(modality="TEXT", token_count=sent)],
        )
        objects["interactions"] = InteractionUsage(
            total_input_tokens=sent,
            total_cached_tokens=read,
            total_output_tokens=output - output // 3,
            total_thought_tokens=output // 3,
            total_tokens=sent + output,
            input_tokens_by_modality=[{"modality": "text", "tokens": sent}],
        )
    shapes = {name: made.model_dump() for name, made in objects.items()}
    shapes |= {f"{n} sparse": made.model_dump(exclude_none=True) for n, made in objects.items()}
    if not write:
        wire = objects["gemini"].model_dump_json(by_alias=True, exclude_none=True)
        shapes["gemini wire"] = json.loads(wire)
    if not write and not read:
        shapes["plain"] = {"input_tokens": sent, "output_tokens": output}
    return shapes | {"litellm": litellm, "litellm steps": litellm | {"iterations": [step]}}


COUNT = st.integers(0, 10**6)


@given(COUNT, COUNT, st.just(0) | COUNT, st.just(0) | COUNT)
def test_a_call_is_the_same_in_every_shape_and_format(
    fresh: int, output: int, write: int, read: int
) -> None:
    """Whichever provider's object a gateway reports in whichever format, it says the same."""
    usage = TokenUsage(fresh, output, write, read)
    expected = CallUsage(usage, usage)
    for name, raw_usage in shapes_of(fresh, output, write, read).items():
        for format in FormatName:
            assert read_usage(raw_usage, format) == expected, (name, format)


BIG = 10**12
WRONG: list[tuple[FormatName, dict[str, Any], str]] = [
    (CHAT, {}, "/usage"),
    (ANTHROPIC, {"output_tokens": 5}, "/usage"),
    (CHAT, {"prompt_tokens": "5"}, "/usage/prompt_tokens"),
    (CHAT, {"prompt_tokens": BIG + 1}, "/usage/prompt_tokens"),
    (CHAT, {"prompt_tokens": 5, "completion_tokens": -1}, "/usage/completion_tokens"),
    (CHAT, {"prompt_tokens": 5, "prompt_tokens_details": 5}, "/usage/prompt_tokens_details"),
    (RESPONSES, {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 6}}, "/usage"),
    (
        ANTHROPIC,
        {"input_tokens": 5, "iterations": [{"type": "message", "input_tokens": None}]},
        "/usage/iterations/0/input_tokens",
    ),
    (GEMINI, {"candidates_token_count": 5}, "/usage"),
]


@pytest.mark.parametrize(("format", "raw_usage", "pointer"), WRONG, ids=str)
def test_numbers_that_cannot_be(
    format: FormatName, raw_usage: dict[str, Any], pointer: str
) -> None:
    """A number that is none, or contradicts another, is refused where it stands."""
    with pytest.raises(ValidationError) as caught:
        read_usage(raw_usage, format)
    assert [place.pointer for place in caught.value.problems] == [pointer]


TOKEN = st.integers(-2, 2 * BIG) | st.none() | st.booleans() | st.text(max_size=2) | st.floats()
NESTED = st.dictionaries(
    st.sampled_from(["cached_tokens", "cache_write_tokens", "type", "input_tokens"]), TOKEN
)
NAMES = sorted({name for shape in shapes_of(1, 1, 0, 1).values() for name in shape})


@given(
    st.dictionaries(st.sampled_from(NAMES), TOKEN | NESTED | st.lists(NESTED, max_size=2)),
    st.sampled_from(FormatName),
)
def test_any_object_is_read_or_refused(raw_usage: dict[str, Any], format: FormatName) -> None:
    """Whatever comes is usage with numbers that can be, or a refusal with its place."""
    try:
        usage = read_usage(raw_usage, format).usage
    except ValidationError as error:
        assert error.problems[0].pointer.startswith("/usage")
    else:
        parts = (usage.input_tokens, usage.output_tokens, usage.cache_creation_tokens)
        assert all(part >= 0 for part in (*parts, usage.cache_read_tokens))
        assert usage.total_tokens == usage.sent_tokens + usage.output_tokens


# --- which epoch ----------------------------------------------------------------------------


def epoch(number: int, view_version: int) -> Epoch:
    """Return an epoch that shows this version of the view."""
    return Epoch(number, "id", "lane", "anthropic", 0, None, 5, view_version, "{}", "", "", "")

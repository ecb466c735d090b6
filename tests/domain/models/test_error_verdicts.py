"""What errors of providers say about the size of a request. [compaction.overflow-errors]

`provider_errors/tuning.jsonl` has the errors that the table of phrasings was written with, with the
issue or page where each was found. `held_out.jsonl` has those that were collected afterwards.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models.error_verdicts import Verdict, VerdictKind, is_context_overflow, judge_error

FOLDER = Path(__file__).parent / "provider_errors"
FILES = ["tuning.jsonl", "held_out.jsonl"]
INPUT, OUTPUT, OTHER = VerdictKind.INPUT_TOO_LONG, VerdictKind.OUTPUT_TOO_LARGE, VerdictKind.OTHER


def recorded(file: str) -> list[dict[str, Any]]:
    """Return the recorded errors of a file."""
    return [json.loads(line) for line in (FOLDER / file).read_text().splitlines()]


def kind_of(error: Any, status: int | None = None) -> VerdictKind:
    """Return what an error says."""
    return judge_error(error, status).kind


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("expected", list(VerdictKind))
def test_recorded_errors_are_judged_right(file: str, expected: VerdictKind) -> None:
    """Each recorded error has its verdict: bare, with its status, and inside a proxy's JSON."""
    errors = [row for row in recorded(file) if row["verdict"] == expected]
    assert errors
    for row in errors:
        error, status = row["error"], row["status"]
        assert kind_of(error) == expected, row
        assert kind_of(error, status) == expected, row
        text = error if isinstance(error, str) else json.dumps(error)
        assert kind_of(text, status) == expected, row
        assert kind_of({"error": {"message": text, "code": None}}, status) == expected, row
        assert kind_of([{"detail": f"upstream said: {text}"}], status) == expected, row


LIMITS: list[tuple[str, int | None]] = [
    ("max_tokens is too large: 8192. This model supports at most 4096 completion tokens", 4096),
    ("Invalid max_tokens value, the valid range of max_tokens is [1, 65,536]", 65_536),
    ("a maxOutputTokens value of 9 but the supported range is from 1 to 8193 (exclusive).", 8192),
    ("input length and `max_tokens` exceed context limit: 143653 + 64000 > 200000", 56_347),
    (
        "maximum context length is 8192 tokens. However, you requested 8256 tokens (64 in the"
        " messages, 8192 in the completion).",
        8128,
    ),
    (  # the input is counted up to this number only
        "maximum context length is 131072 tokens. However, you requested 128000 output tokens and"
        " your prompt contains at least 3073 input tokens",
        None,
    ),
    ("max_output_tokens is too high", None),
]


@pytest.mark.parametrize(("text", "limit"), LIMITS)
def test_the_accepted_output_is_read(text: str, limit: int | None) -> None:
    """The verdict has the limit, where the error names it."""
    verdict = judge_error(text)
    assert (verdict.kind, verdict.output_limit) == (OUTPUT, limit)


@given(st.none() | st.integers(1, 10**7), st.integers(1, 10**7))
def test_a_lowered_output_is_never_higher(limit: int | None, present: int) -> None:
    """It is the named limit or lower; without one it is half of what there was."""
    lowered = Verdict(OUTPUT, False, limit).lowered_output(present)
    assert 1 <= lowered <= present
    assert lowered <= (limit if limit is not None else max(1, present // 2))


def test_the_numbers_of_a_sum_decide() -> None:
    """Lowering the output is the answer only where it leaves enough of it."""
    text = "input length and `max_tokens` exceed context limit: {} + {} > {}"
    assert kind_of(text.format(199_759, 8192, 200_000)) == INPUT
    assert kind_of(text.format(250_000, 8192, 200_000)) == INPUT
    assert kind_of(text.format(184_915, 20_000, 204_648)) == OUTPUT
    text = "maximum context length is {} tokens. However, you requested {} tokens ({} in the "
    text += "messages, {} in the completion)"
    assert kind_of(text.format(4096, 4118, 3118, 1000)) == INPUT
    assert kind_of(text.format(4097, 4256, 2256, 2000)) == OUTPUT
    assert kind_of(text.format(4097, 8000, 6000, 2000)) == INPUT
    assert is_context_overflow(text.format(4097, 4256, 2256, 2000))
    assert not is_context_overflow(
        "max_tokens: 9000 > 8192, which is the maximum allowed number of"
        " output tokens for claude-3-5-sonnet"
    )


@pytest.mark.parametrize("name", ["code", "type", "stop_reason", "finish_reason"])
def test_a_code_is_enough(name: str) -> None:
    """A code decides, in any field and beside any message."""
    code = "model_context_window_exceeded"
    assert kind_of({"error": {name: code, "message": "Bad request"}}, 400) == INPUT
    assert kind_of(code) == INPUT


def test_the_status_decides_where_words_do_not() -> None:
    """413 means too long; with 401 to 404 and 429 only a code does, wherever the status is from."""
    assert kind_of(None, 413) == kind_of("Request Entity Too Large", 413) == INPUT
    assert {kind_of(None, status) for status in (200, 400, 429, 500, None)} == {OTHER}
    assert kind_of("413 status code (no body)") == INPUT
    assert kind_of({"error": {"code": 413, "message": "?"}}) == INPUT
    assert kind_of({"error": {"code": "context_length_exceeded"}}, 429) == INPUT
    assert kind_of("prompt is too long: 9 tokens > 8 maximum", 429) == OTHER
    assert kind_of({"code": 429, "message": "prompt is too long: 9 tokens > 8 maximum"}) == OTHER
    assert kind_of("image exceeds 5 MB maximum", 413) == VerdictKind.MEDIA_REFUSED


def test_only_strings_of_the_history_count() -> None:
    """A string that is too long is the input's only where the history has it."""
    text = "Invalid '{}': string too long. Expected a string with maximum length {}"
    assert kind_of(text.format("messages[1].content", 1_048_576)) == INPUT
    assert kind_of(text.format("input[3].output", 10_485_760)) == INPUT
    assert kind_of(text.format("instructions", 256_000)) == OTHER
    assert kind_of(text.format("tools[0].function.description", 1_024)) == OTHER
    assert kind_of(text.format("messages[1].name", 64)) == OTHER
    assert kind_of("Invalid 'input': array too long. Expected maximum length 1000") == INPUT
    assert kind_of("Invalid 'tools': array too long. Expected maximum length 128") == OTHER


def test_nested_and_quoted_json_is_read() -> None:
    """Proxies put the provider's JSON into a string of their own, some more than once."""
    inner = {"type": "error", "error": {"message": "prompt is too long: 300 tokens > 256 maximum"}}
    wrapped: Any = {"error": {"message": "Provider returned error", "metadata": {}}}
    wrapped["error"]["metadata"]["raw"] = json.dumps(inner)
    assert kind_of(wrapped, 400) == INPUT
    twice = f"upstream said: {json.dumps({'detail': json.dumps(wrapped)})}"
    assert kind_of(twice) == INPUT
    listed = json.dumps({"errors": [{"code": "other"}, {"message": "context length exceeded"}]})
    assert kind_of(listed) == INPUT
    assert kind_of(f"[{json.dumps({'a': 'b'})}, {json.dumps(inner)}]") == INPUT


def test_a_quoted_request_is_ignored() -> None:
    """Words in the part of an error that repeats the request are not the provider's."""
    error = {"detail": [{"loc": ["body"], "msg": "Field required", "input": "prompt is too long"}]}
    assert kind_of(error, 422) == OTHER
    assert kind_of(json.dumps([error]), 422) == OTHER


HOSTILE: list[Any] = [
    *(word * 100_000 for word in ("prompt ", "{", "max ", "context ", "max_tokens ", "1,", "{}")),
    "maximum context length is 1 tokens. you requested 2 tokens (" + "1, " * 300_000,
    "invalid a: string too long. expected a string " * 20_000,
    "[" + '{"a":"prompt is"},' * 60_000 + "]",
    [{"message": "prompt too"}] * 100_000,
    {str(number): "max tokens input" for number in range(60_000)},
    {"code": 10**5_000},
]


@pytest.mark.parametrize("error", HOSTILE, ids=range(len(HOSTILE)))
def test_large_hostile_errors_take_no_time(error: Any) -> None:
    """The work is bounded: an error of a megabyte is judged at once. [errors.problem-json]"""
    began = time.process_time()
    judge_error(error)
    assert time.process_time() - began < 0.5


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text() | _json, st.none() | st.integers(100, 599))
def test_no_error_can_raise(error: Any, status: int | None) -> None:
    """Any answer of a provider is judged. [errors.no-500]"""
    judge_error(error, status)

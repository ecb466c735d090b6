"""An independent judge of the payloads that go to providers. It imports nothing of the service.

`judge(format, payload)` returns what a provider would refuse (errors) and what would cost quality
or cache (warnings). The payload is the request as the provider's SDK takes it. Each module reads
it twice: by the SDK's own types, and by the rules that the types cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.judge import anthropic, gemini, openai_chat, openai_responses
from tests.judge.findings import Finding, errors
from tests.judge.sdk_types import check_model, check_type

__all__ = ["Finding", "check_model", "check_type", "errors", "judge", "refusals"]

_JUDGES = {
    "openai_chat": openai_chat.judge,
    "openai_responses": openai_responses.judge,
    "anthropic": anthropic.judge,
    "gemini": gemini.judge,
}


def judge(format: str, payload: Mapping[str, Any]) -> list[Finding]:
    """Return everything that is wrong with a payload; `model` and output limit may be missing."""
    return _JUDGES[str(format)](dict(payload))


def refusals(format: str, payload: Mapping[str, Any]) -> list[str]:
    """Return the errors alone, as texts that a failed assertion shows."""
    return [str(error) for error in errors(judge(format, payload))]

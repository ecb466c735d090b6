"""An independent judge of the payloads that go to providers. It imports nothing of the service.

`judge(format, payload)` returns what a provider would refuse (errors) and what would cost quality
or cache (warnings). The payload is the request as the provider's SDK takes it. Each module reads
it twice: by the SDK's own types, and by the rules that the types cannot express. `epochs` has the
rules of all providers, most of which need the build before. `docs/provider-rules.md` lists the
rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.judge import anthropic, epochs, gemini, interactions, openai_chat, openai_responses
from tests.judge.findings import Facts, Finding, errors
from tests.judge.sdk_types import check_model, check_type

__all__ = ["Facts", "Finding", "check_model", "check_type", "errors", "judge", "refusals"]

_JUDGES = {
    "openai_chat": openai_chat.judge,
    "openai_responses": openai_responses.judge,
    "anthropic": anthropic.judge,
    "gemini": gemini.judge,
    "gemini_interactions": interactions.judge,
}
NO_FACTS = Facts()


def judge(format: str, payload: Mapping[str, Any], facts: Facts = NO_FACTS) -> list[Finding]:
    """Return everything that is wrong with a payload; `model` and output limit may be missing."""
    found = _JUDGES[str(format)](dict(payload), facts)
    return found + epochs.judge(str(format), dict(payload), facts)


def refusals(format: str, payload: Mapping[str, Any], facts: Facts = NO_FACTS) -> list[str]:
    """Return the errors alone, as texts that a failed assertion shows."""
    return [str(error) for error in errors(judge(format, payload, facts))]

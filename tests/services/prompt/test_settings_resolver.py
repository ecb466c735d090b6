"""Resolved settings: levels merged into policy, model, window, sections and tools.

[budget.window-sources, tokens.counters, policy.merge-by-name]
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.common.errors import ContextLimitUnknown
from app.common.ids import AgentId, ConversationId
from app.conversations.conversation import Conversation, ConversationState, StoredSettings
from app.conversations.settings_resolver import SettingsResolver
from app.models.budget import Calibration
from app.prompt.resolved_settings import RequestSettings, ResolvedSettings
from tests.services.fakes import MODEL, MODELS, TOKENIZER

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def resolver(**service_policy: Any) -> SettingsResolver:
    """Return a resolver with a service policy."""
    return SettingsResolver(MODELS, TOKENIZER, service_policy, MODEL)


def settings(
    model: str | None = None,
    policy: dict[str, Any] | None = None,
    sections: list[dict[str, Any]] | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> StoredSettings:
    """Return the stored settings of one level."""
    return StoredSettings(
        model, json.dumps(policy or {}), json.dumps(sections or []), json.dumps(tools or [])
    )


def conversation(
    own: StoredSettings | None = None, agent: StoredSettings | None = None
) -> Conversation:
    """Return a conversation with settings of these levels."""
    return Conversation(
        conversation_id=ConversationId("c"),
        agent_id=AgentId("a"),
        counter="tokenizer",
        settings=own or StoredSettings(),
        agent=agent or StoredSettings(),
        metadata="{}",
        created_at=NOW,
        updated_at=NOW,
        state=ConversationState(),
    )


async def resolved(
    request: RequestSettings | None = None, **levels: StoredSettings
) -> ResolvedSettings:
    """Return the resolved settings of a conversation with these levels."""
    return await resolver().of(conversation(**levels), request)


async def test_context_windows_of_request_and_policy() -> None:
    """The request's window is used, the policy's own is what compaction is judged by (13)."""
    own = settings(policy={"budget": {"context_window": 20_000, "max_output_tokens": 500}})
    plain = await resolved(own=own)
    assert plain.required_limits().total == 20_000
    assert not plain.has_smaller_window
    smaller = await resolved(RequestSettings(context_window=9_000), own=own)
    assert smaller.required_limits().total == 9_000
    assert smaller.policy_limits is not None
    assert smaller.policy_limits.total == 20_000
    assert smaller.has_smaller_window
    assert not (await resolved(RequestSettings(context_window=20_000), own=own)).has_smaller_window
    output = await resolved(RequestSettings(max_output_tokens=900), own=own)
    assert output.required_limits().max_output_tokens == 900
    assert output.has_smaller_window


async def test_an_unknown_context_window_is_an_error_only_if_needed() -> None:
    """Without a window the settings resolve, and reading the limits raises the reason."""
    own = settings("nobody/knows")
    unknown = await resolved(own=own)
    assert unknown.limits is None
    with pytest.raises(ContextLimitUnknown):
        unknown.required_limits()
    given = await resolved(RequestSettings(context_window=5_000, max_output_tokens=100), own=own)
    assert given.required_limits().total == 5_000
    assert given.has_smaller_window
    derive = settings("nobody/knows", {"budget": {"context_window": "derive"}})
    assert (await resolved(own=derive)).required_limits().total == 4 * 4096


async def test_counts_are_corrected_by_the_models_reports() -> None:
    """A calibration's factor, rounded, multiplies the counts, and its margin is added."""
    several = resolver()
    plain = conversation(settings(sections=[{"name": "a", "content": "word " * 100}]))
    told = replace(plain, calibration=Calibration(1.31249, 0.0212, 5))
    made = await several.of(told)
    assert made.factor == 1.312
    assert made.required_limits().margin == 0.021
    assert made.policy_limits is not None
    assert made.policy_limits.margin == 0.021
    raw = (await several.of(plain)).usage(1_000, 0)
    assert made.usage(1_000, 0).conversation == 1_312
    assert made.usage(1_000, 0).system_prompt == pytest.approx(1.312 * raw.system_prompt, abs=1)
    assert (await several.of(plain)).factor == 1.0
    assert (await several.of(plain)).required_limits().margin == 0
    near = replace(plain, calibration=Calibration(1.31251, 0.02119, 6))
    assert (await several.of(near)).factor == 1.313
    same = replace(plain, calibration=Calibration(1.31247, 0.02121, 6))
    assert await several.of(same) is made


async def test_without_a_model_the_context_window_is_unknown() -> None:
    """Without a model the error asks for one [payload.model-required]."""
    made = SettingsResolver(MODELS, TOKENIZER, {}, None)
    with pytest.raises(ContextLimitUnknown, match="No model is named"):
        (await made.of(conversation())).required_limits()

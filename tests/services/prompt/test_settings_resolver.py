"""Resolved settings: levels merged into policy, model, window, sections and tools.

[budget.window-sources, tokens.counters, policy.merge-by-name]
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.common.errors import ContextLimitUnknown
from app.conversations.conversation import Conversation, ConversationState, StoredSettings
from app.conversations.settings_resolver import SettingsResolver
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
        conversation_id="c",
        agent_id="a",
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


async def test_without_a_model_the_context_window_is_unknown() -> None:
    """Without a model the error asks for one [payload.model-required]."""
    made = SettingsResolver(MODELS, TOKENIZER, {}, None)
    with pytest.raises(ContextLimitUnknown, match="No model is named"):
        (await made.of(conversation())).required_limits()

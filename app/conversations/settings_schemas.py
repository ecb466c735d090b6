"""What agents and conversations have in common on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from app.common import json_text
from app.common.answers import AnyObject
from app.conversations.agents.agent import Agent
from app.conversations.configurable_resources import Configured
from app.conversations.conversation import Conversation
from app.conversations.own_settings import OwnSettings, Patch
from app.conversations.windows.rolling_window import WindowSource
from app.http.fields import Metadata, ModelName, RequestSchema, ResponseSchema
from app.policy.policy import DEFAULT_POLICY
from app.prompt.policy_schemas import EffectivePolicy, PolicyPatch, policy_settings
from app.prompt.section_schemas import (
    StoredSections,
    complete_sections,
    sections_to_store,
)
from app.prompt.sections import PromptSection
from app.prompt.tool_schemas import AnyTool, StoredTools

EFFECTIVE_SETTINGS: dict[str, Any] = {
    "effective_model": "gpt-4o",
    "policy": dict(DEFAULT_POLICY),
    "policy_overrides": {},
    "sections": [],
    "sections_version": 0,
    "tools": [],
    "tools_version": 0,
}
"""An example of the effective settings."""


class SettingsCreate(RequestSchema):
    """The settings of a new agent or conversation."""

    model: ModelName | None = None
    """Its own model; null inherits from the agent or the service."""
    policy: PolicyPatch | None = None
    """Its own policy settings."""
    sections: StoredSections = Field(default_factory=list)
    """Its own sections of the system prompt."""
    tools: StoredTools = Field(default_factory=list)
    """Its own tools."""
    metadata: Metadata = Field(default_factory=dict)

    def creation(self) -> dict[str, Any]:
        """Return the fields of a `Creation` but for its idempotency key."""
        return {
            "settings": OwnSettings(
                model=self.model,
                policy=policy_settings(self.policy) or {},
                sections=sections_to_store(self.sections),
                tools=self.tools,
            ),
            "metadata": self.metadata,
            "request": self.model_dump(exclude_unset=True),
        }


class SettingsPatch(RequestSchema):
    """A change of settings; omitted fields stay unchanged."""

    model: ModelName | None = None
    """`null` inherits from the agent or the service again."""
    policy: PolicyPatch | None = None
    """Merged leaf by leaf: a null leaf inherits again, a null policy resets all."""
    metadata: Metadata = Field(default_factory=dict)
    """Replaces the stored metadata."""

    def patch(self, **own: Any) -> Patch:
        """Return the change, with further fields of the resource."""
        return Patch(
            fields=frozenset(self.model_fields_set),
            model=self.model,
            policy=policy_settings(self.policy),
            metadata=self.metadata,
            **own,
        )


class ListedSettings(ResponseSchema):
    """What a list shows of the settings."""

    model: str | None
    """Its own model; null inherits."""
    metadata: Metadata
    """As the caller gave it."""
    rolling_window_seconds: int | None
    """Effective maximum age of the messages shown; null is no limit."""
    rolling_window_source: WindowSource
    """The level that sets this age."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When its settings last changed."""


class EffectiveSettings(ResponseSchema):
    """Settings with those inherited."""

    effective_model: str | None
    """The model after inheritance."""
    policy: EffectivePolicy
    """The effective policy: a value for every setting."""
    policy_overrides: AnyObject
    """Its own policy settings."""
    sections: list[PromptSection]
    """Its own sections of the system prompt."""
    sections_version: int
    """Version of the sections; 0 for none."""
    tools: list[AnyTool]
    """Its own tools, as the caller gave them."""
    tools_version: int
    """Version of the tools; 0 for none."""


def listed_settings(resource: Agent | Conversation) -> dict[str, Any]:
    """Return the fields of `ListedSettings`."""
    return {
        "model": resource.settings.model,
        "metadata": json_text.loads(resource.metadata),
        "rolling_window_seconds": resource.rolling_window.seconds,
        "rolling_window_source": resource.rolling_window.source,
        "created_at": resource.created_at,
        "updated_at": resource.updated_at,
    }


def effective_settings(configured: Configured[Agent] | Configured[Conversation]) -> dict[str, Any]:
    """Return the fields of `EffectiveSettings`."""
    settings, versions = configured.resource.settings, configured.resource.versions
    return {
        "effective_model": configured.model,
        "policy": configured.policy,
        "policy_overrides": json_text.loads(settings.policy),
        "sections": complete_sections(json_text.loads(settings.sections)),
        "sections_version": versions.sections,
        "tools": json_text.loads(settings.tools),
        "tools_version": versions.tools,
    }

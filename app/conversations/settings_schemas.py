"""What agents and conversations have in common on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field, WrapValidator, create_model

from app.common import json_text
from app.common.answers import AnyObject
from app.conversations.agents.agent import Agent
from app.conversations.configurable_resources import Configured
from app.conversations.conversation import Conversation
from app.conversations.own_settings import OwnSettings, Patch
from app.conversations.windows.active_window import WindowSource
from app.environment import one_line
from app.http.fields import Metadata, ModelName, RequestSchema, ResponseSchema
from app.policy.policy import DEFAULT_POLICY, Group, Policy
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


class _PolicyPatch(RequestSchema):
    """The base of a change of the policy, whose own types say what is converted."""

    model_config = ConfigDict(strict=False)


def _patch_of(kind: type[Group]) -> Any:
    """Return the schema of a change of these settings: none is required, null inherits again."""
    members: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name not in kind.model_fields:
            continue
        is_group = isinstance(hint, type) and issubclass(hint, Group)
        text = hint.__doc__ if is_group else one_line(kind.model_fields[name].description)
        kind_of_value = _patch_of(hint) if is_group else hint
        members[name] = (kind_of_value | None, Field(default=None, description=text))
    name = f"{kind.__name__}Patch"
    return create_model(name, __base__=_PolicyPatch, __doc__=kind.__doc__, **members)


PolicyPatch: Any = _patch_of(Policy)
"""Policy settings in a request."""


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
                policy=self.policy.model_dump(exclude_unset=True) if self.policy else {},
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
            policy=self.policy and self.policy.model_dump(exclude_unset=True),
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


def _unchecked(policy: Any, _check: Any) -> Any:
    """Return a policy as it is: an inherited one may have become invalid, and is shown."""
    return policy


class EffectiveSettings(ResponseSchema):
    """Settings with those inherited."""

    effective_model: str | None
    """The model after inheritance."""
    policy: Annotated[Policy, WrapValidator(_unchecked)]
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

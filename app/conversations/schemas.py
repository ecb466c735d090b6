"""Agents and conversations on the wire."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field, WrapValidator, create_model

from app.common import json_text
from app.common.answer_schemas import AnyObject
from app.common.environment import one_line
from app.common.errors import ValidationError
from app.conversations.conversation import (
    INHERIT,
    Resource,
    SettingsList,
    StoredSettings,
    stored_rolling_window,
)
from app.conversations.receipt import Trigger
from app.http.cursors import Page
from app.http.fields import (
    AgentId,
    ConversationId,
    DisplayName,
    Metadata,
    ModelName,
    OwnRollingWindow,
    RequestSchema,
    ResponseSchema,
    Time,
    examples,
)
from app.models.budget import ContextBudget, Pressure
from app.models.usage import MAX_DAYS
from app.policy.policy import Group, Policy, merge
from app.prompt.schemas import Sections, ToolObject, Tools
from app.prompt.sections import PromptSection


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


class SettingsPatch(RequestSchema):
    """A change of settings; omitted fields stay unchanged."""

    model: ModelName | None = None
    """Its own model; null inherits from the agent or the service."""
    policy: PolicyPatch | None = None
    """Its own policy, merged leaf by leaf: a null leaf inherits, a null policy resets all."""
    sections: Sections = Field(default_factory=list)
    """Its own sections of the system prompt, which replace all earlier ones."""
    tools: Tools = Field(default_factory=list)
    """Its own tools, which replace all earlier ones."""
    rolling_window_seconds: OwnRollingWindow = None
    metadata: Metadata = Field(default_factory=dict)

    @property
    def summariser(self) -> str | None:
        """The model for summaries that the policy names."""
        compaction = self.policy and self.policy.compaction
        return compaction.model if compaction else None

    def changed(self, settings: StoredSettings) -> StoredSettings:
        """Return the settings with the named ones changed; raises ValidationError."""
        fields = self.model_fields_set
        if "model" in fields:
            settings = replace(settings, model=self.model)
        if "policy" in fields:
            own: dict[str, Any] = {}
            if self.policy is not None:
                given = self.policy.model_dump(exclude_unset=True)
                own = merge(json_text.loads(settings.policy), given)
            settings = replace(settings, policy=json_text.dumps(own))
        if "sections" in fields:
            sections = [section.model_dump(exclude_none=True) for section in self.sections]
            settings = settings.with_list(SettingsList.SECTIONS, sections)
        if "tools" in fields:
            settings = settings.with_list(SettingsList.TOOLS, self.tools)
        return settings

    def applied(self, resource: Resource) -> Resource:
        """Return the resource with settings, rolling window and metadata changed."""
        changes: dict[str, Any] = {"settings": self.changed(resource.settings)}
        if "rolling_window_seconds" in self.model_fields_set:  # an inherited one is read again
            changes["own_window"] = stored_rolling_window(self.rolling_window_seconds)
        if "metadata" in self.model_fields_set:
            changes["metadata"] = json_text.dumps(self.metadata)
        return replace(resource, **changes)


class SettingsCreate(SettingsPatch):
    """The settings of a new agent or conversation."""

    rolling_window_seconds: OwnRollingWindow = INHERIT

    @property
    def columns(self) -> dict[str, Any]:
        """What is stored beside the settings."""
        return {
            "metadata": json_text.dumps(self.metadata),
            "rolling_window_seconds": stored_rolling_window(self.rolling_window_seconds),
        }


class _Expiring(RequestSchema):
    """A request that may set when a conversation expires."""

    expires_at: Time | None = None
    """When it expires; null for never."""

    def check_expiry(self, now: datetime) -> None:
        """Raise ValidationError for a time that is not after now."""
        if self.expires_at is not None and self.expires_at <= now:
            raise ValidationError.at("/expires_at", "must be in the future")


class ListVersion(ResponseSchema):
    """A version of the sections or tools of an agent or a conversation."""

    items: list[AnyObject]
    """The sections or tools, as the caller gave them."""


class ListedSettings(ResponseSchema):
    """What a list shows of the settings."""

    model: str | None
    """Its own model; null inherits."""
    metadata: Metadata
    """As the caller gave it."""
    rolling_window_seconds: int | None
    """Effective maximum age of the messages shown; null is no limit."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When its settings last changed."""


class EffectiveSettings(ResponseSchema):
    """Settings with those inherited."""

    effective_model: str | None
    """The model after inheritance."""
    # Unchecked: an inherited policy may have become invalid, and is shown.
    policy: Annotated[Policy, WrapValidator(lambda policy, _check: policy)]
    """The effective policy: a value for every setting."""
    policy_overrides: AnyObject
    """Its own policy settings."""
    sections: list[PromptSection]
    """Its own sections of the system prompt."""
    sections_version: int
    """Version of the sections; 0 for none."""
    tools: list[ToolObject]
    """Its own tools, as the caller gave them."""
    tools_version: int
    """Version of the tools; 0 for none."""


class ConversationCreate(SettingsCreate, _Expiring):
    """A new conversation."""

    model_config = examples(
        {
            "model": "gpt-4o",
            "sections": [{"name": "base", "content": "You are a careful assistant."}],
            "policy": {"sandwich": {"preserve_bottom": 8}},
            "metadata": {"customer": "42"},
        }
    )

    conversation_id: ConversationId | None = None
    agent_id: AgentId | None = None
    """The agent it belongs to."""


class ConversationPatch(SettingsPatch, _Expiring):
    """A change; omitted fields stay unchanged."""

    model_config = examples({"policy": {"budget": {"context_window": 32000, "notice_at": None}}})


class ConversationItem(ListedSettings):
    """A conversation in a list."""

    conversation_id: str
    """Id of the conversation."""
    agent_id: str | None
    """The agent it belongs to."""
    head_seq: int
    """Seq of the newest message; 0 for an empty log."""
    turn_count: int
    """User messages so far."""
    message_count: int
    """Messages in the log."""
    token_count: int
    """Tokens of the whole log, by the conversation's counter."""
    last_cleared_at: datetime | None
    """When it was last cleared, alone or with its agent; null if it never was."""
    last_message_at: datetime | None
    """When its newest message was received; null without messages."""
    expires_at: datetime | None
    """From then on it is answered as unknown, and soon deleted; null for never."""


class LastCompaction(ResponseSchema):
    """The newest compaction of a conversation."""

    compaction_id: str
    """Its id."""
    created_at: datetime
    """When it was applied."""
    trigger: Trigger
    """Why it ran."""
    degraded: list[str]
    """What it lacks, as in its receipt."""


class ConversationUsage(ResponseSchema):
    """How full the context window of a conversation is, and what it cost."""

    budget: ContextBudget | None
    """The budget of the next build; null without a known context window."""
    pressure: Pressure | None
    """The highest level reached."""
    cost_usd: float | None = Field(
        description=f"Price of its calls of the last {MAX_DAYS} days; null where none has a price."
    )
    saved_tokens: int
    """Tokens of the log that its calls of these days did not send."""
    last_compaction: LastCompaction | None
    """Its newest compaction, undone or not; null without one."""
    failed_at: datetime | None
    """When its last automatic compaction failed; null once one has succeeded since."""
    overflowed_at: datetime | None
    """When its payload was last cut because a provider refused it; null if never."""


class ListedConversation(ConversationItem):
    """A conversation in a list, on request with its usage."""

    usage: ConversationUsage | None
    """With `include=usage`; null without it."""


class ConversationPage(Page[ListedConversation]):
    """Conversations, newest first in the requested order."""


class ShownConversation(EffectiveSettings, ConversationItem):
    """A conversation with all its settings."""


class AgentCreate(SettingsCreate):
    """A new agent."""

    model_config = examples(
        {
            "agent_id": "support-bot",
            "name": "Support bot",
            "model": "gpt-4o",
            "sections": [{"name": "base", "content": "You answer support questions."}],
        }
    )

    agent_id: AgentId | None = None
    name: DisplayName


class AgentPatch(SettingsPatch):
    """A change; omitted fields stay unchanged."""

    model_config = examples({"name": "Support bot (EU)", "model": None})

    name: DisplayName | None = None
    """A new name; null leaves it."""


class AgentItem(ListedSettings):
    """An agent in a list."""

    agent_id: str
    """Id of the agent."""
    name: str
    """Display name."""
    last_cleared_at: datetime
    """When it was last cleared; when it was created if it never was."""


class Cleared(ResponseSchema):
    """A conversation, or those of an agent, whose active windows were emptied."""

    last_cleared_at: datetime
    """Payloads show no message from before."""
    conversation_count: int
    """How many conversations were cleared."""


class AgentPage(Page[AgentItem]):
    """Agents, newest first."""


class ShownAgent(EffectiveSettings, AgentItem):
    """An agent with all its settings."""

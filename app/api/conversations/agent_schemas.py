"""Agents on the wire (B1)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from app.api.http.fields import (
    AgentId,
    Answered,
    AnyObject,
    AnyTool,
    Asked,
    DisplayName,
    Metadata,
    ModelName,
    RollingWindow,
    StoredTools,
)
from app.api.http.pages import Page
from app.api.prompt.policy_schemas import PolicyPatch, ShownPolicy
from app.api.prompt.section_schemas import ShownSection, StoredSections
from app.domain.common.policy import DEFAULTS
from app.domain.conversations.active_window import DEFAULT_ROLLING_WINDOW_SECONDS

_ITEM: dict[str, Any] = {
    "agent_id": "support-bot",
    "name": "Support bot",
    "model": "gpt-4o",
    "metadata": {},
    "rolling_window_seconds": 86_400,
    "last_cleared_at": "2026-01-05T09:30:00.123456+00:00",
    "created_at": "2026-01-05T09:30:00.123456+00:00",
    "updated_at": "2026-01-05T09:30:00.123456+00:00",
}


class AgentCreate(Asked):
    """A new agent."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "agent_id": "support-bot",
                    "name": "Support bot",
                    "model": "gpt-4o",
                    "sections": [{"name": "base", "content": "You answer support questions."}],
                }
            ]
        }
    )

    agent_id: AgentId | None = None
    name: DisplayName
    model: ModelName | None = Field(default=None, description="Model of its conversations.")
    policy: PolicyPatch | None = Field(
        default=None, description="Settings its conversations inherit."
    )
    rolling_window_seconds: RollingWindow | None = DEFAULT_ROLLING_WINDOW_SECONDS
    sections: StoredSections = Field(
        default_factory=list, description="System prompt of its conversations."
    )
    tools: StoredTools = Field(default_factory=list, description="Tools of its conversations.")
    metadata: Metadata = Field(default_factory=dict)


class AgentPatch(Asked):
    """A change; what is left out stays."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "Support bot (EU)", "model": None}]}
    )

    name: DisplayName | None = Field(default=None, description="A new name for people.")
    model: ModelName | None = Field(default=None, description="null goes back to the service's.")
    policy: PolicyPatch | None = Field(
        default=None,
        description="Merged leaf by leaf: a null leaf inherits again, a null policy resets all.",
    )
    rolling_window_seconds: RollingWindow | None = Field(
        default=None, description="A longer one shows again what was older; null is no limit."
    )
    metadata: Metadata = Field(default_factory=dict, description="Replaces the metadata there are.")


class AgentItem(Answered):
    """An agent in a list."""

    agent_id: str = Field(description="Id of the agent.")
    name: str = Field(description="Name for people.")
    model: str | None = Field(description="Its own model; null inherits.")
    metadata: Metadata = Field(description="As the caller gave it.")
    rolling_window_seconds: int | None = Field(
        description="How old a message may be that its conversations show; null is no limit."
    )
    last_cleared_at: datetime = Field(
        description="When it was cleared last; when it was created, as long as it never was."
    )
    created_at: datetime = Field(description="When it was created.")
    updated_at: datetime = Field(description="When its settings last changed.")


class ClearedAgent(Answered):
    """An agent whose conversations start anew."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "agent_id": "support-bot",
                    "last_cleared_at": "2026-01-05T09:30:00.123456+00:00",
                    "conversations": 3,
                }
            ]
        }
    )

    agent_id: str = Field(description="Id of the agent.")
    last_cleared_at: datetime = Field(description="Nothing from before is shown any more.")
    conversations: int = Field(description="How many conversations were cleared.")


class AgentPage(Page[AgentItem]):
    """Agents, newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"data": [_ITEM], "next_cursor": None}]}
    )


class ShownAgent(AgentItem):
    """An agent with all its settings."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    **_ITEM,
                    "effective_model": "gpt-4o",
                    "policy": dict(DEFAULTS),
                    "policy_overrides": {},
                    "sections": [],
                    "sections_version": 0,
                    "tools": [],
                    "tools_version": 0,
                }
            ]
        }
    )

    effective_model: str | None = Field(description="The model after inheriting.")
    policy: ShownPolicy = Field(description="The effective policy, every setting.")
    policy_overrides: AnyObject = Field(description="The settings of its own layer.")
    sections: list[ShownSection] = Field(description="Its parts of the system prompt.")
    sections_version: int = Field(description="Version of the sections, 0 for none.")
    tools: list[AnyTool] = Field(description="Its tools, as they were given.")
    tools_version: int = Field(description="Version of the tools, 0 for none.")

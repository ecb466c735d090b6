"""The frame: everything of a payload that does not come from the log.

Policy, model, window, sections and tools of one request, resolved from their layers and counted
once. Two requests with equal frames and equal views build payloads of which the later extends
the earlier (G3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.domain import jsontext
from app.domain.agent_tools import AGENT_TOOLS
from app.domain.budget import Limits, Usage, scaled
from app.domain.errors import ContextError, ValidationError
from app.domain.formats import ToolDefinition, anthropic, openai_chat, parse_tool
from app.domain.limits import ModelInfo
from app.domain.messages import FormatName
from app.domain.policy import Policy
from app.domain.sections import PromptSection, SectionKind, system_text
from app.domain.tokens import CountText, count_system, estimate_tool_defs_tokens

MOST_CHAT_TOOLS = 128
STUB_TOOL = ToolDefinition(
    name="no_tools_available",
    description="Stands for tools used earlier in the conversation; it cannot be called now.",
    parameters={"type": "object", "properties": {}},
)
"""Sent where a provider demands tools with a history that calls some (A6, decision 20)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a build request itself brings; JSON lists as text, so that it can be a key."""

    format: FormatName = FormatName.OPENAI_CHAT
    model: str | None = None
    max_output_tokens: int | None = None
    max_context_tokens: int | None = None
    sections: str = "[]"
    tools: str = "[]"


@dataclass(frozen=True, slots=True)
class Frame:
    """A resolved frame; `raw_fixed` counts sections and tools before the factor.

    `texts` holds sections, tools and policy as JSON by their hashes, for the epoch's record.

    `limits` is what this request may use, None with `problem` saying why no window is known.
    `policy_limits` leaves the request's own window, model and reserve out: what compaction is
    judged by (decision 13).
    """

    policy: Policy
    model: str | None
    info: ModelInfo | None
    limits: Limits | None
    policy_limits: Limits | None
    problem: ContextError | None
    sections: tuple[PromptSection, ...]
    tools: tuple[ToolDefinition, ...]
    raw_fixed: Usage
    factor: float
    count: CountText
    sections_hash: str
    tools_hash: str
    policy_hash: str
    texts: Mapping[str, str]
    _wire_tools: dict[tuple[FormatName, tuple[str, ...]], bytes | None] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    _extra_tokens: dict[tuple[str, ...], int] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def required_limits(self) -> Limits:
        """Return the limits, or raise what makes them unknown."""
        if self.limits is None:
            assert self.problem is not None
            raise self.problem
        return self.limits

    def judging_limits(self) -> Limits:
        """Return what compaction is judged by: the policy's own limits, where there are any."""
        return self.policy_limits or self.required_limits()

    def wire_tools(self, format: FormatName, extra: tuple[str, ...] = ()) -> bytes | None:
        """Return the tool list of a payload as JSON, written once; None without tools.

        `extra` are names of the service's own tools that come after the caller's.
        """
        key = format, extra
        if key not in self._wire_tools:
            self._wire_tools[key] = wire_tools((*self.tools, *map(own_tool, extra)), format)
        return self._wire_tools[key]

    def extra_tokens(self, extra: tuple[str, ...]) -> int:
        """Return what own tools cost in a payload, before the factor."""
        if extra not in self._extra_tokens:
            own = [own_tool(name) for name in extra]
            self._extra_tokens[extra] = (
                estimate_tool_defs_tokens((*self.tools, *own), self.count)
                - self.raw_fixed.tool_descriptions
                if own
                else 0
            )
        return self._extra_tokens[extra]

    @property
    def nameable(self) -> frozenset[str]:
        """The agent's own tools that texts of a payload may name (L1)."""
        given = {tool.name for tool in self.tools}
        return frozenset(name for name in AGENT_TOOLS if name in given or name in self._offered)

    def agent_tools(self, mentions: Iterable[str]) -> tuple[str, ...]:
        """Return which of the agent's own tools a payload gets that mentions these (L1).

        What the caller gives under such a name takes its place.
        """
        is_auto = self.policy.agent_tools == "auto"
        wanted = self._offered & set(mentions) if is_auto else self._offered
        given = {tool.name for tool in self.tools}
        return tuple(name for name in AGENT_TOOLS if name in wanted and name not in given)

    @property
    def _offered(self) -> frozenset[str]:
        """The own tools that may be added: none where a provider would not take all of them."""
        listed = self.policy.agent_tools
        if listed == "none" or len(self.tools) + len(AGENT_TOOLS) > MOST_CHAT_TOOLS:
            return frozenset()
        return frozenset(AGENT_TOOLS if listed == "auto" else listed)

    @property
    def is_reduction(self) -> bool:
        """Whether the request's window is smaller than the policy's (decision 13)."""
        if self.limits is None or self.policy_limits is None:
            return self.policy_limits is None
        return self.limits.effective_window < self.policy_limits.effective_window

    def usage(self, conversation: int, summary: int, extra_tools: int = 0) -> Usage:
        """Return the usage of a payload from raw counts (decision 12)."""
        return Usage(
            system_prompt=scaled(self.raw_fixed.system_prompt, self.factor),
            skill_prompts=scaled(self.raw_fixed.skill_prompts, self.factor),
            tool_descriptions=scaled(self.raw_fixed.tool_descriptions + extra_tools, self.factor),
            summary=scaled(summary, self.factor),
            conversation=scaled(conversation, self.factor),
        )


def own_tool(name: str) -> ToolDefinition:
    """Return the definition of one of the service's own tools."""
    return STUB_TOOL if name == STUB_TOOL.name else AGENT_TOOLS[name].definition


def tools_from(layers: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[ToolDefinition, ...]:
    """Return the tools of all layers, later ones replacing earlier ones of the same name."""
    by_name: dict[str, ToolDefinition] = {}
    for layer in layers:
        for index, raw in enumerate(layer):
            tool = parse_tool(raw, f"/tools/{index}")
            by_name[tool.name] = tool
    return tuple(by_name.values())


def check_tools(tools: Sequence[ToolDefinition], format: FormatName) -> None:
    """Refuse more tools than a format takes (B4)."""
    if format is FormatName.OPENAI_CHAT and len(tools) > MOST_CHAT_TOOLS:
        raise ValidationError.at(
            "/tools", f"{len(tools)} tools, and OpenAI takes at most {MOST_CHAT_TOOLS}"
        )


def fixed_usage(
    sections: Sequence[PromptSection], tools: Sequence[ToolDefinition], count: CountText
) -> Usage:
    """Count sections and tools; the system prompt is counted whole, as it is sent."""
    text = system_text(sections)
    whole = count_system(text, count) if text else 0
    skills = [section for section in sections if section.kind is SectionKind.SKILL]
    skill = sum(count(section.content) for section in skills)
    return Usage(
        system_prompt=max(0, whole - skill),
        skill_prompts=min(skill, whole),
        tool_descriptions=estimate_tool_defs_tokens(tools, count) if tools else 0,
    )


def wire_tools(tools: Sequence[ToolDefinition], format: FormatName) -> bytes | None:
    """Return the tool list of a payload as JSON, None when there is none to send."""
    if not tools:
        return None
    codec = anthropic if format is FormatName.ANTHROPIC else openai_chat
    return jsontext.dump_payload(codec.tools_to_wire(tools))


def digest(text: str) -> str:
    """Return the content address of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

"""The frame: everything of a payload that does not come from the log.

Policy, model, window, sections and tools of one request, resolved from their layers and counted
once. Two requests with equal frames and equal views build payloads of which the later extends
the earlier (G3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from app.domain.common import json_text
from app.domain.common.errors import ContextError, ValidationError
from app.domain.common.messages import OPENAI_FORMATS, FormatName
from app.domain.common.policy import Policy, StatusPreamble
from app.domain.formats import FORMATS, ToolDefinition, parse_tool
from app.domain.formats.reasoning_families import accepted_families
from app.domain.models.budget import Limits, Usage, scaled
from app.domain.models.limits import ModelInfo
from app.domain.models.tokens import (
    MESSAGE_OVERHEAD,
    CountText,
    count_system,
    estimate_tool_defs_tokens,
)
from app.domain.prompt.agent_tools import AGENT_TOOLS
from app.domain.prompt.sections import (
    PromptSection,
    SectionKind,
    Tail,
    dynamic_texts,
    merge_sections,
    static_sections,
    system_text,
)
from app.domain.prompt.tool_deferral import is_fixed, plan_deferral, with_deferred
from app.domain.tool_output.preview import TOOL_SEARCH

MAX_CHAT_TOOLS = 128
"""So many tools OpenAI takes, in either of its formats."""
_NEVER: Mapping[str, int] = MappingProxyType({})
STUB_TOOL = ToolDefinition(
    name="no_tools_available",
    description="Stands for tools used earlier in the conversation; it cannot be called now.",
    parameters={"type": "object", "properties": {}},
)
"""Sent where a provider demands tools with a history that calls some (A6, decision 20)."""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What a build request itself brings; JSON lists as text, so that it can be a key."""

    format: FormatName = FormatName.OPENAI_CHAT
    model: str | None = None
    max_output_tokens: int | None = None
    max_context_tokens: int | None = None
    sections: str = "[]"
    tools: str = "[]"
    dynamic: tuple[PromptSection, ...] = field(default=(), compare=False)
    status: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PayloadTools:
    """The tools of a payload besides the caller's, and which of the caller's it holds back.

    `extra` are the service's own, or the stub (L1, A6). `native` tells that the provider knows of
    the tools held back and finds them by itself, so that none of them is ever shown anew (H3).
    """

    extra: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    native: bool = False


NO_PAYLOAD_TOOLS = PayloadTools()
_Value = TypeVar("_Value")


class Memo:
    """What was worked out once; forgotten when it is too much, as conversations differ."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._held: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """Return what was made for a key; the key says which kind it is."""
        value: _Value | None = self._held.get(key)
        if value is None:
            value = make()
            if len(self._held) >= self._most:  # another thread may use it at the same time
                self._held.clear()
            self._held[key] = value
        return value


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """A resolved frame; `raw_fixed` counts sections and tools before the factor.

    Of the tools it counts those that are not held back as long as nothing is known of their use;
    `raw_dynamic` of it is for the dynamic ones among the sections. `texts` holds sections, tools
    and policy as JSON by their hashes, for the epoch's record.

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
    tool_costs: tuple[int, ...] = ()
    raw_dynamic: int = 0
    _worked_out: Memo = field(init=False, default_factory=Memo, compare=False, repr=False)

    def required_limits(self) -> Limits:
        """Return the limits, or raise what makes them unknown."""
        if self.limits is None:
            assert self.problem is not None
            raise self.problem
        return self.limits

    def judging_limits(self) -> Limits:
        """Return what compaction is judged by: the policy's own limits, where there are any."""
        return self.policy_limits or self.required_limits()

    def takes_reasoning_of(self, format: FormatName) -> tuple[str, ...]:
        """Return whose reasoning the model takes of what came in the Chat format (N12)."""
        return accepted_families(self.model or "", format)

    # --- tools ---------------------------------------------------------------------------

    def wire_tools(self, format: FormatName, offer: PayloadTools) -> bytes | None:
        """Return the tool list of a payload as JSON, written once; None without tools."""
        key = "wire_tools", format, offer
        return self._worked_out.once(key, lambda: self._written_tools(format, offer))

    def _written_tools(self, format: FormatName, offer: PayloadTools) -> bytes | None:
        own = tuple(map(own_tool, offer.extra))
        if offer.native and offer.deferred:
            shown = with_deferred(format, (*self.tools, *own), offer.deferred)
            return json_text.dump_payload(shown)
        held = set(offer.deferred)
        return wire_tools((*(tool for tool in self.tools if tool.name not in held), *own), format)

    def tool_tokens(self, offer: PayloadTools, references: tuple[str, ...] = ()) -> int:
        """Return what the tools of a payload cost, before the factor.

        `references` are tools that a search has shown the model although they are held back.
        """

        def counted() -> int:
            hidden = set(offer.deferred).difference(references)
            costs = zip(self.tools, self.tool_costs, strict=True)
            given = sum(cost for tool, cost in costs if tool.name not in hidden)
            return given + self.extra_tokens(offer.extra)

        return self._worked_out.once(("tool_tokens", offer, references), counted)

    def extra_tokens(self, extra: tuple[str, ...]) -> int:
        """Return what own tools cost in a payload, before the factor."""
        own = map(own_tool, extra)
        return self._worked_out.once(
            ("extra_tokens", extra), lambda: estimate_tool_defs_tokens(own, self.count)
        )

    def defined(self, offer: PayloadTools) -> frozenset[str]:
        """Return which of the caller's tools a payload defines, those held back natively too."""

        def names() -> frozenset[str]:
            found = frozenset(tool.name for tool in self.tools)
            return found if offer.native else found.difference(offer.deferred)

        return self._worked_out.once(("defined", offer), names)

    @property
    def is_searchable(self) -> bool:
        """Whether a payload can have `tool_search`, without which nothing is held back (H4)."""
        return self._has_search or TOOL_SEARCH in self._offered

    def usually_deferred(self, format: FormatName) -> ResolvedSettings:
        """Return the frame with what it counts for tools where only the unused are held back."""
        deferred = self.deferral(format)
        if not deferred:
            return self
        search = () if self._has_search else (TOOL_SEARCH,)
        tokens = self.tool_tokens(PayloadTools(search, deferred))
        return replace(self, raw_fixed=replace(self.raw_fixed, tool_descriptions=tokens))

    def deferral(
        self,
        format: FormatName,
        last_used: Mapping[str, int] = _NEVER,
        promoted: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Return the tools to hold back: none while all together are within their share (H1)."""
        if self.limits is None or not self.is_searchable:
            return ()
        share = self.policy.tool_deferral_threshold
        allowed = int(share * self.limits.effective_window / self.factor)
        if sum(self.tool_costs) > allowed and not self._has_search:
            # What is held back has to be found, by a tool that costs something as well.
            allowed -= self.extra_tokens((TOOL_SEARCH,))
        most = MAX_CHAT_TOOLS - len(AGENT_TOOLS) if format in OPENAI_FORMATS else None
        return plan_deferral(self.tools, self.tool_costs, allowed, last_used, promoted, most)

    def defers_natively(self, format: FormatName) -> bool:
        """Whether the provider itself can hold tools back with this model (H3)."""
        known = self.info is not None and self.info.tool_search
        return known and format in (FormatName.ANTHROPIC, FormatName.OPENAI_RESPONSES)

    @property
    def nameable(self) -> frozenset[str]:
        """The agent's own tools that texts of a payload may name (L1)."""

        def names() -> frozenset[str]:
            given = {tool.name for tool in self.tools}
            return frozenset(name for name in AGENT_TOOLS if name in given or name in self._offered)

        return self._worked_out.once("nameable", names)

    def agent_tools(self, mentions: Iterable[str]) -> tuple[str, ...]:
        """Return which of the agent's own tools a payload gets that mentions these (L1).

        What the caller gives under such a name takes its place.
        """
        is_auto = self.policy.agent_tools == "auto"
        wanted = self._offered & set(mentions) if is_auto else self._offered
        given = {tool.name for tool in self.tools}
        return tuple(name for name in AGENT_TOOLS if name in wanted and name not in given)

    @property
    def _listed(self) -> frozenset[str]:
        listed = self.policy.agent_tools
        if listed == "none":
            return frozenset()
        return frozenset(AGENT_TOOLS if listed == "auto" else listed)

    @property
    def _offered(self) -> frozenset[str]:
        """The own tools that may be added: none where a provider would not take all of them."""
        listed, count = self._listed, len(self.tools)
        if self._has_search or TOOL_SEARCH in listed:
            count = sum(is_fixed(tool) for tool in self.tools)
        return listed if count + len(AGENT_TOOLS) <= MAX_CHAT_TOOLS else frozenset()

    @property
    def _has_search(self) -> bool:
        return any(tool.name == TOOL_SEARCH for tool in self.tools)

    # --- dynamic text --------------------------------------------------------------------

    def dynamic(self, ask: RequestSettings) -> tuple[str, ...]:
        """Return the texts that stand outside the cached prefix, as a request brings them (B4)."""
        sections = self.sections
        if ask.dynamic:
            sections = merge_sections([sections, ask.dynamic])
        return dynamic_texts(sections, ask.status)

    def derives_status(self, ask: RequestSettings) -> bool:
        """Whether nobody says what the agent is doing besides, so that it is worked out (B4)."""
        if self.policy.status_preamble is StatusPreamble.NONE or ask.status is not None:
            return False
        sections = (*self.sections, *ask.dynamic)
        return all(section.kind is not SectionKind.STATUS for section in sections)

    def tail(self, texts: tuple[str, ...]) -> Tail:
        """Return texts as a tail in the role that the model's provider takes them in."""
        as_system = self.info is not None and self.info.mid_conversation_system
        return Tail(texts, as_system)

    def system_tokens(self, texts: Sequence[str]) -> int:
        """Return what texts cost in messages of their own, before the factor."""
        return message_tokens(texts, self.count)

    def section_tokens(self, section: PromptSection) -> int:
        """Return what one section costs in the system prompt, counted once."""
        key = "section_tokens", section.content
        return self._worked_out.once(key, lambda: self.count(section.content))

    @property
    def is_reduction(self) -> bool:
        """Whether the request's window is smaller than the policy's (decision 13)."""
        if self.limits is None or self.policy_limits is None:
            return self.policy_limits is None
        return self.limits.effective_window < self.policy_limits.effective_window

    def usage(
        self, conversation: int, summary: int, extra_tools: int = 0, extra_system: int = 0
    ) -> Usage:
        """Return the usage of a payload from raw counts (decision 12)."""
        return Usage(
            system_prompt=scaled(self.raw_fixed.system_prompt + extra_system, self.factor),
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


def takes_all(resolved: ResolvedSettings, format: FormatName) -> bool:
    """Whether a format takes as many tools as there are (B4)."""
    return format not in OPENAI_FORMATS or len(resolved.tools) + len(AGENT_TOOLS) <= MAX_CHAT_TOOLS


def check_tools(resolved: ResolvedSettings, format: FormatName) -> None:
    """Refuse more tools than a format takes, where not enough of them can be held back (B4)."""
    if format not in OPENAI_FORMATS or len(resolved.tools) <= MAX_CHAT_TOOLS:
        return
    held = len(resolved.deferral(format))
    if len(resolved.tools) - held > MAX_CHAT_TOOLS:
        raise ValidationError.at(
            "/tools",
            f"{len(resolved.tools)} tools, and OpenAI takes at most {MAX_CHAT_TOOLS}; tools of the"
            " category mcp or skill would be held back",
        )


def fixed_usage(sections: Sequence[PromptSection], tool_tokens: int, count: CountText) -> Usage:
    """Count sections, beside tools that are counted already.

    The system prompt is counted whole, as it is sent, and each dynamic text as a message.
    """
    static = static_sections(sections)
    text = system_text(static)
    whole = count_system(text, count) if text else 0
    skills = [section for section in static if section.kind is SectionKind.SKILL]
    skill = min(sum(count(section.content) for section in skills), whole)
    return Usage(
        system_prompt=whole - skill + message_tokens(dynamic_texts(sections), count),
        skill_prompts=skill,
        tool_descriptions=tool_tokens,
    )


def message_tokens(texts: Iterable[str], count: CountText) -> int:
    """Count texts, each as a message of its own."""
    return sum(MESSAGE_OVERHEAD + count(text) for text in texts)


def tool_costs(tools: Iterable[ToolDefinition], count: CountText) -> tuple[int, ...]:
    """Count each tool's definition."""
    return tuple(estimate_tool_defs_tokens([tool], count) for tool in tools)


def wire_tools(tools: Sequence[ToolDefinition], format: FormatName) -> bytes | None:
    """Return the tool list of a payload as JSON, None when there is none to send."""
    if not tools:
        return None
    return json_text.dump_payload(FORMATS[format].tools_to_wire(tools))


def digest(text: str) -> str:
    """Return the content address of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

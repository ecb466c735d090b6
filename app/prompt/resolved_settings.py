"""Resolved settings: all inputs of a payload that do not come from the log.

The policy, model, limits, sections and tools of one request, merged from the settings levels and
counted once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from app.blobs.preview import COMPACT_CONTEXT, PIN_MESSAGES, RECALL, TOOL_SEARCH
from app.common import json_text
from app.common.errors import ContextError, ValidationError
from app.formats import PROVIDERS, ToolDefinition, parse_tool
from app.formats.message import FormatName
from app.formats.openai_chat import MAX_TOOLS
from app.formats.tools import is_run_by_client
from app.models.budget import Limits, PayloadTokens, scaled
from app.models.model_info import ModelInfo
from app.models.tokens import MESSAGE_OVERHEAD, CountText, count_system, estimate_tool_defs_tokens
from app.policy.policy import Policy
from app.prompt.agent_tools import AGENT_TOOLS, can_defer, plan_deferral
from app.prompt.sections import (
    NOTE_ROUNDS,
    DynamicTexts,
    Notes,
    PromptSection,
    SectionKind,
    dynamic_texts,
    merge_sections,
    percent_of,
    static_sections,
    system_text,
)

MAX_AGENT_TOOLS_SHARE = 0.2
"""The share of what prompt and tools leave that agent tools may take while no text names them."""
_MAX_MEMO_ENTRIES = 256
_NEVER_USED: Mapping[str, int] = MappingProxyType({})
STUB_TOOL = ToolDefinition(
    name="no_tools_available",
    description="Stands for tools used earlier in the conversation; it cannot be called now.",
    parameters={"type": "object", "properties": {}},
)
"""Sent if a history has tool calls, no tools are given and the provider requires some."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The settings of a build request. JSON lists are strings, so that it is hashable."""

    format: FormatName = FormatName.OPENAI_CHAT
    model: str | None = None
    max_output_tokens: int | None = None
    context_window: int | None = None
    sections: str = "[]"
    tools: str = "[]"
    dynamic: tuple[PromptSection, ...] = field(default=(), compare=False)
    status: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PayloadTools:
    """The agent tools in a payload, and the caller's tools that it defers.

    `agent_tools` may instead name the stub. `native` is true if the provider gets the definitions
    of deferred tools and searches them itself [tools.native-deferral].
    """

    agent_tools: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    native: bool = False

    def with_agent_tools(self, names: tuple[str, ...]) -> PayloadTools:
        """Return the same tools with these agent tools."""
        return self if names == self.agent_tools else replace(self, agent_tools=names)


NO_PAYLOAD_TOOLS = PayloadTools()


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """The resolved settings of a request.

    `raw_fixed` are the tokens of sections and tools, before the calibration factor. It leaves out
    tools that are deferred while none has been used. `raw_dynamic` is the part for dynamic
    sections. `texts` has the JSON of sections, tools and policy by hash, for the epoch's record.

    `limits` are the limits of this request; None if the context window is unknown, with the
    error in `limits_error`. `policy_limits` ignore the request's own context window, model and
    output limit: compaction uses them.
    """

    policy: Policy
    model: str | None
    info: ModelInfo | None
    limits: Limits | None
    policy_limits: Limits | None
    limits_error: ContextError | None
    sections: tuple[PromptSection, ...]
    tools: tuple[ToolDefinition, ...]
    raw_fixed: PayloadTokens
    factor: float
    count: CountText
    sections_hash: str
    tools_hash: str
    policy_hash: str
    texts: Mapping[str, str]
    tool_costs: tuple[int, ...] = ()
    left_out_tools: tuple[str, ...] = ()
    raw_dynamic: int = 0
    _memo: dict[Hashable, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def required_limits(self) -> Limits:
        """Return the limits; raises `limits_error` without them."""
        if self.limits is None:
            assert self.limits_error is not None
            raise self.limits_error
        return self.limits

    def compaction_limits(self) -> Limits:
        """Return the limits for compaction: the policy's, or else the request's."""
        return self.policy_limits or self.required_limits()

    @property
    def has_smaller_window(self) -> bool:
        """Whether the request's effective window is smaller, or the only one."""
        if self.limits is None or self.policy_limits is None:
            return self.policy_limits is None
        return self.limits.effective_window < self.policy_limits.effective_window

    def accepted_reasoning(self, format: FormatName) -> tuple[str, ...]:
        """Return the model families whose reasoning in Chat messages the model accepts."""
        return PROVIDERS[format].accepted_families(self.model or "")

    def _cached(self, compute: Callable[[], _Value], *key: Hashable) -> _Value:
        value: _Value | None = self._memo.get(key)
        if value is None:
            value = compute()
            if len(self._memo) >= _MAX_MEMO_ENTRIES:  # another thread may add at the same time
                self._memo.clear()
            self._memo[key] = value
        return value

    # --- tools ---------------------------------------------------------------------------

    def wire_tools(self, format: FormatName, payload_tools: PayloadTools) -> bytes | None:
        """Return the tool list of a payload as JSON, cached; None without tools."""

        def rendered() -> bytes | None:
            deferred, provider = payload_tools.deferred, PROVIDERS[format]
            tools = (*self.tools, *map(agent_tool_definition, payload_tools.agent_tools))
            if payload_tools.native and deferred:
                return json_text.dump_payload(
                    provider.deferred_to_wire(tools, deferred, TOOL_SEARCH)
                )
            tools = tuple(tool for tool in tools if tool.name not in deferred)
            return json_text.dump_payload(provider.tools_to_wire(tools)) if tools else None

        return self._cached(rendered, "wire_tools", format, payload_tools)

    def tool_tokens(self, payload_tools: PayloadTools, references: tuple[str, ...] = ()) -> int:
        """Return the tokens of a payload's tools, before the factor.

        `references` are deferred tools that the model has seen in a search result.
        """

        def counted() -> int:
            hidden = set(payload_tools.deferred).difference(references)
            costs = zip(self.tools, self.tool_costs, strict=True)
            defined = sum(cost for tool, cost in costs if tool.name not in hidden)
            return defined + self.agent_tool_tokens(payload_tools.agent_tools)

        return self._cached(counted, "tool_tokens", payload_tools, references)

    def agent_tool_tokens(self, names: tuple[str, ...]) -> int:
        """Return the tokens of agent tools in a payload, before the calibration factor."""

        def counted() -> int:
            return estimate_tool_defs_tokens(map(agent_tool_definition, names), self.count)

        return self._cached(counted, "agent_tool_tokens", names)

    def defined_tool_names(self, payload_tools: PayloadTools) -> frozenset[str]:
        """Return the caller's tools that a payload defines, natively deferred ones included."""
        hidden = () if payload_tools.native else payload_tools.deferred
        return self._tool_names.difference(hidden)

    def with_usual_deferral(self, format: FormatName) -> ResolvedSettings:
        """Return these settings with the tool tokens of a payload before any tool call."""
        deferred = self.deferral(format)
        if not deferred:
            return self
        search = () if TOOL_SEARCH in self._tool_names else (TOOL_SEARCH,)
        tokens = self.tool_tokens(PayloadTools(search, deferred))
        return replace(self, raw_fixed=replace(self.raw_fixed, tool_descriptions=tokens))

    def deferral(
        self,
        format: FormatName,
        last_used: Mapping[str, int] = _NEVER_USED,
        promoted: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Return the tools to defer: none while all are within their share."""
        has_search = TOOL_SEARCH in self._tool_names
        if self.limits is None or not (has_search or TOOL_SEARCH in self._addable_agent_tools):
            return ()
        share = self.policy.tool_deferral_threshold
        allowed = int(share * self.limits.effective_window / self.factor)
        if sum(self.tool_costs) > allowed and not has_search:
            # Deferral adds `tool_search`, whose definition counts as well.
            allowed -= self.agent_tool_tokens((TOOL_SEARCH,))
        most = PROVIDERS[format].max_tools
        if most is not None:
            most -= len(AGENT_TOOLS)
        return plan_deferral(self.tools, self.tool_costs, allowed, most, last_used, promoted)

    def defers_natively(self, format: FormatName) -> bool:
        """Whether the provider can defer tools itself with this model [tools.native-deferral]."""
        can_search = self.info is not None and self.info.tool_search
        return can_search and PROVIDERS[format].defers_tools

    def named_agent_tools(self, agent_tools: Iterable[str]) -> frozenset[str]:
        """Return the names of agent tools that texts may have in a payload with these of them."""
        return frozenset(AGENT_TOOLS).intersection((*agent_tools, *self._tool_names))

    @property
    def names_recall(self) -> bool:
        """Whether every payload has `recall`, so that summaries may name it."""
        return RECALL in self.named_agent_tools(self.agent_tools(()))

    def agent_tools(self, mentions: Iterable[str]) -> tuple[str, ...]:
        """Return the agent tools of a payload that shall have these [agent-tools.auto].

        Beside tools of the caller it has the usual ones in any case. A caller's tool of the same
        name replaces an agent tool.
        """
        named = frozenset(mentions)

        def names() -> tuple[str, ...]:
            addable = self._addable_agent_tools.difference(self._tool_names)
            if self.policy.agent_tools == "auto":
                addable &= named | self._usual_agent_tools
            return tuple(name for name in AGENT_TOOLS if name in addable)

        return self._cached(names, "agent_tools", named)

    @property
    def _tool_names(self) -> frozenset[str]:
        """The names of the caller's tools."""
        return self._cached(lambda: frozenset(tool.name for tool in self.tools), "tool_names")

    @property
    def _usual_agent_tools(self) -> frozenset[str]:
        """The agent tools beside tools that the caller runs, none where there is no room for them.

        Deferral decides on `tool_search`. Only a policy that names it offers `pin_messages`.
        """
        names = tuple(name for name in AGENT_TOOLS if name not in (TOOL_SEARCH, PIN_MESSAGES))
        if not any(tool.hosted is None or is_run_by_client(tool.hosted) for tool in self.tools):
            return frozenset()
        if self.limits is not None:
            costs = zip(self.tools, self.tool_costs, strict=True)
            tokens = self.raw_fixed.system_prompt + self.raw_fixed.skill_prompts
            tokens += sum(cost for tool, cost in costs if not can_defer(tool))
            room = self.limits.effective_window - scaled(tokens, self.factor)
            own = scaled(self.agent_tool_tokens(names), self.factor)
            if own > MAX_AGENT_TOOLS_SHARE * room:
                return frozenset()
        return frozenset(names)

    @property
    def _addable_agent_tools(self) -> frozenset[str]:
        """The agent tools that may be added: none if they would exceed a provider's maximum."""
        policy, count = self.policy.agent_tools, len(self.tools)
        if policy == "none":
            return frozenset()
        listed = frozenset(AGENT_TOOLS if policy == "auto" else policy)
        if TOOL_SEARCH in listed | self._tool_names:
            count -= sum(map(can_defer, self.tools))
        return listed if count + len(AGENT_TOOLS) <= MAX_TOOLS else frozenset()

    # --- texts and tokens ----------------------------------------------------------------

    def dynamic(self, request: RequestSettings) -> tuple[str, ...]:
        """Return the texts outside the cached prefix [sections.dynamic-in-tail]."""
        sections = self.sections
        if request.dynamic:
            sections = merge_sections([sections, request.dynamic])
        return dynamic_texts(sections, request.status)

    def derives_status(self, request: RequestSettings) -> bool:
        """Whether the build derives the status, because neither request nor sections have one."""
        if self.policy.status_preamble == "none" or request.status is not None:
            return False
        sections = (*self.sections, *request.dynamic)
        return all(section.kind is not SectionKind.STATUS for section in sections)

    def dynamic_texts_of(self, texts: tuple[str, ...]) -> DynamicTexts:
        """Return texts in a role that the provider of the model accepts."""
        as_system = self.info is not None and self.info.mid_conversation_system
        return DynamicTexts(texts, as_system)

    def system_tokens(self, texts: Sequence[str]) -> int:
        """Return the tokens of texts, each in its own message, before the factor."""
        return message_tokens(texts, self.count)

    def section_tokens(self, section: PromptSection) -> int:
        """Return the tokens of one section in the system prompt, cached."""
        content = section.content
        return self._cached(lambda: self.count(content), "section_tokens", content)

    def tokens(
        self,
        conversation: int,
        summary: int,
        added_tool_tokens: int = 0,
        added_system_tokens: int = 0,
    ) -> PayloadTokens:
        """Return the tokens of a payload from counts before the factor."""
        fixed, factor = self.raw_fixed, self.factor
        return PayloadTokens(
            system_prompt=scaled(fixed.system_prompt + added_system_tokens, factor),
            skill_prompts=scaled(fixed.skill_prompts, factor),
            tool_descriptions=scaled(fixed.tool_descriptions + added_tool_tokens, factor),
            summary=scaled(summary, factor),
            conversation=scaled(conversation, factor),
        )

    def tokens_with_notes(
        self, conversation: int, summary: int, mentions: Iterable[str]
    ) -> PayloadTokens:
        """Return the tokens of a payload with its notes, from counts before the factor.

        It counts what a build adds to a payload: the notes after the history, and the agent tools
        that notes and messages mention.
        """
        named, limits = frozenset(mentions), self.limits
        own = self.agent_tool_tokens(self.agent_tools(named))
        tokens = self.tokens(conversation, summary, own)
        names = COMPACT_CONTEXT in self.named_agent_tools(self.agent_tools((COMPACT_CONTEXT,)))
        notes = Notes(None, 0, names)
        for _ in range(NOTE_ROUNDS if limits is not None else 0):
            assert limits is not None
            if notes.percent is None and not limits.reached(tokens.total, limits.notice_at):
                return tokens
            notes = Notes(percent_of(tokens.total, limits), 0, names)
            own = self.agent_tool_tokens(self.agent_tools(named | notes.mentions))
            more = self.tokens(conversation, summary, own, self.system_tokens(notes.texts))
            if more.total > limits.capacity or more == tokens:
                return tokens
            tokens = more
        return tokens


def agent_tool_definition(name: str) -> ToolDefinition:
    """Return the definition of an agent tool, or of the stub."""
    return STUB_TOOL if name == STUB_TOOL.name else AGENT_TOOLS[name]


def tools_from(levels: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[ToolDefinition, ...]:
    """Return the tools of all settings levels; a later tool replaces one of the same name."""
    by_name: dict[str, ToolDefinition] = {}
    for level in levels:
        for index, raw in enumerate(level):
            tool = parse_tool(raw, f"/tools/{index}")
            by_name[tool.name] = tool
    return tuple(by_name.values())


def accepts_all_tools(resolved: ResolvedSettings, format: FormatName) -> bool:
    """Whether a format accepts all tools at once."""
    max_tools = PROVIDERS[format].max_tools
    return max_tools is None or len(resolved.tools) + len(AGENT_TOOLS) <= max_tools


def check_tools(resolved: ResolvedSettings, format: FormatName) -> None:
    """Raise ValidationError if too few tools can be deferred for the format's limit."""
    most, count = PROVIDERS[format].max_tools, len(resolved.tools)
    if most is not None and count > most and count - len(resolved.deferral(format)) > most:
        detail = (
            f"has {count} tools; OpenAI takes at most {most}. Those of the categories `mcp` and"
            " `skill` are deferred where the policy's agent_tools allow tool_search"
        )
        raise ValidationError.at("/tools", detail)


def fixed_tokens(
    sections: Sequence[PromptSection], tool_tokens: int, count: CountText
) -> PayloadTokens:
    """Return the tokens of sections and of tools, of which those of the tools are given.

    The system prompt is counted as one text, and each dynamic text as a message.
    """
    static = static_sections(sections)
    text = system_text(static)
    whole = count_system(text, count) if text else 0
    skills = [section for section in static if section.kind is SectionKind.SKILL]
    skill = min(sum(count(section.content) for section in skills), whole)
    return PayloadTokens(
        system_prompt=whole - skill + message_tokens(dynamic_texts(sections), count),
        skill_prompts=skill,
        tool_descriptions=tool_tokens,
    )


def message_tokens(texts: Iterable[str], count: CountText) -> int:
    """Return the tokens of texts, each in its own message."""
    return sum(MESSAGE_OVERHEAD + count(text) for text in texts)


def tool_costs(tools: Iterable[ToolDefinition], count: CountText) -> tuple[int, ...]:
    """Return the tokens of each tool's definition."""
    return tuple(estimate_tool_defs_tokens([tool], count) for tool in tools)


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

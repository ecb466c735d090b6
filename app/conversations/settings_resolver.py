"""Resolution of settings levels into resolved settings, with a cache.

Settings levels change rarely and are read with every request: they are parsed and counted once for
each distinct set of levels, whose texts are the key of the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from cachetools import LRUCache

from app.blobs.preview import bounded_by_window
from app.common import json_text
from app.common.concurrency import in_thread_if
from app.common.errors import ContextError, ContextLimitUnknown
from app.conversations.conversation import Conversation
from app.conversations.epoch import Epoch, EpochStart
from app.formats import ToolDefinition, tool_from, tools_of
from app.formats.message import FormatName
from app.models.budget import Limits, limits_for, resolve_context_window
from app.models.calibration import NO_REPORTS, Calibration, safety_margin
from app.models.model_info import INEXACT_MARGIN, ModelInfo, Models, merged_info
from app.models.registry import start_factor
from app.models.tokens import ESTIMATES, CountText, Tokenizer
from app.policy.policy import (
    DEFAULT_POLICY,
    CounterName,
    Policy,
    ToolOutputPolicy,
    effective,
    merge,
)
from app.prompt.resolved_settings import (
    RequestSettings,
    ResolvedSettings,
    digest,
    fixed_tokens,
    message_tokens,
    tool_costs,
    tools_from,
)
from app.prompt.sections import (
    DYNAMIC_KINDS,
    PromptSection,
    dynamic_texts,
    merge_sections,
    section_from,
    static_sections,
)
from app.repositories import Repositories

_INLINE_CHARS = 32_768
"""Larger settings are counted in a thread."""
_BASE_CHARS = 4_096
"""The approximate size of resolved settings without sections and tools."""


class SettingsResolver:
    """Resolves settings, with a cache of the most recently used ones."""

    def __init__(
        self,
        models: Models,
        tokenizer: Tokenizer,
        service_policy: Mapping[str, Any],
        default_model: str | None,
        *,
        max_chars: int = 16 * 2**20,
    ) -> None:
        self._models = models
        self._counters = {CounterName.TOKENIZER: tokenizer.count, **ESTIMATES}
        self._service_policy = service_policy
        self._cache: LRUCache[tuple[Any, ...], tuple[ResolvedSettings, int]]
        self._cache = LRUCache(max_chars, getsizeof=lambda cached: cached[1])
        self.default_model = default_model

    def counter(self, name: str) -> CountText:
        """Return the function that counts tokens with this counter."""
        return self._counters[CounterName(name)]

    def policy(self, *levels: str, at: str = "") -> Policy:
        """Return the effective policy of stored settings levels, weakest first."""
        return effective(self._service_policy, *map(json_text.loads, levels), at=at)

    def unchecked_policy(self, *levels: str) -> dict[str, Any]:
        """Return a value for every setting, from stored settings levels, weakest first."""
        merged = merge(DEFAULT_POLICY, self._service_policy)
        for level in levels:
            merged = merge(merged, json_text.loads(level))
        return merged

    def policy_of(self, conversation: Conversation) -> Policy:
        """Return the effective policy of a conversation."""
        return self.policy(conversation.agent.policy, conversation.settings.policy)

    async def tool_output_of(self, conversation: Conversation) -> ToolOutputPolicy:
        """Return the policy of tool output, its previews bounded by a known window."""
        policy = self.policy_of(conversation).tool_output
        try:
            resolved = await self.of(conversation)
        except ContextError:
            return policy
        return bounded_by_window(policy, resolved.policy_limits)

    async def of(
        self,
        conversation: Conversation,
        request: RequestSettings | None = None,
        factor: float | None = None,
    ) -> ResolvedSettings:
        """Return the resolved settings of a conversation and a request.

        Counts are multiplied by `factor`, by default the current calibration factor of the model.
        The margin is always that of the current calibration.
        """
        calibration = self.calibration_of(conversation, request)
        factor = calibration.factor if factor is None else factor
        agent, own, given = conversation.agent, conversation.settings, request or RequestSettings()
        levels = (agent, own, conversation.counter, conversation.own_model_info, request)
        key = (*levels, factor, calibration)
        with suppress(KeyError):  # get() would hash the large key twice as often
            return self._cache[key][0]
        plain = (*levels, 1.0, NO_REPORTS)
        resolved, size = self._cache.get(plain) or (None, 0)
        if resolved is None:
            size = sum(len(level.sections) + len(level.tools) for level in (agent, own, given))
            is_large = size > _INLINE_CHARS
            resolved = await in_thread_if(is_large, self._resolve, conversation, request)
            size += _BASE_CHARS
            self._add(plain, resolved, size)
        if key != plain:
            stored = conversation.model or self.default_model
            resolved = _calibrated(resolved, factor, calibration, stored)
            resolved = resolved.with_usual_deferral(given.format)
            self._add(key, resolved, size)
        return resolved

    def calibration_of(
        self, conversation: Conversation, request: RequestSettings | None = None
    ) -> Calibration:
        """Return the calibration of counts for the model of a request, by its family at first."""
        model = (request and request.model) or conversation.model or self.default_model
        info = self.model_info(conversation, model) if model else None
        return applied_calibration(conversation.calibration, conversation.counter, model, info)

    def model_info(self, conversation: Conversation, model: str) -> ModelInfo | None:
        """Return limits and prices of the conversation's effective model, None where unknown."""
        info = self._models.find(model)
        if conversation.own_model_info is not None:
            return merged_info(model, info, conversation.own_model_info)
        return info

    def recorded(
        self, conversation: Conversation, epoch: Epoch, start: EpochStart, texts: Mapping[str, str]
    ) -> ResolvedSettings:
        """Return the resolved settings of an epoch from its record.

        They serve to render payloads; they have no limits for compaction.
        """
        model = epoch.payload_stream.partition(":")[2]
        policy = effective(json_text.loads(texts[epoch.policy_hash]))
        return self._counted(
            *prompt_from(texts[epoch.sections_hash], texts[epoch.tools_hash]),
            self.counter(conversation.counter),
            policy=policy,
            model=model,
            info=self.model_info(conversation, model),
            limits=limits_for(policy.budget, start.limits, None, 0.0),
            policy_limits=None,
            limits_error=None,
            factor=start.factor,
            sections_hash=epoch.sections_hash,
            tools_hash=epoch.tools_hash,
            policy_hash=epoch.policy_hash,
            texts=texts,
        ).with_usual_deferral(FormatName(epoch.format))

    async def with_prompt_of(
        self, session: Repositories, conversation_id: str, resolved: ResolvedSettings, epoch: Epoch
    ) -> ResolvedSettings:
        """Return settings with the sections and tools of an epoch's start."""
        hashes = epoch.sections_hash, epoch.tools_hash
        texts = await session.contexts.texts(conversation_id, hashes)
        dynamic = tuple(item for item in resolved.sections if item.kind in DYNAMIC_KINDS)
        fields = _prompt_fields(*(texts[hash] for hash in hashes), dynamic, resolved.count)
        return replace(resolved, sections_hash=hashes[0], tools_hash=hashes[1], **fields)

    def _add(self, key: tuple[Any, ...], resolved: ResolvedSettings, size: int) -> None:
        """Add settings to the cache, and evict the least recently used ones beyond its bound."""
        if size <= self._cache.maxsize:
            self._cache[key] = (resolved, size)

    def _resolve(
        self, conversation: Conversation, given: RequestSettings | None
    ) -> ResolvedSettings:
        request = given or RequestSettings()
        levels = (conversation.agent, conversation.settings, request)
        policy = self.policy_of(conversation)
        stored = conversation.model or self.default_model
        model = request.model or stored
        info = self._models.find(model) if model else None
        tenant = None
        if model and conversation.own_model_info is not None:
            tenant = merged_info(model, info, conversation.own_model_info)
        sections = merge_sections(
            [section_from(raw, index) for index, raw in enumerate(json_text.loads(level.sections))]
            for level in levels
        )
        tools = tools_from([json_text.loads(level.tools) for level in levels])
        left_out: tuple[str, ...] = ()
        if given is not None:  # otherwise the hosted tools of all formats are counted
            tools, left_out = tools_of(tools, given.format)
        limits, limits_error = _limits(policy, request, info, tenant)
        if isinstance(limits_error, ContextLimitUnknown):
            limits_error = ContextLimitUnknown.of(model, is_requested=request.model is not None)
        of_stored = (info, tenant)
        if stored is not None and stored != model:
            of_stored = (self._models.find(stored), None)
        policy_limits, _ = _limits(policy, RequestSettings(), *of_stored)
        static = [asdict(section) for section in static_sections(sections)]
        lists = static, [tool.record() for tool in tools]
        texts = [json_text.dumps(value) for value in (*lists, policy.model_dump(mode="json"))]
        hashes = [*map(digest, texts)]
        count = self.counter(conversation.counter)
        return self._counted(
            sections,
            tools,
            count,
            policy=policy,
            model=model,
            info=tenant or info,
            limits=limits,
            policy_limits=policy_limits,
            limits_error=limits_error,
            factor=1.0,
            sections_hash=hashes[0],
            tools_hash=hashes[1],
            policy_hash=hashes[2],
            texts=dict(zip(hashes, texts, strict=True)),
            left_out_tools=left_out,
            raw_dynamic=message_tokens(dynamic_texts(sections), count),
        ).with_usual_deferral(request.format)

    def _counted(
        self,
        sections: tuple[PromptSection, ...],
        tools: tuple[ToolDefinition, ...],
        count: CountText,
        **others: Any,
    ) -> ResolvedSettings:
        """Return resolved settings with the tokens of these sections and tools."""
        costs = tool_costs(tools, count)
        return ResolvedSettings(
            sections=sections,
            tools=tools,
            count=count,
            tool_costs=costs,
            raw_fixed=fixed_tokens(sections, sum(costs), count),
            **others,
        )


RecordedPrompt = tuple[tuple[PromptSection, ...], tuple[ToolDefinition, ...]]
"""The sections and tools that an epoch recorded."""


def prompt_from(sections: str, tools: str) -> RecordedPrompt:
    """Return the sections and tools of recorded texts."""
    raws = enumerate(json_text.loads(sections))
    parsed = map(tool_from, json_text.loads(tools))
    return tuple(section_from(raw, index) for index, raw in raws), tuple(parsed)


@lru_cache(16)
def _prompt_fields(
    sections: str, tools: str, dynamic: Iterable[PromptSection], count: CountText
) -> dict[str, Any]:
    """Return what these decide of resolved settings; they are counted once."""
    static, defined = prompt_from(sections, tools)
    shown, costs = (*static, *dynamic), tool_costs(defined, count)
    fixed = fixed_tokens(shown, sum(costs), count)
    return {"sections": shown, "tools": defined, "tool_costs": costs, "raw_fixed": fixed}


def applied_calibration(
    calibration: Calibration | None, counter: str, model: str | None, info: ModelInfo | None
) -> Calibration:
    """Return the calibration that counts of a model by this counter are corrected with."""
    calibration = calibration or NO_REPORTS
    if counter != CounterName.TOKENIZER:
        return calibration.applied(1.0, exact=False)
    if info is None:
        return calibration.applied(start_factor(model or ""), exact=False)
    return calibration.applied(info.start_factor, exact=info.exact)


def _calibrated(
    resolved: ResolvedSettings, factor: float, calibration: Calibration, stored: str | None
) -> ResolvedSettings:
    """Return settings with a calibration; it changes the limits of the stored model only."""

    def with_margin(limits: Limits | None) -> Limits | None:
        if limits is None:
            return None
        return replace(limits, margin=safety_margin(limits.margin, factor, calibration))

    limits = resolved.policy_limits
    return replace(
        resolved,
        factor=factor,
        limits=with_margin(resolved.limits),
        policy_limits=with_margin(limits) if resolved.model == stored else limits,
        # The deferred tools depend on the factor, so they are determined again.
        raw_fixed=replace(resolved.raw_fixed, tool_descriptions=sum(resolved.tool_costs)),
    )


def _limits(
    policy: Policy, request: RequestSettings, info: ModelInfo | None, tenant: ModelInfo | None
) -> tuple[Limits | None, ContextError | None]:
    """Return the limits of a request, or the error if they are unknown."""
    named = policy.budget.context_window
    try:
        context_window = resolve_context_window(
            request.context_window,
            named if isinstance(named, int) else None,
            info,
            tenant,
            request.max_output_tokens or policy.budget.max_output_tokens,
            named == "derive",
        )
    except ContextError as error:
        return None, error
    known = tenant or info
    margin = known.margin if known is not None else INEXACT_MARGIN
    return limits_for(policy.budget, context_window, policy.due_ratio, margin), None

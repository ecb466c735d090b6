"""Resolves the layers of settings into frames, and remembers them.

Layers change rarely and are read with every request: a frame is parsed and counted once per
distinct set of layers, then found by their text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from cachetools import LRUCache

from app.domain.common import json_text
from app.domain.common.errors import ContextError, ContextLimitUnknown, ModelSource
from app.domain.common.messages import FormatName
from app.domain.common.policy import CounterName, OnUnknownModel, Policy, as_json, effective
from app.domain.compaction.strategies import STRATEGIES
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.epoch import Epoch
from app.domain.formats import ToolDefinition
from app.domain.models.budget import Limits, limits_for
from app.domain.models.calibration import Calibration, safety_margin
from app.domain.models.estimates import text_bytes_4, text_chars_2_5, text_chars_4
from app.domain.models.limits import INEXACT_MARGIN, ModelInfo, merged_entry, resolve_context_window
from app.domain.models.tokens import CountText
from app.domain.payload.epochs import Start
from app.domain.prompt.resolved_settings import (
    RequestSettings,
    ResolvedSettings,
    digest,
    fixed_usage,
    message_tokens,
    tool_costs,
    tools_from,
)
from app.domain.prompt.sections import dynamic_texts, merge_sections, section_from, static_sections
from app.services.ports import Models, Tokenizer

_LARGE = 32_768
"""Characters of settings from which counting leaves the event loop."""
_FRAME_CHARS = 4_096
"""What a frame holds besides its sections and tools, roughly."""


class SettingsResolver:
    """Frames by their layers, the least recently used forgotten first."""

    def __init__(
        self,
        models: Models,
        tokenizer: Tokenizer,
        service_policy: Mapping[str, Any],
        default_model: str | None,
        *,
        most_chars: int = 16 * 2**20,
    ) -> None:
        self._models = models
        self._tokenizer = tokenizer
        self._service_policy = service_policy
        self._known: LRUCache[tuple[Any, ...], tuple[ResolvedSettings, int]]
        self._known = LRUCache(most_chars, getsizeof=lambda known: known[1])
        self.default_model = default_model

    def counter(self, name: str) -> CountText:
        """Return the function that counts a text with this counter (J2)."""
        match CounterName(name):
            case CounterName.TOKENIZER:
                return self._tokenizer.count
            case CounterName.BYTES_4:
                return text_bytes_4
            case CounterName.CHARS_4:
                return text_chars_4
            case CounterName.CHARS_2_5:
                return text_chars_2_5

    def policy(self, *layers: str) -> Policy:
        """Return the effective policy of stored layers, weakest first (decision 22)."""
        return effective(self._service_policy, *(json_text.loads(layer) for layer in layers))

    def policy_of(self, conversation: Conversation) -> Policy:
        """Return the effective policy of a conversation."""
        return self.policy(conversation.agent.policy, conversation.settings.policy)

    async def of(
        self,
        conversation: Conversation,
        ask: RequestSettings | None = None,
        factor: float | None = None,
    ) -> ResolvedSettings:
        """Return the frame of a conversation, with what a request adds to it.

        Its counts are multiplied by `factor`, which is by default what the model's reports say
        now (J3); its margin is theirs in any case.
        """
        calibration = None
        if conversation.calibration is not None:
            calibration = conversation.calibration.rounded
        if factor is None:
            factor = calibration.factor if calibration is not None else 1.0
        layers = (
            conversation.agent,
            conversation.settings,
            conversation.counter,
            conversation.model_entry,
            ask,
        )
        key = (*layers, factor, calibration)
        with suppress(KeyError):  # get() would hash the large key twice as often
            return self._known[key][0]
        resolved, size = await self._plain(
            (*layers, 1.0, None), conversation, ask or RequestSettings()
        )
        if factor != 1 or calibration is not None:
            stored = conversation.model or self.default_model
            resolved = _corrected(resolved, factor, calibration, stored)
            resolved = resolved.usually_deferred((ask or RequestSettings()).format)
            self._keep(key, resolved, size)
        return resolved

    async def _plain(
        self, key: tuple[Any, ...], conversation: Conversation, ask: RequestSettings
    ) -> tuple[ResolvedSettings, int]:
        """Return a frame as nobody corrected it, and how much it holds in characters."""
        with suppress(KeyError):
            return self._known[key]
        layers = (conversation.agent, conversation.settings, ask)
        size = sum(len(layer.sections) + len(layer.tools) for layer in layers)
        if size > _LARGE:
            resolved = await asyncio.to_thread(self._resolve, conversation, ask)
        else:
            resolved = self._resolve(conversation, ask)
        self._keep(key, resolved, size + _FRAME_CHARS)
        return resolved, size + _FRAME_CHARS

    def recorded(
        self, conversation: Conversation, epoch: Epoch, start: Start, texts: Mapping[str, str]
    ) -> ResolvedSettings:
        """Return the frame of an epoch from what was kept when it began (decision 19).

        It serves to render, not to judge: its limits are those of the payload alone.
        """
        model = epoch.payload_stream.partition(":")[2]
        info = self._models.find(model)
        if conversation.model_entry is not None:
            info = merged_entry(model, info, conversation.model_entry)
        policy = effective(json_text.loads(texts[epoch.policy_hash]))
        stored = json_text.loads(texts[epoch.sections_hash])
        sections = tuple(section_from(raw, place) for place, raw in enumerate(stored))
        tools = tuple(ToolDefinition(**raw) for raw in json_text.loads(texts[epoch.tools_hash]))
        count = self.counter(conversation.counter)
        costs = tool_costs(tools, count)
        limits = limits_for(policy.budget, start.total, start.max_output_tokens, None, 0.0)
        resolved = ResolvedSettings(
            policy=policy,
            model=model,
            info=info,
            limits=limits,
            policy_limits=None,
            problem=None,
            sections=sections,
            tools=tools,
            raw_fixed=fixed_usage(sections, sum(costs), count),
            factor=start.factor,
            count=count,
            sections_hash=epoch.sections_hash,
            tools_hash=epoch.tools_hash,
            policy_hash=epoch.policy_hash,
            texts=texts,
            tool_costs=costs,
        )
        return resolved.usually_deferred(FormatName(epoch.format))

    def _keep(self, key: tuple[Any, ...], resolved: ResolvedSettings, size: int) -> None:
        """Hold a frame, as long as all that are held stay within their bound."""
        if size <= self._known.maxsize:
            self._known[key] = (resolved, size)

    def _source(self, conversation: Conversation, ask: RequestSettings) -> ModelSource | None:
        """Return who names the model: the first of its layers that does, None where none does."""
        named: tuple[tuple[str | None, ModelSource], ...] = (
            (ask.model, "request"),
            (conversation.settings.model, "conversation"),
            (conversation.agent.model, "agent"),
            (self.default_model, "service"),
        )
        return next((source for model, source in named if model), None)

    def _resolve(self, conversation: Conversation, ask: RequestSettings) -> ResolvedSettings:
        layers = (conversation.agent, conversation.settings, ask)
        policy = self.policy_of(conversation)
        stored = conversation.model or self.default_model
        model = ask.model or stored
        info = self._models.find(model) if model else None
        tenant = None
        if model and conversation.model_entry is not None:
            tenant = merged_entry(model, info, conversation.model_entry)
        sections = merge_sections(
            [section_from(raw, place) for place, raw in enumerate(json_text.loads(layer.sections))]
            for layer in layers
        )
        tools = tools_from([json_text.loads(layer.tools) for layer in layers])
        count = self.counter(conversation.counter)
        costs = tool_costs(tools, count)
        limits, problem = _limits(policy, ask, info, tenant)
        if isinstance(problem, ContextLimitUnknown):
            problem = ContextLimitUnknown.of(model, self._source(conversation, ask))
        if stored is not None and stored != model:
            policy_limits, _ = _limits(policy, RequestSettings(), self._models.find(stored), None)
        else:
            policy_limits, _ = _limits(policy, RequestSettings(), info, tenant)
        texts = {
            name: json_text.dumps(value)
            for name, value in (
                ("sections", [asdict(section) for section in static_sections(sections)]),
                ("tools", [asdict(tool) for tool in tools]),
                ("policy", as_json(policy)),
            )
        }
        hashes = {name: digest(text) for name, text in texts.items()}
        resolved = ResolvedSettings(
            policy=policy,
            model=model,
            info=tenant or info,
            limits=limits,
            policy_limits=policy_limits,
            problem=problem,
            sections=sections,
            tools=tools,
            raw_fixed=fixed_usage(sections, sum(costs), count),
            factor=1.0,
            count=count,
            sections_hash=hashes["sections"],
            tools_hash=hashes["tools"],
            policy_hash=hashes["policy"],
            texts={hashes[name]: text for name, text in texts.items()},
            tool_costs=costs,
            raw_dynamic=message_tokens(dynamic_texts(sections), count),
        )
        return resolved.usually_deferred(ask.format)


def _corrected(
    resolved: ResolvedSettings, factor: float, calibration: Calibration | None, stored: str | None
) -> ResolvedSettings:
    """Return a frame as its model's reports correct it; another model's limits stay as they are."""

    def with_margin(limits: Limits | None) -> Limits | None:
        if limits is None:
            return None
        return replace(limits, margin=safety_margin(limits.margin, factor, calibration))

    is_own = resolved.model == stored
    return replace(
        resolved,
        factor=factor,
        limits=with_margin(resolved.limits),
        policy_limits=with_margin(resolved.policy_limits) if is_own else resolved.policy_limits,
        # Which tools are held back goes by the factor, and so is worked out anew.
        raw_fixed=replace(resolved.raw_fixed, tool_descriptions=sum(resolved.tool_costs)),
    )


def _limits(
    policy: Policy, ask: RequestSettings, info: ModelInfo | None, tenant: ModelInfo | None
) -> tuple[Limits | None, ContextError | None]:
    """Return the limits of a request, or why there are none."""
    try:
        window = resolve_context_window(
            ask.max_context_tokens,
            policy.budget.context_window,
            info,
            tenant,
            ask.max_output_tokens or policy.budget.max_output_tokens,
            policy.budget.on_unknown_model is OnUnknownModel.DERIVE,
        )
    except ContextError as error:
        return None, error
    known = tenant or info
    margin = known.margin if known is not None else INEXACT_MARGIN
    due_at = STRATEGIES[policy.strategy].trigger(policy)
    limits = limits_for(policy.budget, window.total, window.max_output_tokens, due_at, margin)
    return limits, None

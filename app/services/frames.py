"""Resolves the layers of settings into frames, and remembers them.

Layers change rarely and are read with every request: a frame is parsed and counted once per
distinct set of layers, then found by their text.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from app.domain import jsontext
from app.domain.budget import Limits, limits_for
from app.domain.errors import ContextError, ContextLimitUnknown
from app.domain.frames import Ask, Frame, digest, fixed_usage, tools_from
from app.domain.limits import INEXACT_MARGIN, ModelInfo, Window, overlaid, resolve_window
from app.domain.policy import CounterName, OnUnknownModel, Policy, as_json, effective
from app.domain.records import Conversation
from app.domain.sections import merge_sections, section_from
from app.domain.strategies import STRATEGIES
from app.domain.tokens import CountText
from app.services.ports import Models, Tokenizer

_LARGE = 32_768
"""Characters of settings from which counting leaves the event loop."""


class Frames:
    """Frames by their layers, the least recently used forgotten first."""

    def __init__(
        self,
        models: Models,
        tokenizer: Tokenizer,
        service_policy: Mapping[str, Any],
        default_model: str | None,
        *,
        most: int = 1024,
    ) -> None:
        self._models = models
        self._tokenizer = tokenizer
        self._service_policy = service_policy
        self._known: OrderedDict[tuple[Any, ...], Frame] = OrderedDict()
        self._most = most
        self.default_model = default_model

    def counter(self, name: str) -> CountText:
        """Return the function that counts a text with this counter (J2)."""
        match CounterName(name):
            case CounterName.TOKENIZER:
                return self._tokenizer.count
            case CounterName.BYTES_4:
                return lambda text: len(text.encode("utf-8", "surrogatepass")) // 4
            case CounterName.CHARS_4:
                return lambda text: len(text) // 4
            case CounterName.CHARS_2_5:
                return lambda text: len(text) * 2 // 5

    def policy(self, *layers: str) -> Policy:
        """Return the effective policy of stored layers, weakest first (decision 22)."""
        return effective(self._service_policy, *(jsontext.loads(layer) for layer in layers))

    def policy_of(self, conversation: Conversation) -> Policy:
        """Return the effective policy of a conversation."""
        return self.policy(conversation.agent.policy, conversation.settings.policy)

    async def of(self, conversation: Conversation, ask: Ask | None = None) -> Frame:
        """Return the frame of a conversation, with what a request adds to it."""
        key = (
            conversation.agent,
            conversation.settings,
            conversation.counter,
            conversation.model_entry,
            ask,
        )
        frame = self._known.get(key)
        if frame is None:
            size = sum(
                len(layer.sections) + len(layer.tools)
                for layer in (conversation.agent, conversation.settings, ask or Ask())
            )
            if size > _LARGE:
                frame = await asyncio.to_thread(self._resolve, conversation, ask or Ask())
            else:
                frame = self._resolve(conversation, ask or Ask())
            self._known[key] = frame
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return frame

    def _resolve(self, conversation: Conversation, ask: Ask) -> Frame:
        layers = (conversation.agent, conversation.settings, ask)
        policy = self.policy_of(conversation)
        model = (
            ask.model
            or conversation.settings.model
            or conversation.agent.model
            or self.default_model
        )
        info = self._models.find(model) if model else None
        tenant = None
        if model and conversation.model_entry is not None:
            tenant = overlaid(model, info, conversation.model_entry)
        sections = merge_sections(
            [section_from(raw, place) for place, raw in enumerate(jsontext.loads(layer.sections))]
            for layer in layers
        )
        tools = tools_from([jsontext.loads(layer.tools) for layer in layers])
        count = self.counter(conversation.counter)
        limits, policy_limits, problem = _windows(policy, ask, info, tenant)
        return Frame(
            policy=policy,
            model=model,
            info=tenant or info,
            limits=limits,
            policy_limits=policy_limits,
            problem=problem,
            sections=sections,
            tools=tools,
            raw_fixed=fixed_usage(sections, tools, count),
            factor=1.0,
            count=count,
            sections_hash=digest(repr(sections)),
            tools_hash=digest(repr(tools)),
            policy_hash=digest(jsontext.dumps(as_json(policy))),
        )


def _windows(
    policy: Policy, ask: Ask, info: ModelInfo | None, tenant: ModelInfo | None
) -> tuple[Limits | None, Limits | None, ContextError | None]:
    """Return the request's limits, the policy's own, and why the first are unknown."""
    output = ask.max_output_tokens or policy.budget.max_output_tokens
    derive = policy.budget.on_unknown_model is OnUnknownModel.DERIVE

    def resolved(requested: int | None) -> Limits:
        window = resolve_window(
            requested, policy.budget.context_window, info, tenant, output, derive
        )
        return _limits(policy, window, tenant or info)

    try:
        own: Limits | None = resolved(None)
    except ContextError as error:
        own, problem = None, error
        if ask.max_context_tokens is None:
            return None, None, problem
    if ask.max_context_tokens is None:
        return own, own, None
    try:
        return resolved(ask.max_context_tokens), own, None
    except ContextLimitUnknown as error:
        return None, own, error


def _limits(policy: Policy, window: Window, info: ModelInfo | None) -> Limits:
    due_at = STRATEGIES[policy.strategy].trigger(policy)
    margin = info.margin if info is not None else INEXACT_MARGIN
    return limits_for(policy.budget, window.total, window.max_output_tokens, due_at, margin)

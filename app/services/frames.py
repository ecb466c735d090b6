"""Resolves the layers of settings into frames, and remembers them.

Layers change rarely and are read with every request: a frame is parsed and counted once per
distinct set of layers, then found by their text.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.domain import jsontext
from app.domain.budget import Limits, limits_for
from app.domain.errors import ContextError
from app.domain.frames import Ask, Frame, digest, fixed_usage, tools_from
from app.domain.limits import INEXACT_MARGIN, ModelInfo, overlaid, resolve_window
from app.domain.policy import CounterName, OnUnknownModel, Policy, as_json, effective
from app.domain.records import Conversation
from app.domain.sections import merge_sections, section_from
from app.domain.strategies import STRATEGIES
from app.domain.tokens import CountText
from app.services.ports import Models, Tokenizer

_LARGE = 32_768
"""Characters of settings from which counting leaves the event loop."""
_FRAME_CHARS = 4_096
"""What a frame holds besides its sections and tools, roughly."""


class Frames:
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
        self._known: OrderedDict[tuple[Any, ...], tuple[Frame, int]] = OrderedDict()
        self._chars = 0
        self._most_chars = most_chars
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
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known[0]
        layers = (conversation.agent, conversation.settings, ask or Ask())
        size = sum(len(layer.sections) + len(layer.tools) for layer in layers)
        if size > _LARGE:
            frame = await asyncio.to_thread(self._resolve, conversation, ask or Ask())
        else:
            frame = self._resolve(conversation, ask or Ask())
        self._keep(key, frame, size + _FRAME_CHARS)
        return frame

    def _keep(self, key: tuple[Any, ...], frame: Frame, size: int) -> None:
        """Hold a frame, as long as all that are held stay within their bound."""
        if size > self._most_chars or key in self._known:
            return
        self._known[key] = (frame, size)
        self._chars += size
        while self._chars > self._most_chars:
            _, (_, dropped) = self._known.popitem(last=False)
            self._chars -= dropped

    def _resolve(self, conversation: Conversation, ask: Ask) -> Frame:
        layers = (conversation.agent, conversation.settings, ask)
        policy = self.policy_of(conversation)
        stored = conversation.model or self.default_model
        model = ask.model or stored
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
        limits, problem = _limits(policy, ask, info, tenant)
        if stored is not None and stored != model:
            policy_limits, _ = _limits(policy, Ask(), self._models.find(stored), None)
        else:
            policy_limits, _ = _limits(policy, Ask(), info, tenant)
        texts = {
            name: jsontext.dumps(value)
            for name, value in (
                ("sections", [asdict(section) for section in sections]),
                ("tools", [asdict(tool) for tool in tools]),
                ("policy", as_json(policy)),
            )
        }
        hashes = {name: digest(text) for name, text in texts.items()}
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
            sections_hash=hashes["sections"],
            tools_hash=hashes["tools"],
            policy_hash=hashes["policy"],
            texts={hashes[name]: text for name, text in texts.items()},
        )


def _limits(
    policy: Policy, ask: Ask, info: ModelInfo | None, tenant: ModelInfo | None
) -> tuple[Limits | None, ContextError | None]:
    """Return the limits of a request, or why there are none."""
    try:
        window = resolve_window(
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

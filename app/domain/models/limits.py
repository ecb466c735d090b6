"""What a model can take, and the window a build may use of it.

1. The context window is not the output limit; input and output share the window (C2).
2. `total` is the smaller of what is asked for and what the model has (C1).
3. Some models limit their input apart from their output. `total` is then at most that input
   limit plus the output reserve, so that `total - max_output_tokens` is always what fits.
4. Nothing is guessed: every number has a source, and without one there is an error (C2, J5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.domain.common import json_text
from app.domain.common.errors import ContextLimitUnknown, ValidationError

INEXACT_MARGIN = 0.05
"""Share of a count added for safety where the model's own tokenizer is another one (C4)."""

DERIVED_FACTOR = 4
"""Window per token of output reserve, for unknown models under `derive` (C2)."""

SEED_WINDOWS: Mapping[str, int] = {
    "claude-3-5-sonnet": 200_000,
    "claude-3-opus": 200_000,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gemini-pro": 32_000,
}
"""The windows that S0 names, in tokens (J5)."""


ABILITIES = ("tool_search", "cache_breakpoint", "mid_conversation_system")
"""The fields of an entry that say what a model's provider takes."""

NUMBERS = (
    "context_window",
    "max_input_tokens",
    "max_output_tokens",
    "cache_minimum_tokens",
    "input_price",
    "output_price",
    "cache_read_price",
    "cache_write_price",
)
"""The fields of an entry that have a source of their own."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model's limits in tokens and prices in USD per token; None where nobody says.

    `max_input_tokens` is set only where the input has a limit of its own, apart from the
    window. `exact` says that our counter is the model's tokenizer. `sources` names where each
    number comes from, by field. The last three say what its provider takes with it: tools held
    back until they are searched for (H3), explicit cache marks of OpenAI's kind (G2), and system
    text after the conversation has begun (G5).
    """

    model: str
    context_window: int | None
    max_input_tokens: int | None
    max_output_tokens: int | None
    tokenizer: str
    exact: bool
    cache_minimum_tokens: int | None
    input_price: float | None
    output_price: float | None
    cache_read_price: float | None
    cache_write_price: float | None
    sources: Mapping[str, str]
    tool_search: bool = False
    cache_breakpoint: bool = False
    mid_conversation_system: bool = False

    @property
    def margin(self) -> float:
        """The share added to a count of our own for safety (C4)."""
        return 0.0 if self.exact else INEXACT_MARGIN

    def cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the price in USD of one uncached call, None without both prices."""
        if self.input_price is None or self.output_price is None:
            return None
        return input_tokens * self.input_price + output_tokens * self.output_price


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens of one call: `total`, and of these the reserve for the answer.

    `source` is `request`, `policy`, `tenant`, `registry` or `derived`: who set `total`.
    """

    total: int
    max_output_tokens: int
    source: str

    @property
    def effective(self) -> int:
        """Tokens the input may take."""
        return self.total - self.max_output_tokens


def resolve_window(
    requested: int | None,
    policy: int | None,
    info: ModelInfo | None,
    tenant: ModelInfo | None,
    max_output_tokens: int,
    derive: bool,
) -> Window:
    """Return the window of a call (C1, C2).

    The reserve is lowered to the model's own output limit. Raises ContextLimitUnknown when
    no window is known and `derive` is false, ValidationError for limits that leave no input.
    """
    if max_output_tokens <= 0:
        raise ValidationError.at("/max_output_tokens", "The output limit must be positive")
    asked = _asked(requested, policy)
    known = _known(info, tenant, max_output_tokens)
    if asked is None and known is None:
        if not derive:
            raise ContextLimitUnknown("The model's context window is unknown")
        asked = (max_output_tokens * DERIVED_FACTOR, "derived")
    total, source = min(
        (limit for limit in (asked, known) if limit is not None), key=lambda limit: limit[0]
    )
    if max_output_tokens >= total:
        raise ValidationError(
            "max_output_tokens must be smaller than the context window",
            {"max_output_tokens": max_output_tokens, "total": total, "source": source},
        )
    return _separate(Window(total, max_output_tokens, source), _limiting(info, tenant))


def _asked(requested: int | None, policy: int | None) -> tuple[int, str] | None:
    if requested is None:
        return None if policy is None else (_positive(policy, "/policy"), "policy")
    return _positive(requested, "/max_context_tokens"), "request"


def _positive(limit: int, pointer: str) -> int:
    if limit <= 0:
        raise ValidationError.at(pointer, "Context limit must be positive")
    return limit


def _limiting(info: ModelInfo | None, tenant: ModelInfo | None) -> ModelInfo | None:
    """Return whose limits count: the tenant's override as soon as it names one."""
    if tenant is not None and (tenant.context_window or tenant.max_input_tokens):
        return tenant
    return info


def _known(
    info: ModelInfo | None, tenant: ModelInfo | None, max_output_tokens: int
) -> tuple[int, str] | None:
    model = _limiting(info, tenant)
    if model is None:
        return None
    source = "tenant" if model is tenant else "registry"
    if model.context_window:
        return model.context_window, source
    if model.max_input_tokens:
        return model.max_input_tokens + max_output_tokens, source
    return None


def _separate(window: Window, model: ModelInfo | None) -> Window:
    """Apply the model's own output and input limits to a window that is otherwise settled."""
    if model is None:
        return window
    output = window.max_output_tokens
    if model.max_output_tokens:
        output = min(output, model.max_output_tokens)
    total = window.total
    if model.max_input_tokens:
        total = min(total, model.max_input_tokens + output)
    return Window(total, output, window.source)


def overlaid(model: str, bundled: ModelInfo | None, own: str | None) -> ModelInfo:
    """Return a model's entry, each number from the tenant's own entry where that has one."""
    info = bundled or _UNKNOWN
    given = json_text.loads(own) if own is not None else {}
    numbers = {name: given[name] for name in NUMBERS if given.get(name) is not None}
    return replace(
        info,
        model=model,
        tokenizer=given.get("tokenizer") or info.tokenizer,
        exact=info.exact if given.get("exact") is None else given["exact"],
        sources={**info.sources, **dict.fromkeys(numbers, "tenant")},
        **numbers,
        **{name: given[name] for name in ABILITIES if given.get(name) is not None},
    )


_UNKNOWN = ModelInfo(
    model="",
    context_window=None,
    max_input_tokens=None,
    max_output_tokens=None,
    tokenizer="unknown",
    exact=False,
    cache_minimum_tokens=None,
    input_price=None,
    output_price=None,
    cache_read_price=None,
    cache_write_price=None,
    sources={},
)

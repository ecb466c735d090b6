"""Windows: who sets them, and what a model's own limits do to them.

[budget.total, budget.window-sources, models.registry]
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ContextLimitUnknown, ValidationError
from app.models.limits import BUILT_IN_WINDOWS, ContextWindow, ModelInfo, resolve_context_window


def model(
    context_window: int | None = 100_000,
    max_input_tokens: int | None = None,
    max_output_tokens: int | None = None,
    exact: bool = False,
    prices: tuple[float | None, float | None] = (None, None),
) -> ModelInfo:
    """Return a model with these limits."""
    return ModelInfo(
        model="m",
        context_window=context_window,
        max_input_tokens=max_input_tokens,
        max_output_tokens=max_output_tokens,
        tokenizer="unknown",
        exact=exact,
        cache_minimum_tokens=None,
        input_price=prices[0],
        output_price=prices[1],
        cache_read_price=None,
        cache_write_price=None,
        sources={},
    )


@pytest.mark.parametrize(
    ("requested", "policy", "info", "tenant", "total", "source"),
    [
        (50_000, 60_000, model(), model(70_000), 50_000, "request"),
        (None, 60_000, model(), model(70_000), 60_000, "policy"),
        (None, None, model(), model(70_000), 70_000, "tenant"),
        (None, None, model(), None, 100_000, "registry"),
        (200_000, None, model(), None, 100_000, "registry"),
        (None, 200_000, model(), model(150_000), 150_000, "tenant"),
        (200_000, None, None, None, 200_000, "request"),
        (100_000, None, model(), None, 100_000, "request"),
        (None, None, model(), model(None), 100_000, "registry"),
    ],
)
def test_the_window_is_the_smaller_of_the_requested_and_the_models(
    requested: int | None,
    policy: int | None,
    info: ModelInfo | None,
    tenant: ModelInfo | None,
    total: int,
    source: str,
) -> None:
    """Request, policy, tenant, registry, in this order, never above the model's window."""
    window = resolve_context_window(requested, policy, info, tenant, 4096, derive=False)
    assert window == ContextWindow(total, 4096, source)
    assert window.effective == total - 4096


def test_an_unknown_window_is_an_error_unless_derived() -> None:
    """Strict refuses; derive takes four times the output reserve. [budget.unknown-model]"""
    with pytest.raises(ContextLimitUnknown):
        resolve_context_window(None, None, None, None, 4096, derive=False)
    with pytest.raises(ContextLimitUnknown):
        resolve_context_window(
            None, None, model(None, max_output_tokens=8000), None, 4096, derive=False
        )
    assert resolve_context_window(None, None, None, None, 4096, derive=True) == ContextWindow(
        16_384, 4096, "derived"
    )


def test_a_known_window_is_not_derived() -> None:
    """Derive is for unknown models only. [budget.unknown-model]"""
    assert resolve_context_window(None, None, model(), None, 4096, derive=True).total == 100_000


@pytest.mark.parametrize("output", [100_000, 100_001])
def test_an_output_limit_as_large_as_the_window_is_refused(output: int) -> None:
    """max_output_tokens >= total leaves nothing for the input. [budget.total]"""
    with pytest.raises(ValidationError):
        resolve_context_window(None, None, model(), None, output, derive=False)


@pytest.mark.parametrize(
    ("requested", "policy", "output"), [(0, None, 10), (-1, None, 10), (None, 0, 10), (9, None, 0)]
)
def test_limits_must_be_positive(requested: int | None, policy: int | None, output: int) -> None:
    """A zero limit is refused in the documented words. [stateless.errors, budget.window-sources]"""
    with pytest.raises(ValidationError, match="must be positive"):
        resolve_context_window(requested, policy, model(), None, output, derive=False)


def test_a_separate_input_limit_bounds_the_input_alone() -> None:
    """With 272k of input in a 400k window a small reserve frees no more input."""
    info = model(400_000, max_input_tokens=272_000, max_output_tokens=128_000)
    assert resolve_context_window(None, None, info, None, 4_096, derive=False).effective == 272_000
    assert (
        resolve_context_window(None, None, info, None, 128_000, derive=False).effective == 272_000
    )
    assert (
        resolve_context_window(100_000, None, info, None, 4_000, derive=False).effective == 96_000
    )


def test_an_input_limit_alone_makes_a_window() -> None:
    """Where only the input limit is known, the reserve comes on top. [models.limit-semantics]"""
    info = model(None, max_input_tokens=50_000)
    assert resolve_context_window(None, None, info, None, 1_000, derive=False) == ContextWindow(
        51_000, 1_000, "registry"
    )


def test_the_reserve_is_at_most_the_models_output_limit() -> None:
    """The payload's output limit is one the model accepts. [payload.valid]"""
    info = model(max_output_tokens=2_000)
    assert (
        resolve_context_window(None, None, info, None, 4_096, derive=False).max_output_tokens
        == 2_000
    )


def test_the_margin_is_zero_only_for_exact_counters() -> None:
    """Counts of another tokenizer get a safety margin. [budget.within-window]"""
    assert model(exact=True).margin == 0
    assert model().margin == 0.05


def test_cost_needs_both_prices() -> None:
    """An unknown price never becomes zero. [models.no-guess]"""
    assert model(prices=(0.5, 2.0)).cost(10, 3) == 11.0
    assert model(prices=(0.5, None)).cost(10, 3) is None


def test_the_seed_has_five_windows() -> None:
    """The built-in table is kept. [models.registry]"""
    assert sorted(BUILT_IN_WINDOWS.values()) == [32_000, 128_000, 128_000, 200_000, 200_000]


limit = st.none() | st.integers(1, 2_000_000)


@given(limit, limit, limit, limit, limit, st.integers(1, 300_000))
def test_no_window_exceeds_any_known_limit(
    requested: int | None,
    policy: int | None,
    window: int | None,
    max_input: int | None,
    max_output: int | None,
    reserve: int,
) -> None:
    """Whatever is known, total and effective input stay within it [budget.total]."""
    info = model(window, max_input, max_output)
    try:
        found = resolve_context_window(requested, policy, info, None, reserve, derive=True)
    except ValidationError:
        return
    assert found.effective >= 1
    assert found.max_output_tokens <= reserve
    for bound in (requested if requested is not None else policy, window):
        assert bound is None or found.total <= bound
    assert max_input is None or found.effective <= max_input

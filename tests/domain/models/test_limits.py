"""Windows: who sets them, and what a model's own limits do to them.

[budget.total, budget.window-sources, models.registry]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ContextLimitUnknown, ValidationError
from app.models.budget import ContextWindow, resolve_context_window
from app.models.model_info import ModelInfo


def model(window: int | None = 100_000, **fields: Any) -> ModelInfo:
    """Return a model with these limits."""
    return ModelInfo("m", window, **fields)


def window(
    info: ModelInfo | None = None,
    output: int = 4096,
    *,
    requested: int | None = None,
    policy: int | None = None,
    tenant: ModelInfo | None = None,
    derive: bool = False,
) -> ContextWindow:
    """Return the window of a call."""
    return resolve_context_window(requested, policy, info, tenant, output, derive=derive)


@pytest.mark.parametrize(
    ("requested", "policy", "info", "tenant", "total"),
    [
        (50_000, 60_000, model(), model(70_000), 50_000),
        (None, 60_000, model(), model(70_000), 60_000),
        (None, None, model(), model(70_000), 70_000),
        (None, None, model(), None, 100_000),
        (200_000, None, model(), None, 100_000),
        (None, 200_000, model(), model(150_000), 150_000),
        (200_000, None, None, None, 200_000),
        (None, None, model(), model(None), 100_000),
    ],
)
def test_the_window_is_the_smaller_of_the_requested_and_the_models(
    requested: int | None,
    policy: int | None,
    info: ModelInfo | None,
    tenant: ModelInfo | None,
    total: int,
) -> None:
    """Request, policy, tenant, registry, in this order, never above the model's window."""
    found = window(info, requested=requested, policy=policy, tenant=tenant)
    assert found == (total, 4096)


def test_an_unknown_window_is_an_error_unless_derived() -> None:
    """Strict refuses; derive takes four times the output reserve. [budget.unknown-model]"""
    for info in (None, model(None, max_output_tokens=8000)):
        with pytest.raises(ContextLimitUnknown):
            window(info)
    assert window(derive=True) == (16_384, 4096)
    assert window(model(), derive=True).tokens == 100_000


@pytest.mark.parametrize(
    ("requested", "policy", "output"), [(0, None, 10), (-1, None, 10), (None, 0, 10), (9, None, 0)]
)
def test_limits_must_be_positive(requested: int | None, policy: int | None, output: int) -> None:
    """A zero limit is refused in the documented words. [stateless.errors, budget.window-sources]"""
    with pytest.raises(ValidationError, match="must be positive"):
        window(model(), output, requested=requested, policy=policy)
    for all_of_it in (100_000, 100_001):  # nothing is left for the input
        with pytest.raises(ValidationError):
            window(model(), all_of_it)


limit = st.none() | st.integers(1, 2_000_000)


@given(limit, limit, limit, limit, limit, st.integers(1, 300_000))
def test_no_window_exceeds_any_known_limit(
    requested: int | None,
    policy: int | None,
    whole: int | None,
    max_input: int | None,
    max_output: int | None,
    reserve: int,
) -> None:
    """Whatever is known, total and effective input stay within it [budget.total]."""
    info = model(whole, max_input_tokens=max_input, max_output_tokens=max_output)
    try:
        found = window(info, reserve, requested=requested, policy=policy, derive=True)
    except ValidationError:
        return
    assert found.tokens > found.max_output_tokens
    assert found.max_output_tokens <= reserve
    for bound in (requested if requested is not None else policy, whole):
        assert bound is None or found.tokens <= bound
    assert max_input is None or found.tokens - found.max_output_tokens <= max_input

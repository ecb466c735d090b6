"""The model registry: exact names, sourced numbers, nothing guessed.

[models.no-guess, budget.unknown-model]
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from app.adapters.models.registry import ModelRegistry, map_path
from app.domain.models.limits import BUILT_IN_WINDOWS, ModelInfo, resolve_context_window

REGISTRY = ModelRegistry()
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


def found(model: str) -> ModelInfo:
    """Return a model that must be there."""
    info = REGISTRY.find(model)
    assert info is not None, model
    return info


@pytest.fixture
def small_map(tmp_path: Path) -> Path:
    """A map with one entry of each odd kind."""
    entries = {
        "sample_spec": {"max_input_tokens": "a description", "mode": "one of: chat"},
        "only-max-tokens": {"mode": "chat", "max_tokens": 1000, "litellm_provider": "x"},
        "only-output": {"mode": "chat", "max_output_tokens": 500.0, "litellm_provider": "x"},
        "embedder": {"mode": "embedding", "max_input_tokens": 8000, "litellm_provider": "x"},
        "gpt-like": {
            "mode": "chat",
            "max_input_tokens": 272_000,
            "max_output_tokens": 128_000,
            "litellm_provider": "other",
        },
        "x/chatty": {"mode": "chat", "max_input_tokens": 4096, "litellm_provider": "x"},
    }
    path = tmp_path / "map.json"
    path.write_bytes(orjson.dumps(entries))
    return path


@pytest.mark.parametrize(("model", "window"), BUILT_IN_WINDOWS.items())
def test_the_built_in_names_have_their_windows(model: str, window: int) -> None:
    """The built-in limits per model apply, whatever the bundled map has."""
    assert found(model).context_window == window
    assert (
        resolve_context_window(None, None, found(model), None, 4096, derive=False).total == window
    )


def test_every_number_of_every_model_has_a_source() -> None:
    """Each number is listed with its source, and no source without a number."""
    models = REGISTRY.list()
    assert len(models) > 1000
    for info in models:
        given = {name for name in NUMBERS if getattr(info, name) is not None}
        assert set(info.sources) == given, info.model
        assert all(info.sources.values())


@pytest.mark.parametrize(
    "model", ["", "/", "gpt", "gpt-4o-", "GPT-4O", "no-such-firm/gpt-4o", "claude", "gpt-4o/x"]
)
def test_names_are_never_guessed(model: str) -> None:
    """A name that is similar to a known one stays unknown."""
    assert REGISTRY.find(model) is None


def test_a_separate_input_limit_is_recognised() -> None:
    """272k input and 128k output make OpenAI's 400k window, azure's included."""
    for model in ("gpt-5", "azure/gpt-5"):
        info = found(model)
        assert (info.context_window, info.max_input_tokens) == (400_000, 272_000)
        assert (
            resolve_context_window(None, None, info, None, 4096, derive=False).effective == 272_000
        )


def test_a_shared_window_is_not_added_up() -> None:
    """Where input and output share the window, the output is not put on top."""
    info = found("gpt-4o")
    assert (info.context_window, info.max_input_tokens) == (128_000, None)
    assert info.max_output_tokens == 16_384
    assert found("claude-sonnet-4-5").context_window == 200_000


@pytest.mark.parametrize(
    ("model", "tokenizer", "exact"),
    [
        ("gpt-4o", "o200k_base", True),
        ("gpt-5", "o200k_base", True),
        ("o3", "o200k_base", True),
        ("azure/gpt-4o", "o200k_base", True),
        ("gpt-4-turbo", "cl100k_base", False),
        ("gpt-4", "cl100k_base", False),
        ("claude-sonnet-4-5", "unknown", False),
        ("gemini/gemini-2.5-pro", "unknown", False),
    ],
)
def test_only_our_own_vocabulary_is_exact(model: str, tokenizer: str, exact: bool) -> None:
    """The margin is zero only where the model counts as we do [budget.within-window]."""
    info = found(model)
    assert (info.tokenizer, info.exact) == (tokenizer, exact)


def test_cache_minimums_and_prices_are_read() -> None:
    """The caching minimum and four prices per token. [models.registry, breakpoints.limits]"""
    claude = found("claude-sonnet-4-5")
    assert claude.cache_minimum_tokens == 1024
    assert claude.input_price == 3e-6
    assert claude.cache_write_price == 3.75e-6
    assert found("gpt-4o").cache_minimum_tokens == 1024


def test_odd_entries_are_taken_literally(small_map: Path) -> None:
    """max_tokens never becomes a window, and only chat models are listed."""
    registry = ModelRegistry(small_map)
    assert registry.find("only-max-tokens") is None
    assert registry.find("embedder") is None
    assert registry.find("sample_spec") is None
    only_output = registry.find("only-output")
    assert only_output is not None
    assert (only_output.context_window, only_output.max_output_tokens) == (None, 500)
    chatty = registry.find("x/x/chatty")
    assert chatty is not None
    assert chatty.model == "x/chatty"


def test_without_a_map_the_built_in_names_remain(tmp_path: Path) -> None:
    """The registry has the built-in names even with an empty map. [models.named-defaults]"""
    path = tmp_path / "map.json"
    path.write_bytes(b"{}")
    registry = ModelRegistry(path)
    assert {info.model for info in registry.list()} == set(BUILT_IN_WINDOWS)
    gpt = registry.find("gpt-4o")
    assert gpt is not None
    assert gpt.exact


def test_threads_share_one_load() -> None:
    """The first lookup of any thread loads the map, once. [models.lazy]"""
    registry = ModelRegistry()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(registry.find, ["gpt-4o"] * 50))
    assert all(answer == answers[0] for answer in answers)


def test_the_registry_stays_small_and_without_litellm() -> None:
    """The map costs a few megabytes, and LiteLLM is not imported for it."""
    assert map_path() is not None
    code = (
        "import psutil, sys; from app.adapters.models.registry import ModelRegistry;"
        "rss = psutil.Process().memory_info; before = rss().rss; r = ModelRegistry();"
        "assert r._map is None; r.find('gpt-4o');"
        "assert 'litellm' not in sys.modules; sys.exit(rss().rss - before > 20_000_000)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

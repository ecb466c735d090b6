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

from app.models.budget import resolve_context_window
from app.models.model_info import NUMERIC_FIELDS, ModelInfo
from app.models.registry import BUILT_IN_WINDOWS, ModelRegistry, map_path

REGISTRY = ModelRegistry()


def found(model: str) -> ModelInfo:
    """Return a model that must be there."""
    info = REGISTRY.find(model)
    assert info is not None, model
    return info


@pytest.fixture
def small_map(tmp_path: Path) -> Path:
    """A map with one entry of each odd kind."""
    chat = {"mode": "chat", "litellm_provider": "x"}
    entries = {
        "sample_spec": {"max_input_tokens": "a description", "mode": "one of: chat"},
        "only-max-tokens": {**chat, "max_tokens": 1000},
        "only-output": {**chat, "max_output_tokens": 500.0},
        "embedder": {**chat, "mode": "embedding", "max_input_tokens": 8000},
        "x/chatty": {**chat, "max_input_tokens": 4096},
    }
    path = tmp_path / "map.json"
    path.write_bytes(orjson.dumps(entries))
    return path


@pytest.mark.parametrize(("model", "window"), BUILT_IN_WINDOWS.items())
def test_the_built_in_names_have_their_windows(model: str, window: int) -> None:
    """The built-in limits per model apply, whatever the bundled map has."""
    assert found(model).context_window == window
    assert (
        resolve_context_window(None, None, found(model), None, 4096, derive=False).tokens == window
    )


def test_every_number_of_every_model_has_a_source() -> None:
    """Each number is listed with its source, and no source without a number."""
    models = REGISTRY.list()
    assert len(models) > 1000
    for info in models:
        given = {name for name in NUMERIC_FIELDS if getattr(info, name) is not None}
        assert set(info.sources) == given, info.model
        assert all(info.sources.values())


@pytest.mark.parametrize(
    "model",
    [
        *("", "/", "gpt", "claude", "gpt-4o/x", "my-model", "foo-o3", "gpt-2", "llama-9"),
        *("gpt-oss-120b", "gpt-6-image", "gemini-3-pro-image-preview", "gemini-9-flash-live"),
    ],
)
def test_names_of_no_known_family_stay_unknown(model: str) -> None:
    """Nothing is assumed of other families, of older versions, and of models of another kind."""
    assert REGISTRY.find(model) is None


@pytest.mark.parametrize(
    ("model", "assumed_from"),
    [
        ("gpt-4o-2028-01-01", "gpt-4o"),
        ("no-such-firm/gpt-4o", "gpt-4o"),
        ("gpt-5-nano-2027-01-01", "gpt-5-nano"),
        ("o5-mini", "o4-mini"),
        ("claude-opus-4-5-fast", "claude-opus-4-5"),
        ("us.anthropic.claude-opus-99-v1:0", None),
        ("anthropic/claude-sonnet-99.1", None),
        ("claude-newname-99", None),
        ("gpt-99", None),
        ("GPT-99-MINI", None),
        ("gemini-99-pro", None),
        ("xai/grok-99", None),
    ],
)
def test_a_new_version_is_taken_for_one_of_its_family(model: str, assumed_from: str | None) -> None:
    """It has the window, the tokenizer and the cache rules of the newest one. [models.families]

    Its count is not exact, its prices are unknown, and every limit says where it is from.
    """
    info = found(model)
    source = REGISTRY.find(info.assumed_from or "")
    assert source is not None and source.assumed_from is None
    assert info.assumed_from == (assumed_from or info.assumed_from)
    assert (info.model, info.context_window) == (model, source.context_window)
    assert (info.tokenizer, info.cache_minimum_tokens) == (
        source.tokenizer,
        source.cache_minimum_tokens,
    )
    assert not info.exact and info.margin > 0 and info.cost(1, 1) is None
    assert set(info.sources.values()) == {f"assumed to be that of {info.assumed_from}"}
    window = resolve_context_window(None, None, info, None, 4096, derive=False)
    assert window == resolve_context_window(None, None, source, None, 4096, derive=False)
    assert resolve_context_window(10**8, None, info, None, 4096, derive=False).tokens == 10**8


def test_a_separate_input_limit_is_recognised() -> None:
    """272k input and 128k output make OpenAI's 400k window. [models.limit-semantics]"""
    for model in ("gpt-5", "azure/gpt-5"):
        info = found(model)
        assert (info.context_window, info.max_input_tokens) == (400_000, 272_000)
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
        ("gpt-6-sol", "o200k_base", True),
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
    """The registry has the built-in names even with an empty map.

    Any thread may load it first. [models.named-defaults, models.lazy]
    """
    path = tmp_path / "map.json"
    path.write_bytes(b"{}")
    registry = ModelRegistry(path)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(registry.find, ["gpt-4o"] * 50))
    assert answers[0] is not None and answers[0].exact
    assert all(answer == answers[0] for answer in answers)
    assert {info.model for info in registry.list()} == set(BUILT_IN_WINDOWS)


def test_the_registry_stays_small_and_without_litellm() -> None:
    """The map costs a few megabytes, and LiteLLM is not imported for it."""
    assert map_path() is not None
    code = (
        "import psutil, sys; from app.models.registry import ModelRegistry;"
        "rss = psutil.Process().memory_info; before = rss().rss; r = ModelRegistry();"
        "assert rss().rss - before < 1_000_000; r.find('gpt-4o');"
        "assert 'litellm' not in sys.modules; sys.exit(rss().rss - before > 20_000_000)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("claude-sonnet-5", False),
        ("us.anthropic.claude-sonnet-5", False),
        ("claude-sonnet-5-5", True),
        ("claude-opus-5", True),
        ("gpt-5.6", True),
    ],
)
def test_models_that_take_system_messages_later(model: str, takes: bool) -> None:
    """Anthropic refuses them for Sonnet 5, whatever the bundled map says."""
    info = REGISTRY.find(model)
    assert info is not None and info.mid_conversation_system is takes

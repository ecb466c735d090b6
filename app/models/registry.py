"""The model registry: LiteLLM's bundled map of models, read without importing LiteLLM.

1. `max_tokens` of the map is not read: it is the output limit, or the input limit where no output
   limit is known.
2. `max_input_tokens` is taken as the whole window, the smaller interpretation. Where it and the
   output limit add up to a window that OpenAI publishes, it limits the input alone.
3. A name is looked up as it is, then without its provider's prefix, then among the built-in
   windows. Another name of a known family is taken for one of its models [models.families].
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

import orjson

from app.models.budget import (
    BUILT_IN_WINDOWS,
    O200K,
    ModelInfo,
    assumed_info,
    start_factor,
    tokenizer_of,
)

MAP_NAME = "model_prices_and_context_window_backup.json"
CHAT_MODES = frozenset({"chat", "responses"})
OPENAI_PROVIDERS = frozenset({"openai", "azure", "azure_ai"})
OPENAI_WINDOWS = frozenset({400_000, 1_050_000})
OPENAI_MIN_CACHED_TOKENS = 1024
ROUTER_PREFIXES = frozenset({"litellm_proxy", "openrouter"})

PRICE_KEYS: Mapping[str, str] = {
    "input_price": "input_cost_per_token",
    "output_price": "output_cost_per_token",
    "cache_read_price": "cache_read_input_token_cost",
    "cache_write_price": "cache_creation_input_token_cost",
}
"""The map's keys of prices."""


def map_path() -> Path | None:
    """Return the path of the bundled map, None when LiteLLM is not installed."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / MAP_NAME
    return path if path.is_file() else None


class _Map(NamedTuple):
    """The models of a map by name, and the providers that may precede a name."""

    models: Mapping[str, ModelInfo]
    providers: frozenset[str]


class ModelRegistry:
    """Every chat model of the bundled map and the built-in windows, read at the first use."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._assumed = lru_cache(256)(self._assume)

    def find(self, model: str) -> ModelInfo | None:
        """Return the model by exact name, else without its provider's prefix, else by its family.

        None for a name of no known family.
        """
        models, providers = _read(self._path)
        rest = model
        while rest not in models:
            prefix, slash, rest = rest.partition("/")
            if not slash or prefix not in providers:
                return self._assumed(model)
        return models[rest]

    def _assume(self, model: str) -> ModelInfo | None:
        return assumed_info(model, _read(self._path).models.values())

    def list(self) -> Sequence[ModelInfo]:
        """Return all models, sorted by name."""
        return sorted(_read(self._path).models.values(), key=lambda info: info.model)


@lru_cache(maxsize=4)  # every app of a process has the same map
def _read(path: Path | None) -> _Map:
    models = {name: _built_in_info(name) for name in BUILT_IN_WINDOWS}
    path = path or map_path()
    if path is None:
        return _Map(models, frozenset())
    entries: dict[str, dict[str, Any]] = orjson.loads(path.read_bytes())
    providers, map_version = set(ROUTER_PREFIXES), "litellm"
    with suppress(PackageNotFoundError):
        map_version = f"litellm {version('litellm')}"
    for name, entry in entries.items():
        if entry.get("mode") not in CHAT_MODES:
            continue
        info = _info(intern(name), entry, map_version)
        if info is not None:
            models[info.model] = info
            providers.add(_provider(name, entry))
            if "/" in name:
                providers.add(name.partition("/")[0])
    return _Map(models, frozenset(providers))


def _provider(name: str, entry: Mapping[str, Any]) -> str:
    return str(entry.get("litellm_provider") or name.partition("/")[0])


def _info(name: str, entry: Mapping[str, Any], map_version: str) -> ModelInfo | None:
    """Return a model from its entry, None for an entry without limits."""
    window, output_limit = (
        int(value) if isinstance(value, int | float) and value > 0 else None
        for value in (entry.get("max_input_tokens"), entry.get("max_output_tokens"))
    )
    if window is None and output_limit is None:
        return None
    provider = _provider(name, entry)
    tokenizer = tokenizer_of(name) if provider in OPENAI_PROVIDERS else "unknown"
    max_input, limit_source = None, f"{map_version}: max_input_tokens, taken as the whole window"
    total = (window or 0) + (output_limit or 0)
    if window and total in OPENAI_WINDOWS and name.rpartition("/")[2].startswith("gpt-"):
        window, max_input = total, window
        limit_source = (
            f"{map_version}: max_input_tokens is input only, + max_output_tokens = {total:,}"
        )
    prices = {
        field: float(price)
        for field, key in PRICE_KEYS.items()
        if isinstance(price := entry.get(key), int | float) and price >= 0
    }
    minimum = entry.get("prompt_cache_min_tokens") or None
    minimum_source = f"{map_version}: prompt_cache_min_tokens"
    if minimum is None and tokenizer == O200K and "cache_read_price" in prices:
        minimum, minimum_source = OPENAI_MIN_CACHED_TOKENS, "OpenAI's prompt caching guide"
    source = entry.get("source")
    price_source = f"{map_version}, {source}" if isinstance(source, str) else map_version
    numbers = (
        ("context_window", window, limit_source),
        ("max_input_tokens", max_input, limit_source),
        ("max_output_tokens", output_limit, f"{map_version}: max_output_tokens"),
        ("cache_minimum_tokens", minimum, minimum_source),
        *((field, price, price_source) for field, price in prices.items()),
    )
    given: dict[str, Any] = {field: number for field, number, _ in numbers if number is not None}
    return ModelInfo(
        model=name,
        tokenizer=tokenizer,
        exact=tokenizer == O200K,
        sources={field: intern(source) for field, _, source in numbers if field in given},
        # OpenAI always accepts later system text. Anthropic itself supports tool search for all
        # models that the map lists; the map marks it for those that others host.
        tool_search=entry.get("supports_tool_search") is True or provider == "anthropic",
        cache_breakpoint=entry.get("supports_prompt_cache_breakpoint") is True,
        mid_conversation_system=entry.get("supports_mid_conversation_system") is True
        or provider in OPENAI_PROVIDERS,
        start_factor=start_factor(name),
        **given,
    )


def _built_in_info(name: str) -> ModelInfo:
    tokenizer = tokenizer_of(name)
    return ModelInfo(
        model=name,
        context_window=BUILT_IN_WINDOWS[name],
        tokenizer=tokenizer,
        exact=tokenizer == O200K,
        mid_conversation_system=tokenizer != "unknown",
        start_factor=start_factor(name),
        sources={"context_window": "built-in defaults"},
    )

"""The model registry: LiteLLM's bundled map of models, read without importing LiteLLM.

1. `max_tokens` of the map is not read: it is the output limit, or the input limit where no output
   limit is known.
2. `max_input_tokens` is taken as the whole window, the smaller interpretation. Where it and the
   output limit add up to a window that OpenAI publishes, it limits the input alone.
3. A name is looked up as it is, then without its provider's prefix, then among the built-in
   windows. It is never completed, shortened or matched by similarity.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sys import intern
from threading import Lock
from typing import Any, NamedTuple

import orjson

from app.domain.models.limits import BUILT_IN_WINDOWS, CAPABILITIES, ModelInfo

MAP_NAME = "model_prices_and_context_window_backup.json"
CHAT_MODES = frozenset({"chat", "responses"})
OPENAI_PROVIDERS = frozenset({"openai", "azure", "azure_ai"})
OPENAI_WINDOWS = frozenset({400_000, 1_050_000})
OPENAI_CACHE_MINIMUM = 1024
ROUTER_PREFIXES = frozenset({"litellm_proxy", "openrouter"})

O200K = "o200k_base"
TOKENIZERS: Sequence[tuple[tuple[str, ...], str]] = (
    (("gpt-4o", "gpt-4.1", "gpt-4.5-", "gpt-5", "chatgpt-4o-", "ft:gpt-4o"), O200K),
    (("ft:gpt-4.1", "ft:o4-mini", "o1-", "o3-", "o4-mini"), O200K),
    (("gpt-4-", "gpt-3.5-turbo", "gpt-35-turbo", "ft:gpt-4-", "ft:gpt-3.5-turbo"), "cl100k_base"),
)
"""OpenAI's tokenizers by prefixes of model names; the first row with a match counts."""
TOKENIZERS_BY_NAME: Mapping[str, str] = {"o1": O200K, "o3": O200K, "gpt-4": "cl100k_base"}


class Record(NamedTuple):
    """One model of the map in little memory; the provider and the source are interned."""

    input_limit: int | None
    output_limit: int | None
    cache_minimum: int | None
    input_price: float | None
    output_price: float | None
    cache_read_price: float | None
    cache_write_price: float | None
    provider: str
    source: str | None
    capabilities: tuple[bool, bool, bool] = (False, False, False)


def map_path() -> Path | None:
    """Return the path of the bundled map, None when LiteLLM is not installed."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / MAP_NAME
    return path if path.is_file() else None


class _Map(NamedTuple):
    """The chat models of a map by name, and the providers that may precede a name."""

    models: Mapping[str, Record]
    providers: frozenset[str]
    source: str


class ModelRegistry:
    """Every chat model of the bundled map and the built-in windows, read at the first use.

    Thread-safe.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = Lock()
        self._map: _Map | None = None

    def find(self, model: str) -> ModelInfo | None:
        """Return the model by exact name, else without its provider's prefix, else None."""
        loaded = self._load()
        for name in _names(model, loaded.providers):
            if name in loaded.models:
                return _info(name, loaded.models[name], loaded.source)
        for name in _names(model, loaded.providers):
            if name in BUILT_IN_WINDOWS:
                return _built_in_info(name)
        return None

    def list(self) -> Sequence[ModelInfo]:
        """Return all models, sorted by name."""
        loaded = self._load()
        built_in = [_built_in_info(name) for name in BUILT_IN_WINDOWS if name not in loaded.models]
        known = [_info(name, record, loaded.source) for name, record in loaded.models.items()]
        return sorted((*known, *built_in), key=lambda info: info.model)

    def _load(self) -> _Map:
        with self._lock:
            if self._map is None:
                self._map = _read(self._path)
            return self._map


def _names(model: str, providers: frozenset[str]) -> Iterator[str]:
    yield model
    prefix, slash, rest = model.partition("/")
    while slash and prefix in providers:
        yield rest
        prefix, slash, rest = rest.partition("/")


@lru_cache(maxsize=4)  # every app of a process has the same map
def _read(path: Path | None) -> _Map:
    path = path or map_path()
    if path is None:
        return _Map({}, frozenset(), "litellm")
    entries: dict[str, dict[str, Any]] = orjson.loads(path.read_bytes())
    models: dict[str, Record] = {}
    providers = set(ROUTER_PREFIXES)
    for name, entry in entries.items():
        if entry.get("mode") not in CHAT_MODES:
            continue
        record = _record(name, entry)
        if record is not None:
            models[intern(name)] = record
            providers.add(record.provider)
            if "/" in name:
                providers.add(name.partition("/")[0])
    return _Map(models, frozenset(providers), _map_version())


def _info(model: str, record: Record, source: str) -> ModelInfo:
    window, max_input, limit_source = _limits(model, record, source)
    tokenizer = _tokenizer(model, record.provider)
    minimum, minimum_source = _cache_minimum(tokenizer, record, source)
    info = ModelInfo(
        model=model,
        context_window=window,
        max_input_tokens=max_input,
        max_output_tokens=record.output_limit,
        tokenizer=tokenizer,
        exact=tokenizer == O200K,
        cache_minimum_tokens=minimum,
        input_price=record.input_price,
        output_price=record.output_price,
        cache_read_price=record.cache_read_price,
        cache_write_price=record.cache_write_price,
        sources={},
        **dict(zip(CAPABILITIES, record.capabilities, strict=True)),
    )
    prices = source if record.source is None else f"{source}, {record.source}"
    sources = {
        "context_window": limit_source,
        "max_input_tokens": limit_source,
        "max_output_tokens": f"{source}: max_output_tokens",
        "cache_minimum_tokens": minimum_source,
        **dict.fromkeys(
            ("input_price", "output_price", "cache_read_price", "cache_write_price"), prices
        ),
    }
    return _with_sources(info, sources)


def _map_version() -> str:
    try:
        return f"litellm {version('litellm')}"
    except PackageNotFoundError:
        return "litellm"


def _record(name: str, entry: Mapping[str, Any]) -> Record | None:
    input_limit = _count(entry.get("max_input_tokens"))
    output_limit = _count(entry.get("max_output_tokens"))
    if input_limit is None and output_limit is None:
        return None
    source = entry.get("source")
    return Record(
        input_limit=input_limit,
        output_limit=output_limit,
        cache_minimum=_count(entry.get("prompt_cache_min_tokens")),
        input_price=_price(entry.get("input_cost_per_token")),
        output_price=_price(entry.get("output_cost_per_token")),
        cache_read_price=_price(entry.get("cache_read_input_token_cost")),
        cache_write_price=_price(entry.get("cache_creation_input_token_cost")),
        provider=intern(str(entry.get("litellm_provider") or name.partition("/")[0])),
        source=intern(source) if isinstance(source, str) else None,
        capabilities=_capabilities(name, entry),
    )


def _capabilities(name: str, entry: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Return the features that the provider supports for this model, in the order of CAPABILITIES.

    OpenAI always accepts later system text. Anthropic itself supports tool search for all models
    that the map lists; the map marks it for those that others host.
    """
    provider = entry.get("litellm_provider") or name.partition("/")[0]
    return (
        entry.get("supports_tool_search") is True or provider == "anthropic",
        entry.get("supports_prompt_cache_breakpoint") is True,
        entry.get("supports_mid_conversation_system") is True or provider in OPENAI_PROVIDERS,
    )


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _price(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value >= 0 else None


def _limits(model: str, record: Record, map_version: str) -> tuple[int | None, int | None, str]:
    """Return the window, a separate input limit or None, and their source."""
    total = (record.input_limit or 0) + (record.output_limit or 0)
    has_openai_name = model.rpartition("/")[2].startswith("gpt-")
    if record.input_limit and has_openai_name and total in OPENAI_WINDOWS:
        source = f"{map_version}: max_input_tokens is input only, + max_output_tokens = {total:,}"
        return total, record.input_limit, source
    return record.input_limit, None, f"{map_version}: max_input_tokens, taken as the whole window"


def _tokenizer(model: str, provider: str) -> str:
    """Return the name of the model's tokenizer, `unknown` where it is not published."""
    if provider not in OPENAI_PROVIDERS:
        return "unknown"
    name = model.rpartition("/")[2]
    if name in TOKENIZERS_BY_NAME:
        return TOKENIZERS_BY_NAME[name]
    return next((found for prefixes, found in TOKENIZERS if name.startswith(prefixes)), "unknown")


def _cache_minimum(tokenizer: str, record: Record, map_version: str) -> tuple[int | None, str]:
    if record.cache_minimum is not None:
        return record.cache_minimum, f"{map_version}: prompt_cache_min_tokens"
    if tokenizer == O200K and record.cache_read_price is not None:
        return OPENAI_CACHE_MINIMUM, "OpenAI's prompt caching guide"
    return None, ""


def _built_in_info(name: str) -> ModelInfo:
    tokenizer = _tokenizer(name, "openai")
    return ModelInfo(
        model=name,
        context_window=BUILT_IN_WINDOWS[name],
        tokenizer=tokenizer,
        exact=tokenizer == O200K,
        mid_conversation_system=tokenizer != "unknown",
        sources={"context_window": "built-in defaults"},
    )


def _with_sources(info: ModelInfo, sources: Mapping[str, str]) -> ModelInfo:
    """Add the sources of the numbers that are set."""
    of_set = {name: source for name, source in sources.items() if getattr(info, name) is not None}
    return replace(info, sources=of_set)

"""The model registry: LiteLLM's bundled map of models, read without importing LiteLLM.

1. `max_tokens` of the map is not read: it is the output limit, or the input limit where no output
   limit is known.
2. `max_input_tokens` is taken as the whole window, the smaller interpretation. Where it and the
   output limit add up to a window that OpenAI publishes, it limits the input alone.
3. A name is looked up as it is, then without its provider's prefix, then among the built-in
   windows.

Families of models, by what their names say [models.families]:

4. All versions of a family have its tokenizer, from the version on that introduced it.
5. A name that no registry has, of a known family and not older than its versions there, is taken
   for the newest version that is not newer; of that one's models for the one with the smallest
   window. A longer name of a known model is taken for that model.
6. Names of models for images, speech and the like are taken for nothing: their windows differ.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from sys import intern
from typing import Any, Final

import orjson

from app.models.model_info import LIMIT_FIELDS, O200K, PRICE_FIELDS, ModelInfo

BUILT_IN_WINDOWS: Final[Mapping[str, int]] = {
    "claude-3-5-sonnet": 200_000,
    "claude-3-opus": 200_000,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gemini-pro": 32_000,
}
"""Windows in tokens, for models that the bundled map does not have."""
_OPENAI_PROVIDERS = frozenset({"openai", "azure", "azure_ai"})
_OPENAI_WINDOWS = frozenset({400_000, 1_050_000})
_OPENAI_MIN_CACHED_TOKENS = 1024
_ROUTER_PREFIXES = frozenset({"litellm_proxy", "openrouter"})
_PRICE_KEYS = (
    *("input_cost_per_token", "output_cost_per_token"),
    *("cache_read_input_token_cost", "cache_creation_input_token_cost"),
)
"""The map's keys of `PRICE_FIELDS`."""
_TOKENIZERS: Final = (
    (re.compile(r"(?:ft:)?(?:gpt-(?:4o|4\.[1-9]|[5-9]|[1-9]\d)|chatgpt-4o|o\d+(?:-|$))"), O200K),
    (re.compile(r"(?:ft:)?gpt-(?:4(?:-|$)|3\.5|35)"), "cl100k_base"),
)
"""OpenAI's tokenizers by the beginning of a model's name; the first row with a match counts."""
_NAME = re.compile(
    r"(?:^|[/.])(?P<stem>gpt-(?!35)|o|claude-(?:[a-z]+-)?|gemini-|grok-)"
    r"(?P<version>\d+(?:[.-]\d{1,2}(?![\d.]))?)(?P<rest>[^/]*)$"
)
_OTHER_KINDS = re.compile(
    r"image|audio|speech|tts|transcri|realtime|live|video|embed|guard|safeguard|oss"
)
_NO_MID_CONVERSATION_SYSTEM = re.compile(r"claude-sonnet-5(?![-.]?5)")
"""What Anthropic's page excludes, and the map does not."""
_NEW_CLAUDE: Final = (4, 7)
"""The version from which on Claude has a tokenizer that makes more tokens."""


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

    def list(self) -> Sequence[ModelInfo]:
        """Return all models, sorted by name."""
        return sorted(_read(self._path)[0].values(), key=lambda info: info.model)

    def _assume(self, model: str) -> ModelInfo | None:
        return assumed_info(model, _read(self._path)[0].values())


def map_path() -> Path | None:
    """Return the path of the bundled map, None when LiteLLM is not installed."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model_prices_and_context_window_backup.json"


@lru_cache(maxsize=4)  # every app of a process has the same map
def _read(path: Path | None) -> tuple[Mapping[str, ModelInfo], frozenset[str]]:
    """Return the models of a map by name, and the providers that may precede a name."""
    models = {name: _built_in_info(name) for name in BUILT_IN_WINDOWS}
    path = path or map_path()
    if path is None:
        return models, frozenset()
    providers, map_version = set(_ROUTER_PREFIXES), f"litellm {version('litellm')}"
    for name, fields in orjson.loads(path.read_bytes()).items():
        if fields.get("mode") not in ("chat", "responses"):
            continue
        info = _info(intern(name), fields, map_version)
        if info is not None:
            models[info.model] = info
            providers |= {_provider(name, fields), *name.split("/")[:-1][:1]}
    return models, frozenset(providers)


def _provider(name: str, fields: Mapping[str, Any]) -> str:
    return str(fields.get("litellm_provider") or name.partition("/")[0])


def _info(name: str, fields: Mapping[str, Any], source: str) -> ModelInfo | None:
    """Return a model from its fields in a map, None without limits."""
    context_window, output_limit = (
        int(value) if isinstance(value, int | float) and value > 0 else None
        for value in (fields.get("max_input_tokens"), fields.get("max_output_tokens"))
    )
    if context_window is None and output_limit is None:
        return None
    provider = _provider(name, fields)
    tokenizer = tokenizer_of(name) if provider in _OPENAI_PROVIDERS else "unknown"
    max_input, total = None, (context_window or 0) + (output_limit or 0)
    if context_window and total in _OPENAI_WINDOWS and name.rpartition("/")[2].startswith("gpt-"):
        context_window, max_input = total, context_window
    given: dict[str, Any] = {
        field: float(price)
        for field, key in zip(PRICE_FIELDS, _PRICE_KEYS, strict=True)
        if isinstance(price := fields.get(key), int | float) and price >= 0
    }
    minimum = fields.get("prompt_cache_min_tokens") or None
    if minimum is None and tokenizer == O200K and "cache_read_price" in given:
        minimum = _OPENAI_MIN_CACHED_TOKENS
    limits = zip(LIMIT_FIELDS, (context_window, max_input, output_limit, minimum), strict=True)
    given |= {field: limit for field, limit in limits if limit is not None}
    return ModelInfo(
        model=name,
        tokenizer=tokenizer,
        exact=tokenizer == O200K,
        sources=dict.fromkeys(given, intern(source)),
        # OpenAI always accepts later system text. Anthropic itself supports tool search for all
        # models that the map lists; the map marks it for those that others host.
        tool_search=fields.get("supports_tool_search") is True or provider == "anthropic",
        cache_breakpoint=fields.get("supports_prompt_cache_breakpoint") is True,
        mid_conversation_system=provider in _OPENAI_PROVIDERS
        or (
            fields.get("supports_mid_conversation_system") is True
            and _NO_MID_CONVERSATION_SYSTEM.search(name) is None
        ),
        start_factor=start_factor(name),
        **given,
    )


def _built_in_info(name: str) -> ModelInfo:
    provider = "openai" if name.startswith("gpt-") else ""
    fields = {"max_input_tokens": BUILT_IN_WINDOWS[name], "litellm_provider": provider}
    info = _info(name, fields, "built-in defaults")
    assert info is not None, "it has a context window"
    return info


def tokenizer_of(name: str) -> str:
    """Return the tokenizer of a model of OpenAI, `unknown` where it is not published."""
    name = name.rpartition("/")[2]
    return next((found for prefix, found in _TOKENIZERS if prefix.match(name)), "unknown")


def start_factor(name: str) -> float:
    """Return the factor of a model's counts before its first report; see decision 0002."""
    name = name.lower()
    if "claude-" not in name:
        return 1.12 if "gemini-" in name else 1.0
    family = _family(name)
    return 1.2 if family is not None and family[1] < _NEW_CLAUDE else 1.3


def _family(name: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the family and the version that a name says, None for a name of no known family."""
    match = _NAME.search(name.lower())
    if match is None or _OTHER_KINDS.search(match["rest"]):
        return None
    if match["stem"] == "o" and match["rest"][:1] not in ("", "-"):
        return None
    return match["stem"], tuple(map(int, re.split(r"[.-]", match["version"])))


def assumed_info(name: str, known: Iterable[ModelInfo]) -> ModelInfo | None:
    """Return what a model of a known family is taken to have (rule 5)."""
    family = _family(name)
    if family is None:
        return None
    stem, newest = family
    bare = name.lower()[name.lower().rindex(stem) :]
    of_all = "claude-" if stem.startswith("claude-") else stem
    ranked: list[tuple[Any, ModelInfo]] = []
    for info in known:
        if not info.context_window or not _NAME.match(info.model.removeprefix("xai/")):
            continue
        prefix, is_longer = info.model, bare[len(info.model) :][:1] in ("", "-", "@", ":")
        length = len(prefix) if bare.startswith(prefix) and is_longer else 0
        own = _family(info.model)
        if length or (own is not None and own[0].startswith(of_all) and own[1] <= newest):
            rank = (own[0].startswith(stem), own[1]) if own is not None else (False, ())
            ranked.append(((length, *rank, -info.context_window), info))
    if not ranked:
        return None
    found = max(ranked, key=lambda each: each[0])[1]
    unknown: dict[str, Any] = dict.fromkeys(PRICE_FIELDS)
    known_limits = [field for field in LIMIT_FIELDS if getattr(found, field) is not None]
    return replace(
        found,
        model=name,
        exact=False,
        sources=dict.fromkeys(known_limits, f"assumed to be that of {found.model}"),
        start_factor=start_factor(name),
        assumed_from=found.model,
        **unknown,
    )

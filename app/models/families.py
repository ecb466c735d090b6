"""Families of models: what a name says about a model. [models.families]

1. All versions of a family have its tokenizer, from the version on that introduced it.
2. A name that no registry has, of a known family and not older than its versions there, is taken
   for the newest version that is not newer; of that one's models for the one with the smallest
   window. A longer name of a known model is taken for that model.
3. Names of models for images, speech and the like are taken for nothing: their windows differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from app.models.limits import LIMIT_FIELDS, PRICE_FIELDS, ModelInfo

O200K: Final = "o200k_base"
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
_ENDS = "-@:"
_NEW_CLAUDE: Final = (4, 7)
"""The version from which on Claude has a tokenizer that makes more tokens."""

_Version = tuple[int, ...]


def tokenizer_of(name: str) -> str:
    """Return the tokenizer of a model of OpenAI, `unknown` where it is not published."""
    name = name.rpartition("/")[2]
    return next((found for prefix, found in _TOKENIZERS if prefix.match(name)), "unknown")


def start_factor(name: str) -> float:
    """Return the factor of a model's counts before its first report; see decision 0002."""
    name = name.lower()
    if "gemini-" in name:
        return 1.12
    if "claude-" not in name:
        return 1.0
    family = _family(name)
    return 1.2 if family is not None and family[1] < _NEW_CLAUDE else 1.3


def assumed_info(name: str, known: Iterable[ModelInfo]) -> ModelInfo | None:
    """Return the entry that a model of a known family is taken to have (rule 2)."""
    family = _family(name)
    if family is None:
        return None
    stem, version = family
    bare = name.lower()[name.lower().rindex(stem) :]
    infos = [
        info
        for info in known
        if info.context_window and _NAME.match(info.model.removeprefix("xai/"))
    ]
    longer = [info for info in infos if _goes_on(bare, info.model)]
    found = max(longer, key=lambda info: len(info.model), default=None)
    for wanted in (stem, "claude-" if stem.startswith("claude-") else stem):
        if found is None:
            found = _newest(infos, wanted, version)
    if found is None:
        return None
    numbers = [field for field in LIMIT_FIELDS if getattr(found, field) is not None]
    unknown: dict[str, Any] = dict.fromkeys(PRICE_FIELDS)
    return replace(
        found,
        model=name,
        exact=False,
        sources=dict.fromkeys(numbers, f"assumed to be that of {found.model}"),
        start_factor=start_factor(name),
        assumed_from=found.model,
        **unknown,
    )


def _newest(infos: Iterable[ModelInfo], stem: str, version: _Version) -> ModelInfo | None:
    """Return the model with the smallest window of a family's newest version up to this one."""
    versions: dict[_Version, list[ModelInfo]] = {}
    for info in infos:
        family = _family(info.model)
        if family is not None and family[0].startswith(stem) and family[1] <= version:
            versions.setdefault(family[1], []).append(info)
    newest = versions[max(versions)] if versions else []
    return min(newest, key=lambda info: info.context_window or 0, default=None)


def _family(name: str) -> tuple[str, _Version] | None:
    match = _NAME.search(name.lower())
    if match is None or _OTHER_KINDS.search(match["rest"]):
        return None
    if match["stem"] == "o" and match["rest"][:1] not in ("", "-"):
        return None
    return match["stem"], tuple(map(int, re.split(r"[.-]", match["version"])))


def _goes_on(name: str, known: str) -> bool:
    return name.startswith(known) and name[len(known) :][:1] in ("", *_ENDS)

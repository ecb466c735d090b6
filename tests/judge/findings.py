"""What a judge finds in a payload, and the facts beside it that some rules need."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning"]
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
THINKING = ("thinking", "redacted_thinking")
BREAKPOINTS = ("cache_control", "prompt_cache_breakpoint")


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule: an error is refused by the provider, a warning costs quality or cache."""

    rule: str
    place: str
    text: str
    severity: Severity = "error"

    def __str__(self) -> str:
        return f"{self.severity} {self.rule} at {self.place}: {self.text}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside a payload; a rule that needs what is None is not judged.

    `previous` is the payload of the build before. For the same model, the first `previous_stable`
    of its items have to stay, all of them by default. `betas` are Anthropic's beta headers.
    `prefill` says whether the model continues an assistant message, `takes_system` whether it takes
    system messages inside a conversation. `has_gateway` allows what gateways add to OpenAI Chat.
    """

    previous: Mapping[str, Any] | None = None
    previous_stable: int | None = None
    tokens: int | None = None
    capacity: int | None = None
    context_window: int | None = None
    cache_minimum: int | None = None
    betas: Collection[str] | None = None
    prefill: bool | None = None
    takes_system: bool | None = None
    has_gateway: bool = False


@dataclass(slots=True)
class Findings:
    """The findings of one payload, in the order they were found."""

    found: list[Finding] = field(default_factory=list)

    def error(self, rule: str, place: str, text: str) -> None:
        """Add what the provider refuses."""
        self.found.append(Finding(rule, place, text))

    @property
    def is_mistyped(self) -> bool:
        """Whether a type is wrong: the rules of a provider presuppose that all are right."""
        return bool(errors(self.found))

    def warn(self, rule: str, place: str, text: str) -> None:
        """Add what the provider accepts at a cost."""
        self.found.append(Finding(rule, place, text, "warning"))

    def judge_name(self, name: object, place: str) -> None:
        """Refuse a name that no tool may have."""
        if isinstance(name, str) and not _TOOL_NAME.fullmatch(name):
            self.error("tool-name", place, f"{name!r} is no name of a tool")


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that a provider refuses."""
    return [finding for finding in findings if finding.severity == "error"]


def repeated(values: Iterable[Any]) -> list[str]:
    """Return the texts that occur more than once, sorted."""
    counts = Counter(value for value in values if isinstance(value, str))
    return sorted(value for value, count in counts.items() if count > 1)


def is_blank(value: object) -> bool:
    """Whether a value is a text without a visible character."""
    return isinstance(value, str) and not value.strip()


def is_empty(value: object) -> bool:
    """Whether a content is missing, an empty array, or blank."""
    return value is None or value == [] or is_blank(value)


def objects(value: object) -> list[dict[str, Any]]:
    """Return a JSON array's items; an item of another kind becomes an empty object."""
    items = value if isinstance(value, list) else []
    return [item if isinstance(item, dict) else {} for item in items]


def wire(value: object) -> str:
    """Return a value as the text of a request, without breakpoints of caches."""
    return json.dumps(_unmarked(value), ensure_ascii=False)


def _unmarked(value: object) -> object:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key not in BREAKPOINTS}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def occurrences(value: object, key: str) -> int:
    """Count the objects anywhere in a value that have a key with a value."""
    if isinstance(value, dict):
        own = value.get(key) is not None
        return own + sum(occurrences(item, key) for name, item in value.items() if name != key)
    return sum(occurrences(item, key) for item in value) if isinstance(value, list) else 0

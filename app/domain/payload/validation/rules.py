"""The rules of payloads: their ids, their violations, and the facts that judging them takes.

1. An id names one rule of the providers: N for all, A Anthropic, B OpenAI Chat, C OpenAI Responses,
   G Gemini, X OpenAI Chat as LiteLLM speaks it.
2. The provider answers an error with a 400. A warning costs cache or quality.
3. A violation of a provider's own rule is reported under that rule, and under the neutral one only
   where the provider has none. One mistake is one violation.
4. A rule is not judged where a fact that it needs is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from app.domain.models.limits import ModelInfo
from app.domain.payload.validation.shapes import Shape

Severity = Literal["error", "warning"]

MAX_VIOLATIONS: Final = 1000
"""How many violations are listed."""

_WARNINGS = frozenset(
    ("N8", "N9", "N10", "N11", "A8", "A20", "A21", "B5", "C6", "C8", "C9", "G4", "X2", "X3")
)
_IDS = (
    *(f"N{number}" for number in range(1, 14)),
    *(f"A{number}" for number in range(1, 22)),
    *(f"B{number}" for number in range(1, 6)),
    *(f"C{number}" for number in range(1, 10)),
    *(f"G{number}" for number in range(1, 5)),
    *(f"X{number}" for number in range(1, 4)),
)
RULES: Final[Mapping[str, Severity]] = MappingProxyType(
    {rule: "warning" if rule in _WARNINGS else "error" for rule in _IDS}
)
"""Every rule with its severity."""

NOT_JUDGED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "N8": "Whether two payloads have the same inputs is not visible in them.",
        "N10": "Which messages a summary stands for is not visible in a payload.",
        "N13": "Which texts are untrusted is not visible in a payload.",
        "A11": "Which thinking an earlier build left out is not visible in a payload.",
        "X3": "Whether images are counted without fetching them is not visible in a payload.",
    }
)
"""The rules that no payload can show to be broken, with the reason."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule; `pointer` is a JSON pointer into the payload."""

    rule: str
    severity: Severity
    pointer: str
    message: str


@dataclass(frozen=True, slots=True)
class Context:
    """Facts beside the payload; each may be left out (rule 4).

    `previous` is the payload of the previous build. For the same model, the first `previous_stable`
    of its items have to stay, all of them by default. `tokens` is the estimate of the input and
    `capacity` its limit, without output limit and margin. `betas` are Anthropic's beta headers.
    With `prefill` the model continues an assistant message at the end.
    """

    previous: Mapping[str, Any] | None = None
    previous_stable: int | None = None
    tokens: int | None = None
    capacity: int | None = None
    model: ModelInfo | None = None
    betas: Sequence[str] | None = None
    prefill: bool = False


NO_CONTEXT: Final = Context()
"""No facts beside the payload."""


@dataclass(frozen=True, slots=True)
class Check(Shape):
    """A payload that is checked: its parts, those of the previous build, and the violations."""

    previous: Shape | None
    context: Context
    violations: list[Violation] = field(default_factory=list)

    @property
    def has_other_model(self) -> bool:
        """Whether the previous build was for another model, so that none of it has to stay."""
        old = self.previous
        return old is not None and bool(self.payload.get("model") != old.payload.get("model"))

    @property
    def previous_stable_items(self) -> Sequence[Any]:
        """The items of the previous build that have to stay for the same model."""
        return self.previous.items[: self.context.previous_stable] if self.previous else ()

    def add(self, rule: str, pointer: str, message: str) -> None:
        """Add a violation at a JSON pointer."""
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(rule, RULES[rule], pointer, message))

    def add_all(self, rule: str, pointers: Iterable[str], message: str) -> None:
        """Add the same violation at several pointers."""
        for pointer in pointers:
            self.add(rule, pointer, message)

    def touches(self, pointer: str) -> bool:
        """Whether there is a violation at a pointer or below it."""
        return any(f"{item.pointer}/".startswith(f"{pointer}/") for item in self.violations)

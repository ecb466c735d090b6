"""The rules of payloads: their ids, what breaks them, and what else has to be known to judge.

1. An id names one rule of the providers: N for all, A Anthropic, B OpenAI Chat, C OpenAI Responses,
   G Gemini, X OpenAI Chat as LiteLLM speaks it.
2. An error is answered by the provider with a 400; a warning costs cache or quality silently.
3. What breaks a provider's own rule is reported under that rule, and under the neutral one only
   where the provider has none. One thing wrong is one violation.
4. A rule that needs a fact nobody gave is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from app.domain.common.messages import FormatName
from app.domain.conversations.view import Span, View
from app.domain.models.limits import ModelInfo

Severity = Literal["error", "warning"]

MAX_VIOLATIONS: Final = 1000
"""How many violations are listed; a payload with so many is mended by no list."""

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
    {"X3": "Whether images are counted without fetching them is not seen in a payload."}
)
"""The rules that no payload can show to be broken, with the reason."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule broken at one place; `pointer` is a JSON pointer into the payload (K2)."""

    rule: str
    severity: Severity
    pointer: str
    message: str


@dataclass(frozen=True, slots=True)
class Context:
    """What a payload does not say of itself; everything may be left out (rule 4).

    `previous` is the payload of the lane's build before; the first `previous_stable` of its items
    were promised to stay, all of them when None (N9, A8, A20, B5, C5, C8, C9). With `new_epoch`,
    or another model, it is only what came before (N4, A10, A21, C3, G4). `same_inputs` says that
    it was built from the same log, settings and request (N8).

    `view` is what the payload shows of its log (N4, N10, N13), `groups` are the seqs of the log's
    call groups (N4). `tokens` is the estimate of the input, `capacity` what it may be at most,
    reserve and margin taken off (N7). `model` tells the least prefix worth a cache mark (A8), how
    many images are taken (A19), and whether system messages may stand in a conversation (A16).

    `family` is whose model reads an OpenAI Chat payload (N12, X1). `opaque` are the stored blocks
    of that family in the order they were made, items of OpenAI Responses and parts of Gemini with
    a signature among them: what is replayed is one of them byte for byte (N12, A9, A10, A12, C3,
    C6, C7, G2). `latest_thinking` are those of the newest assistant message, None where they were
    stripped (A9, X1). `dropped` are signatures, or the data of redacted thinking, that an earlier
    build left out (A11).

    `untrusted` are texts that may not speak with authority (N13). `placeholders` are the texts of
    cleared results by call id (N11). `betas` are Anthropic's beta headers (A10, A12, A13);
    `prefill` says that the model continues an assistant message that stands last (A1).
    """

    previous: Mapping[str, Any] | None = None
    previous_stable: int | None = None
    new_epoch: bool = False
    same_inputs: bool = False
    view: View | None = None
    groups: tuple[Span, ...] = ()
    tokens: int | None = None
    capacity: int | None = None
    model: ModelInfo | None = None
    family: FormatName | None = None
    opaque: tuple[Mapping[str, Any], ...] | None = None
    latest_thinking: tuple[Mapping[str, Any], ...] | None = None
    dropped: frozenset[str] = frozenset()
    untrusted: tuple[str, ...] = ()
    placeholders: Mapping[str, str] = field(default_factory=dict)
    betas: tuple[str, ...] | None = None
    prefill: bool = False


NO_CONTEXT: Final = Context()
"""Nothing is known beside the payload."""


@dataclass(slots=True)
class Findings:
    """Collects violations, up to MAX_VIOLATIONS of them."""

    violations: list[Violation] = field(default_factory=list)

    def add(self, rule: str, pointer: str, message: str) -> None:
        """Note that a rule is broken at a place."""
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(rule, RULES[rule], pointer, message))

    def add_all(self, rule: str, pointers: Iterable[str], message: str) -> None:
        """Note that a rule is broken in the same way at several places."""
        for pointer in pointers:
            self.add(rule, pointer, message)

    def touches(self, pointer: str) -> bool:
        """Whether anything was noted at a place or inside it."""
        inside = f"{pointer}/"
        return any(
            noted.pointer == pointer or noted.pointer.startswith(inside)
            for noted in self.violations
        )

"""Limits and prices of models, and the context window of a build.

1. Input and output share the context window. The output limit is a limit of its own.
2. `total` is the smaller of the requested window and the model's.
3. Some models limit their input apart from their output. `total` is then at most that input limit
   plus the reserved output, so that `total - max_output_tokens` always fits.
4. Every number has a source. The window of an unknown model of a known family is that of another
   model of the family, where nobody names one; that of any other unknown model is an error.

Families of models, by what their names say [models.families]:

5. All versions of a family have its tokenizer, from the version on that introduced it.
6. A name that no registry has, of a known family and not older than its versions there, is taken
   for the newest version that is not newer; of that one's models for the one with the smallest
   window. A longer name of a known model is taken for that model.
7. Names of models for images, speech and the like are taken for nothing: their windows differ.

Calibration of token counts by the usage that providers report.

1. The factor of a model is reported over counted tokens. Both are sums that decay with each report.
   Before the first report it is that of the model's family.
2. The margin is the mean deviation of reports from what the factor before them predicted, within
   bounds, once there are enough reports.
3. Reports are ignored for payloads that are too small, and for ratios that no tokenizer explains.
4. A factor above 1 applies at once, one below 1 only with enough reports: too large a count wastes
   tokens, but too small a count gets a request refused. A count by the model's own tokenizer is
   never lowered.
5. Reasoning and sealed text have a factor of their own, beside the model's: what they stand for is
   known to the provider only, and not every call is billed for them. A report of a payload with
   much of them is one of that factor alone. It begins as if `SEALED_PRIOR` tokens had been right.

The budget of a payload: the use of its context window by component, and the pressure.

1. `effective_window = total - max_output_tokens`. Every ratio is relative to it.
2. The components sum to `used_tokens`. They are those of the payload that is returned.
3. `used >= ratio x effective_window` reaches a level. Pressure is the highest level reached.
4. `notice` is no level: it never changes what is built.
5. A payload fits when used tokens plus the safety margin are within the effective window.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from typing_extensions import TypeAliasType

from app.common import json_text
from app.common.answers import answer
from app.common.errors import ContextLimitUnknown, ValidationError
from app.policy.policy import BudgetPolicy, CounterName

INEXACT_MARGIN = 0.05
"""Share of a count that is added for safety where the model has another tokenizer."""
DERIVED_FACTOR = 4
"""Window per token of reserved output, for unknown models under `derive`."""
BUILT_IN_WINDOWS: Mapping[str, int] = {
    "claude-3-5-sonnet": 200_000,
    "claude-3-opus": 200_000,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gemini-pro": 32_000,
}
"""Windows in tokens, for models that the bundled map does not have."""
CAPABILITIES = ("tool_search", "cache_breakpoint", "mid_conversation_system")
"""The fields of an entry with what a model's provider supports."""
LIMIT_FIELDS = ("context_window", "max_input_tokens", "max_output_tokens", "cache_minimum_tokens")
PRICE_FIELDS = ("input_price", "output_price", "cache_read_price", "cache_write_price")
NUMERIC_FIELDS = (*LIMIT_FIELDS, *PRICE_FIELDS)
"""The fields of an entry that each have a source."""
Sources = TypeAliasType("Sources", Mapping[str, str])
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


@answer()
@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's limits in tokens, prices in USD per token, and features; null where unknown."""

    model: str
    """Name of the model."""
    context_window: int | None = None
    """Input and output together."""
    max_input_tokens: int | None = None
    """A separate limit of the input."""
    max_output_tokens: int | None = None
    """The maximum length of an answer."""
    tokenizer: str = "unknown"
    """Its tokenizer, `unknown` where that is not published."""
    exact: bool = False
    """Whether the service counts with its tokenizer."""
    cache_minimum_tokens: int | None = None
    """The shortest prefix that is cached."""
    input_price: float | None = None
    """USD per input token."""
    output_price: float | None = None
    """USD per output token."""
    cache_read_price: float | None = None
    """USD per token read from the cache."""
    cache_write_price: float | None = None
    """USD per token written to the cache."""
    sources: Sources = field(default_factory=dict)
    """The source of each number, by field."""
    tool_search: bool = False
    """The provider supports tool search with deferred tools."""
    cache_breakpoint: bool = False
    """OpenAI's explicit cache breakpoints are supported."""
    mid_conversation_system: bool = False
    """System text is accepted after the first message."""
    start_factor: float = 1.0
    """The factor of its counts until usage is reported: that of its family."""
    assumed_from: str | None = None
    """The model of its family whose limits stand for its own, unknown ones."""

    @property
    def margin(self) -> float:
        """The share that is added to a count for safety."""
        return 0.0 if self.exact else INEXACT_MARGIN

    def cost(
        self,
        input_tokens: int,
        output_tokens: int,
        cache_creation_tokens: int = 0,
        cache_read_tokens: int = 0,
    ) -> float | None:
        """Return the price in USD of one call, None without the prices of input and output.

        `input_tokens` excludes cached tokens. Where no price of cached tokens is known, they cost
        as much as other input.
        """
        if self.input_price is None or self.output_price is None:
            return None
        write_price, read_price = self.cache_write_price, self.cache_read_price
        return (
            input_tokens * self.input_price
            + cache_creation_tokens * (self.input_price if write_price is None else write_price)
            + cache_read_tokens * (self.input_price if read_price is None else read_price)
            + output_tokens * self.output_price
        )


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The tokens of one call: `total`, and of these the reserved output.

    `source` of `total` is `request`, `policy`, `tenant`, `registry` or `derived`.
    """

    total: int
    max_output_tokens: int
    source: str

    @property
    def effective(self) -> int:
        """Tokens that the input may have."""
        return self.total - self.max_output_tokens


class Models(Protocol):
    """The limits and prices of models."""

    def find(self, model: str) -> ModelInfo | None:
        """Return the entry of a model, None for an unknown one."""
        ...

    def list(self) -> Sequence[ModelInfo]:
        """Return all known models, sorted by name."""
        ...


def resolve_context_window(
    requested: int | None,
    policy: int | None,
    info: ModelInfo | None,
    tenant: ModelInfo | None,
    max_output_tokens: int,
    derive: bool,
) -> ContextWindow:
    """Return the context window of a call.

    The reserved output is at most the model's output limit. Raises ContextLimitUnknown when no
    window is known and `derive` is false, ValidationError for limits that leave no input.
    """
    if max_output_tokens <= 0:
        raise ValidationError.at("/max_output_tokens", "The output limit must be positive")
    limits: list[tuple[int, str]] = []
    if requested is not None:
        limits.append((_positive(requested, "/max_context_tokens"), "request"))
    elif policy is not None:
        limits.append((_positive(policy, "/policy"), "policy"))
    has_own = tenant is not None and bool(tenant.context_window or tenant.max_input_tokens)
    model, model_source = (tenant, "tenant") if has_own else (info, "registry")
    if model is not None and model.assumed_from and limits:
        model = None  # the named window is more certain
    max_input = model.max_input_tokens if model is not None else None
    if model is not None and model.context_window:
        limits.append((model.context_window, model_source))
    elif max_input:
        limits.append((max_input + max_output_tokens, model_source))
    if not limits:
        if not derive:
            raise ContextLimitUnknown("The model's context window is unknown")
        limits.append((max_output_tokens * DERIVED_FACTOR, "derived"))
    total, source = min(limits, key=lambda limit: limit[0])
    if max_output_tokens >= total:
        raise ValidationError(
            "max_output_tokens must be smaller than the context window",
            {"max_output_tokens": max_output_tokens, "total": total, "source": source},
        )
    if model is not None and model.max_output_tokens:
        max_output_tokens = min(max_output_tokens, model.max_output_tokens)
    if max_input:
        total = min(total, max_input + max_output_tokens)
    return ContextWindow(total, max_output_tokens, source)


def _positive(limit: int, pointer: str) -> int:
    if limit <= 0:
        raise ValidationError.at(pointer, "Context limit must be positive")
    return limit


def merged_entry(model: str, bundled: ModelInfo | None, own: str | None) -> ModelInfo:
    """Return a model's entry, with the fields of the tenant's own entry in place of the bundled."""
    info = bundled or ModelInfo(model)
    entry = json_text.loads(own) if own is not None else {}
    numbers = {name: entry[name] for name in NUMERIC_FIELDS if entry.get(name) is not None}
    return replace(
        info,
        model=model,
        tokenizer=entry.get("tokenizer") or info.tokenizer,
        exact=info.exact if entry.get("exact") is None else entry["exact"],
        start_factor=1.0 if entry.get("exact") else info.start_factor,
        assumed_from=None if entry.get("context_window") else info.assumed_from,
        sources={**info.sources, **dict.fromkeys(numbers, "tenant")},
        **numbers,
        **{name: entry[name] for name in CAPABILITIES if entry.get(name) is not None},
    )


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
    """Return the entry that a model of a known family is taken to have (rule 6)."""
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


DECAY = 0.8
"""The share of the sums that remains with each report: the last ten make most of a factor."""
MIN_COUNTED = 200
"""The minimum tokens of a payload: in smaller ones most tokens are the overhead of messages."""
MAX_RATIO = 4.0
"""The maximum ratio between a provider's count and ours of the same payload."""
MIN_RATIO, MIN_ESTIMATE_RATIO = 0.6, 0.4
"""The minimum, of counts by the tokenizer and of estimates by length; see decision 0002."""
MIN_MARGIN = 0.02
ENOUGH_REPORTS = 3
SEALED_SHARE = 0.1
"""The share of a payload from which on a report says more about its sealed part than its text."""
SEALED_PRIOR = 1_000
"""Tokens that count as right before any report, and the most that one report weighs."""
MIN_SEALED = 0.25
"""The minimum of its factor: what one call leaves out of the bill, the next one may have in it."""
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """The factor of a model's counts, and the share that is added to the product for safety."""

    factor: float
    margin: float
    reports: int
    sealed: float = 1.0

    def applied(self, start: float, *, exact: bool) -> Calibration:
        """Return the calibration that builds use (rule 4): it does not change with every report.

        `start` is the factor before the first report; `exact` says that the model's own tokenizer
        counts.
        """
        reports = min(self.reports, ENOUGH_REPORTS)
        factor = self.factor if reports else start
        if exact or reports < ENOUGH_REPORTS:
            factor = max(1.0, factor)
        sealed = min(max(self.sealed, MIN_SEALED), MAX_RATIO)
        return Calibration(
            round(factor, _DIGITS), round(self.margin, _DIGITS), reports, round(sealed, 2)
        )


NO_REPORTS = Calibration(1.0, INEXACT_MARGIN, 0)
"""The calibration of a model before its first report."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a report says of a payload's text, or with `is_sealed` of its sealed part."""

    reported: int
    counted: int
    is_sealed: bool = False


def lesson_of(
    reported: int, counted: int, sealed: int, counter: str, applied: Calibration
) -> Lesson | None:
    """Return what a report says about a count, None for nothing (rules 3 and 5).

    `sealed` tokens of the count are of reasoning and sealed text.
    """
    if counted < MIN_COUNTED:
        return None
    text, factor = counted - sealed, applied.factor
    min_ratio = MIN_RATIO if counter == CounterName.TOKENIZER else MIN_ESTIMATE_RATIO
    is_sealed = sealed > 0 and sealed >= SEALED_SHARE * counted
    if is_sealed:
        beside, part = round(text * factor), max(1, round(sealed * factor))
        is_plausible = reported >= min_ratio * beside
    else:
        beside, part = round(sealed * factor * applied.sealed), text
        is_plausible = reported - beside >= min_ratio * part
    if not is_plausible or reported - beside > MAX_RATIO * part:
        return None
    share = min(1.0, SEALED_PRIOR / part) if is_sealed else 1.0
    return Lesson(max(0, round(share * (reported - beside))), round(share * part), is_sealed)


def safety_margin(own: float, factor: float, calibration: Calibration) -> float:
    """Return the share to add to a count that is multiplied by `factor`.

    `own` is the margin of the model's counter, 0 for an exact one; a corrected count is not exact.
    Where `factor` was fixed earlier, the margin covers the difference to the present one.
    """
    present, margin = calibration.factor, calibration.margin
    if not calibration.reports or (own == 0 and factor == present == 1):
        return own
    return round(max(margin, (1 + margin) * present / factor - 1), _DIGITS)


@answer()
@dataclass(frozen=True, slots=True)
class Estimate:
    """A count by the service, and its accuracy."""

    tokens: int
    """Tokens of the payload."""
    method: str
    """The counter, and its correction by reports."""
    margin: float
    """Share to add to it for safety."""
    factor: float
    """Factor that raw counts of this model are multiplied by."""


def estimate_of(
    tokens: int, counter: str, factor: float, margin: float, calibration: Calibration | None
) -> Estimate:
    """Return an estimate with its method, such as `tokenizer x 1.31 (5 reports)`."""
    method = counter
    if calibration is not None and calibration.reports:
        plural = "" if calibration.reports == 1 else "s"
        method = f"{counter} x {factor:g} ({calibration.reports} report{plural})"
    elif factor != 1:
        method = f"{counter} x {factor:g}"
    return Estimate(tokens, method, margin, factor)


HARD_BLOCK = 0.98
"""The share at which a compaction is forced, if `compact_trigger` is not above."""


class Pressure(StrEnum):
    """How full the effective window is, in rising order."""

    OK = "ok"
    DUE = "due"
    COMPACT = "compact"
    BLOCKED = "blocked"


_RANK = {pressure: rank for rank, pressure in enumerate(Pressure)}


@answer()
@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a payload by what they are used for, each already rounded."""

    system_prompt: int = 0
    """Used by sections, except skills."""
    skill_prompts: int = 0
    """Used by sections of kind skill."""
    tool_descriptions: int = 0
    """Used by tool definitions."""
    summary: int = 0
    """Used by the summary of older messages."""
    conversation: int = 0
    """Used by messages."""

    @property
    def total(self) -> int:
        """Tokens of the whole payload."""
        fixed = self.system_prompt + self.skill_prompts + self.tool_descriptions
        return fixed + self.summary + self.conversation

    @property
    def fixed(self) -> int:
        """Tokens that no reduction of the history can remove."""
        return self.system_prompt + self.skill_prompts + self.tool_descriptions


@answer()
@dataclass(frozen=True, slots=True)
class ContextBudget:
    """The context window and its use, in tokens; the percentage is from 0 to 100."""

    total: int
    """The context window."""
    max_output_tokens: int
    """Kept free for the answer."""
    system_prompt: int
    """Used by sections, except skills."""
    skill_prompts: int
    """Used by sections of kind skill."""
    tool_descriptions: int
    """Used by tool definitions."""
    summary: int
    """Used by the summary of older messages."""
    conversation: int
    """Used by messages."""
    effective_window: int
    """total - max_output_tokens."""
    used_tokens: int
    """Sum of the components."""
    remaining_tokens: int
    """effective_window - used_tokens."""
    used_percentage: float
    """used_tokens of effective_window."""


class Threshold(NamedTuple):
    """The first count of tokens that reaches a level, or the notice where `level` is None."""

    tokens: int
    name: str
    level: Pressure | None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a payload for one model; `due_at` is None for strategies without a trigger.

    `margin` is the share of the count that is added for safety, 0 for an exact counter. The input
    may have `effective_window` tokens; `capacity` is the largest count that fits with the margin
    (rule 5). `thresholds` are in the order of their tokens.
    """

    total: int
    max_output_tokens: int
    notice_at: float
    due_at: float | None
    compact_trigger: float
    hard_block: float
    margin: float = 0.0
    effective_window: int = field(init=False, compare=False)
    capacity: int = field(init=False, compare=False)
    thresholds: tuple[Threshold, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        window = self.total - self.max_output_tokens
        ratios = (
            (None, self.notice_at),
            (Pressure.DUE, self.due_at),
            (Pressure.COMPACT, self.compact_trigger),
            (Pressure.BLOCKED, self.hard_block),
        )
        thresholds = (
            Threshold(math.ceil(ratio * window), level.value if level else "notice", level)
            for level, ratio in ratios
            if ratio is not None
        )
        object.__setattr__(self, "effective_window", window)
        object.__setattr__(self, "capacity", math.floor(window / (1 + self.margin)))
        object.__setattr__(self, "thresholds", tuple(sorted(thresholds, key=itemgetter(0, 1))))

    def reached(self, used: int, ratio: float) -> bool:
        """Return whether `used` tokens reach this share of the effective window (rule 3)."""
        return used >= ratio * self.effective_window


@dataclass(frozen=True, slots=True)
class PressureStatus:
    """The pressure of one payload, and the tokens left to its next threshold."""

    pressure: Pressure
    notice: bool
    next_threshold: str | None
    tokens_to_next: int | None


def limits_for(
    policy: BudgetPolicy, total: int, max_output_tokens: int, due_at: float | None, margin: float
) -> Limits:
    """Return the limits that a policy sets in a context window of `total` tokens."""
    return Limits(
        total=total,
        max_output_tokens=max_output_tokens,
        notice_at=policy.notice_at,
        due_at=due_at,
        compact_trigger=policy.compact_trigger,
        hard_block=max(HARD_BLOCK, policy.compact_trigger),
        margin=margin,
    )


def measure(usage: Usage, limits: Limits) -> ContextBudget:
    """Return the budget of a payload with this usage."""
    window = limits.effective_window
    return ContextBudget(
        total=limits.total,
        max_output_tokens=limits.max_output_tokens,
        **asdict(usage),
        effective_window=window,
        used_tokens=usage.total,
        remaining_tokens=window - usage.total,
        used_percentage=round(100 * usage.total / window, 2),
    )


def pressure_status(used: int, limits: Limits) -> PressureStatus:
    """Return the highest level that `used` tokens reach, and the next threshold."""
    pressure, notice = Pressure.OK, False
    for threshold in limits.thresholds:
        if used < threshold.tokens:
            tokens_to_next = threshold.tokens - used
            return PressureStatus(pressure, notice, threshold.name, tokens_to_next)
        if threshold.level is None:
            notice = True
        elif _RANK[threshold.level] > _RANK[pressure]:
            pressure = threshold.level
    return PressureStatus(pressure, notice, None, None)


def scaled(tokens: int, factor: float) -> int:
    """Return a count times the model's calibration factor, rounded up."""
    return tokens if factor == 1 else math.ceil(tokens * factor)

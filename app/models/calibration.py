"""Calibration of token counts by the usage that providers report.

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
"""

from __future__ import annotations

from dataclasses import dataclass

from app.common.answers import answer
from app.models.limits import INEXACT_MARGIN
from app.policy.policy import CounterName

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

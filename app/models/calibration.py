"""Calibration: corrects counts by the usage that providers report.

1. The factor of a model is reported over counted tokens. Both are sums that decay with each report.
   Before the first report it is that of the model's family. The margin is the mean deviation of
   reports from what the factor before them predicted, once there are enough reports.
2. Reports are ignored for payloads that are too small, for ratios that no tokenizer explains, and
   for payloads with much reasoning or sealed text: only the provider knows what these stand for.
3. A factor above 1 applies at once, one below 1 only with enough reports: too large a count wastes
   tokens, but too small a count gets a request refused. A count by the model's own tokenizer is
   never lowered.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.common.answer_schemas import answer
from app.models.model_info import INEXACT_MARGIN
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
"""The share of reasoning and sealed text from which on a report is ignored."""
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """The factor of a model's counts, and the share that is added to the product for safety."""

    factor: float
    margin: float
    reports: int

    def applied(self, start: float, *, exact: bool) -> Calibration:
        """Return the calibration that builds use (rule 3): it does not change with every report.

        `start` is the factor before the first report; `exact` says that the model's own tokenizer
        counts.
        """
        reports = min(self.reports, ENOUGH_REPORTS)
        factor = self.factor if reports else start
        if exact or reports < ENOUGH_REPORTS:
            factor = max(1.0, factor)
        return Calibration(round(factor, _DIGITS), round(self.margin, _DIGITS), reports)


NO_REPORTS = Calibration(1.0, INEXACT_MARGIN, 0)
"""The calibration of a model before its first report."""


def may_correct(reported: int, counted: int, sealed: int, counter: str) -> bool:
    """Whether a report says something about a count, of which `sealed` tokens are (rule 2)."""
    if counted < MIN_COUNTED or sealed >= SEALED_SHARE * counted:
        return False
    min_ratio = MIN_RATIO if counter == CounterName.TOKENIZER else MIN_ESTIMATE_RATIO
    return min_ratio * counted <= reported <= MAX_RATIO * counted


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
    """How the service counted, and how accurate that is."""

    method: str
    """The counter, and its correction by reports."""
    margin: float
    """Share to add to it for safety."""
    factor: float
    """Factor that raw counts of this model are multiplied by."""


def estimate_of(
    counter: str, factor: float, margin: float, calibration: Calibration | None
) -> Estimate:
    """Return an estimate with its method, such as `tokenizer x 1.31 (5 reports)`."""
    reports = calibration.reports if calibration is not None else 0
    method = f"{counter} x {factor:g}" if reports or factor != 1 else counter
    if reports:
        method += f" ({reports} report{'' if reports == 1 else 's'})"
    return Estimate(method, margin, factor)

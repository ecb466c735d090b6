"""Calibration: what providers report, set against what was counted for the same payloads (J3).

1. Reported over counted tokens, both summed while the past fades, is a model's factor.
2. How far reports were from what the factor before them foretold is its margin, within bounds,
   once there are enough of them.
3. Payloads too small to tell anything, and ratios that no tokenizer explains, are left out.
4. More tokens than counted are believed at once, fewer only when there are enough reports: too
   large a count costs room, too small a one a request that the provider refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.models.limits import INEXACT_MARGIN

DECAY = 0.8
"""What is left of the sums when the next report comes: most of a factor is its last ten reports."""
MIN_COUNTED = 200
"""Tokens a payload has to have: in smaller ones the overhead of messages is most of it."""
MIN_RATIO, MAX_RATIO = 0.25, 4.0
"""Between these lies what another tokenizer may make of the same text."""
MIN_MARGIN = 0.02
ENOUGH_REPORTS = 3
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a model's counts are multiplied by, and the share to add to that for safety."""

    factor: float
    margin: float
    reports: int

    @property
    def rounded(self) -> Calibration:
        """What builds go by (rule 4): it does not change with every report."""
        reports = min(self.reports, ENOUGH_REPORTS)
        factor = self.factor if reports == ENOUGH_REPORTS else max(1.0, self.factor)
        return Calibration(round(factor, _DIGITS), round(self.margin, _DIGITS), reports)


@dataclass(frozen=True, slots=True)
class Tally:
    """The sums behind a calibration, in tokens; a database adds to them in the same way."""

    reported: float = 0.0
    counted: float = 0.0
    deviation: float = 0.0
    reports: int = 0

    @property
    def calibration(self) -> Calibration:
        """What the sums say; nothing reported is a factor of 1."""
        factor = self.reported / self.counted if self.reports else 1.0
        margin = INEXACT_MARGIN
        if self.reports >= ENOUGH_REPORTS:
            margin = min(max(self.deviation / self.reported, MIN_MARGIN), INEXACT_MARGIN)
        return Calibration(factor, margin, self.reports)

    def with_report(self, reported: int, counted: int) -> Tally:
        """Return the sums after one more payload (rules 1, 2)."""
        foretold = self.calibration.factor * counted
        return Tally(
            reported=DECAY * self.reported + reported,
            counted=DECAY * self.counted + counted,
            deviation=DECAY * self.deviation + abs(reported - foretold),
            reports=self.reports + 1,
        )


def doubt(reported: int, counted: int) -> str | None:
    """Return why a report says nothing about the counter, None when it does (rule 3)."""
    if counted < MIN_COUNTED:
        return "payload_too_small"
    if not MIN_RATIO <= reported / counted <= MAX_RATIO:
        return "implausible_ratio"
    return None


def safety_margin(own: float, factor: float, calibration: Calibration | None) -> float:
    """Return the share to add to a count multiplied by `factor` (C4).

    `own` is what the model's counter asks for by itself, 0 when it is exact; a count that had to
    be corrected is not. What a factor that was frozen earlier leaves out is in the margin.
    """
    if calibration is None:
        return own
    now, margin = calibration.rounded.factor, calibration.margin
    if own == 0 and factor == now == 1:
        return own
    return round(max(margin, (1 + margin) * now / factor - 1), _DIGITS)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A count of our own: `tokens` after the factor, and how far they are to be trusted (J3)."""

    tokens: int
    method: str
    margin: float
    factor: float


def estimate_of(
    tokens: int, counter: str, factor: float, margin: float, calibration: Calibration | None
) -> Estimate:
    """Return an estimate that tells its method, such as `tokenizer x 1.31 (5 reports)`."""
    method = counter
    if calibration is not None:
        plural = "" if calibration.reports == 1 else "s"
        method = f"{counter} x {factor:g} ({calibration.reports} report{plural})"
    elif factor != 1:
        method = f"{counter} x {factor:g}"
    return Estimate(tokens, method, margin, factor)

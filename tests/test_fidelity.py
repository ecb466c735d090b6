"""The judge of compactions: what counts as kept or stale."""

from __future__ import annotations

import pytest

from benchmarks.fidelity import coding
from benchmarks.fidelity.facts import Fact, Facts
from benchmarks.fidelity.matching import flat, stale, survives
from benchmarks.fidelity.sessions import FACTS, Session

PORT = Fact("prose", ("canary", "port"), "53474", "22446")
NEWEST = "- The canary port is 53474.\n"


@pytest.mark.parametrize("seed", ["even 2", "odd 3"])
def test_a_perfect_summary_keeps_every_fact_and_an_empty_one_none(seed: str) -> None:
    """The newest statement of each fact is enough, whatever its form and language."""
    facts = Facts(seed, "").drawn(FACTS)
    assert len({fact.form for fact in facts}) > FACTS / 3
    for fact in facts:
        about = "" if fact.subject[1] in fact.statement else " ".join(fact.subject)
        summary = f"{about} {fact.statement}".replace("_", " ")
        assert survives(fact, flat(summary)), fact
        assert not survives(fact, ""), fact
        assert stale(fact, flat(summary), summary) == "", fact
        if fact.second:
            assert stale(fact, flat(fact.first), fact.first) == "current", fact


@pytest.mark.parametrize(
    ("written", "how"),
    [
        (NEWEST, ""),
        (f"{NEWEST}- The canary port is 22446.", "current"),
        (f"- The canary port is 22446.\n{NEWEST}", "beside"),
        (f"{NEWEST}- Earlier the canary port was 22446.", ""),
        (f"{NEWEST}- The canary port is 122446, not 22446.5 or 22446-7.", ""),  # other numbers
        ("- Use 53474 for the canary port instead of 22446.", ""),
        (f"## Superseded\n- canary port: 22446\n## Facts\n{NEWEST}", ""),
        ("- Earlier the canary port was 22446.", "current"),  # and the newest is not there
        (f"{NEWEST}{'x' * 400} 53474. The canary port is 22446.", "current"),
    ],
)
def test_an_old_value_is_stale_unless_it_is_named_as_history(written: str, how: str) -> None:
    """The old value is stale where it stands alone, or where the newest value is absent."""
    assert stale(PORT, flat(written), written) == how


def test_an_error_that_a_later_run_ended_is_no_news() -> None:
    """The same runner with other arguments ends its failure; a summary may say that it is over."""
    messages = [{"role": "user", "content": "Repair it."}]
    for command, output in (("pytest a", "E   TypeError: no such thing"), ("pytest a -x", "ok")):
        said = {"role": "assistant", "content": f"```\ncd /x && {command}\n```"}
        messages += [said, {"role": "user", "content": output}]
    assert (fixed := list(coding.fixed_errors(Session("made", "text", messages))))
    assert coding.is_shown(fixed[0], "- pytest a: E   TypeError: no such thing")
    assert not coding.is_shown(fixed[0], "- pytest a passed after E   TypeError: no such thing")

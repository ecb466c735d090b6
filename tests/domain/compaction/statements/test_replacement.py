"""A newer statement takes the place of an older one on the same subject. [summary.superseded]"""

# ruff: noqa: RUF001 - characters of several scripts are meant

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.summaries.extractive import without_replaced
from app.compaction.summaries.statements.ledger import StatementLedger
from tests.domain.compaction.statements.messages import assistant, count, sections, summarised, user

HISTORY = "Replaced, no longer valid"
STATED = [
    f"{intro}{subject} {verb} {value}{end}"
    for intro in ("The ", "Correction: the ", "From now on the ")
    for subject in ("staging port", "production port", "port", "release date of Harbor")
    for verb, value in (("is", "8080"), ("is now", "9090"), ("moved from 8080 to", "14 March"))
    for end in (".", ", Ada said.")
]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The staging port is 8080.", "Actually, the staging port is now 9090."),
        ("The staging port is 8080.", "The staging port is 9090."),
        ("The launch date is May 3.", "We moved the launch to June 12; it was wrong before."),
        (
            "Indent YAML files with four spaces.",
            "Changed my mind: indent YAML files with two spaces.",
        ),
        ("My budget must stay below 500 euros.", "Correction: my budget is 700 euros."),
        ("We use MySQL for the ledger service.", "Use PostgreSQL instead of MySQL for the ledger."),
        ("Der Staging-Port ist 8080.", "Korrektur: der Staging-Port ist jetzt 9090."),
        ("Le port de test est 8080.", "En fait, le port de test est maintenant 9090."),
        ("El puerto de pruebas es 8080.", "El puerto de pruebas ahora es 9090."),
        ("A porta de teste é 8080.", "Correção: a porta de teste agora é 9090."),
        ("Порт стенда — 8080, это важно.", "Теперь порт стенда — 9090."),
        ("ステージングのポートは8080です。", "変更です。ステージングのポートは9090になりました。"),
        ("测试端口是8080。", "更正：测试端口现在是9090。"),
        ("스테이징 포트는 8080입니다.", "스테이징 포트는 9090으로 변경되었습니다."),
    ],
)
def test_an_update_replaces_what_it_updates(old: str, new: str) -> None:
    """The newer value is current, the older one is named as history alone."""
    noise = [user("The design review is on Monday."), assistant("The cache holds 30 keys.")]
    found = sections(summarised([user(old), *noise, user(new)], opens=False).text)
    history = found.pop(HISTORY)
    assert history == [old]
    current = "\n".join(item for items in found.values() for item in items)
    assert old not in current
    assert new.rstrip(".").split(". ")[-1].split("。")[0] in current


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Export as CSV.", "Export has to be Parquet, csv is 9 GB."),
        ("Target Node 18.", "Bump: we target Node 22."),
        ("Run the linter with flake8.", "We replaced flake8 by ruff."),
        ("Release manager is Yusuf.", "Paula is the new release manager for the mobile team."),
        ("Der Hafenkran trägt 12 Tonnen.", "Am Hafenkran heben wir jetzt bis zu 20 Tonnen."),
    ],
)
def test_a_likely_update_stands_beside_what_it_may_change(old: str, new: str) -> None:
    """The newer statement is shown with the older one, and the next summary reads both back."""
    noise = [user("The design review is on Monday."), user("The cache holds 30 keys.")]
    text = summarised([user(old), *noise, user(new)], opens=False).text
    (line,) = (line for line in text.splitlines() if new in line)
    assert line == f"- {new} (earlier: {old})"
    assert summarised([], text, opens=False).text == text
    assert HISTORY not in sections(text)


def test_what_a_newer_summary_may_change_is_marked_in_an_older_one() -> None:
    """In a tree both keep their places. [strategy.tree]"""
    older = summarised([user("Export as CSV."), user("The winch is red.")], opens=False).text
    newer = summarised([user("Export has to be Parquet, csv is 9 GB.")], opens=False).text
    changed, same = without_replaced([older, newer], count)
    assert same == newer
    assert changed == older.replace("- Export", "- (earlier) Export")
    assert without_replaced([changed, newer], count) == [changed, newer]


@given(st.lists(st.sampled_from(STATED), max_size=8))
def test_every_statement_is_shown_or_named_as_replaced(stated: list[str]) -> None:
    """With room no statement is lost, whatever is taken for a change of what."""
    text = summarised([user(each) for each in stated], opens=False).text
    assert all(each in text for each in stated), text


def test_an_assistant_replaces_no_statement_of_a_user() -> None:
    """What the user stated holds until the user changes it."""
    text = summarised(
        [user("The staging port is 8080."), assistant("The staging port is now 9090.")], opens=False
    ).text
    assert "8080" in text and HISTORY not in sections(text)


def test_a_message_that_stays_shown_replaces_older_values() -> None:
    """A summary does not state a value that a newer message beside it changes."""
    ledger = StatementLedger()
    ledger.add_message(user("The staging port is 8080."))
    ledger.replace_by(user("The staging port is now 9090."))
    texts = [entry.statement.text for entry in ledger.entries()]
    assert texts == ["The staging port is 8080."]
    assert ledger.entries()[0].statement.kind == HISTORY

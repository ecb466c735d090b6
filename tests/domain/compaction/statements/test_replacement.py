"""A newer statement takes the place of an older one on the same subject. [summary.superseded]"""

# ruff: noqa: RUF001 - characters of several scripts are meant

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.compaction.summaries.statements.fitting import fit
from app.domain.compaction.summaries.statements.ledger import StatementLedger
from app.domain.compaction.summaries.statements.merging import without_replaced
from app.domain.compaction.summaries.statements.summary_text import NO_CLOSING
from tests.domain.compaction.statements.messages import (
    assistant,
    count,
    sections,
    summarised,
    user,
)

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
    ("first", "second"),
    [
        ("The billing timeout is 30 s.", "Update: the search timeout is now 45 s."),
        ("Hard constraint: pages load in 1 s.", "Hard constraint: exports take 5 MB at most."),
        ("From now on, answer in German.", "From now on, cite the page of a source."),
        ("I checked the settings: the host is a1.", "I checked the settings: the port is 22."),
        ("My dog is called Rex.", "My cat is called Tom."),
        ("Never deploy on Fridays.", "Never deploy without a review."),
    ],
)
def test_statements_on_other_subjects_stay(first: str, second: str) -> None:
    """Words in common are no common subject."""
    text = summarised([user(first), user(second)], opens=False).text
    assert HISTORY not in sections(text)
    assert first in text and second in text


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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Put 2200 ms down as the crane timeout.", "Make that 9963 ms for the crane timeout."),
        ("Ops told me the crane port would be 7001.", "Crane port? That would be 7405 these days."),
        ("Our crane image sits at hub.harbor.example.", "Word is: quay.dock.example, crane image."),
        ("Send crane alarms to stderr.", "Crane alarms belong on stdout after all."),
    ],
)
def test_the_statement_that_an_update_fits_best_is_found(old: str, new: str) -> None:
    """Among others in the same words it stands beside the right one. [summary.superseded]"""
    others = [
        "Put 300 ms down as the winch timeout.",
        "The winch port is 6001.",
        "The winch image is at hub.winch.example.",
        "Send winch mail to Ada.",
    ]
    text = summarised([user(each) for each in (*others, old, *others[::-1], new)], opens=False).text
    (line,) = (line for line in text.splitlines() if old in line)
    assert new in line
    held = [line for line in text.splitlines() if line.startswith("- ") and old not in line]
    assert all(any(other in line.split(" (earlier: ")[0] for line in held) for other in others)


def test_an_older_statement_moves_to_the_newer_one_that_it_fits_better() -> None:
    """A wrong guess is mended by a later statement."""
    ledger = StatementLedger()
    for text in (
        "The winch port is 6001.",
        "Deploys of the crane happen on Thursdays at noon.",
        "The crane is green now.",
        "Deploys of the crane happen on Mondays now, at nine.",
    ):
        ledger.add_message(user(text))
    shown = [entry.statement for entry in ledger.entries()]
    (newest,) = (item for item in shown if "Mondays" in item.text)
    assert any("Thursdays" in text for text in newest.earlier) or any(
        "Thursdays" in item.text and item.kind == HISTORY for item in shown
    )


@pytest.mark.parametrize(
    "form",
    [
        "From now on never touch file{}.py.",
        "Always cc person{} on mails.",
        "From now on, never deploy service {} on Fridays.",
        "Ticket OPS-{} is about the login page.",
    ],
)
def test_a_list_of_statements_stays(form: str) -> None:
    """The same of several things is no change of one."""
    stated = [form.format(number) for number in range(100, 140)]
    text = summarised([user("\n".join(stated))], opens=False).text
    assert [line[2:] for line in text.splitlines() if line[2:] in stated] == stated


def test_older_statements_give_way_first() -> None:
    """Where room is short a newer statement stands without the older one; that is remembered."""
    older = "Ops told me the crane port would be 7001."
    newer = "Crane port? That would be 7405 these days."
    messages = [user(older), user(newer)]
    messages += [user(f"Never move {name} without papers.") for name in ("pallets", "barrels")]
    whole = summarised(messages, opens=False)
    assert f"- {newer} (earlier: {older})" in whole.text
    small = summarised(messages, opens=False, tokens=count(whole.text) - 1)
    assert f"- {newer}" in small.text.splitlines() and older not in small.text
    assert f"- {newer} (earlier: {older})" in small.unlisted


def test_what_a_newer_summary_may_change_is_marked_in_an_older_one() -> None:
    """In a tree both keep their places. [strategy.tree]"""
    older = summarised([user("Export as CSV."), user("The winch is red.")], opens=False).text
    newer = summarised([user("Export has to be Parquet, csv is 9 GB.")], opens=False).text
    changed, same = without_replaced([older, newer], count)
    assert same == newer
    assert changed == older.replace("- Export", "- (earlier) Export")
    assert without_replaced([changed, newer], count) == [changed, newer]


def test_what_a_shown_message_may_change_is_marked() -> None:
    """A summary says so of what a message beside it may change, and the next reads that back."""
    ledger = StatementLedger()
    ledger.add_message(user("Export as CSV."))
    ledger.replace_by(user("Export has to be Parquet, csv is 9 GB."))
    text = fit(ledger, 400, count, NO_CLOSING).text
    assert "- (earlier) Export as CSV." in text
    assert summarised([], text, opens=False).text == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Never force-push.", "Find out who force-pushed and changed the rules."),
        ("Max upload size is 25 MB.", "Should we change the max upload size to 50 MB?"),
        ("The staging port is 8080.", "The production port is now 9090."),
        ("The staging config file is a.yaml.", "The canary config file is now b.yaml."),
    ],
)
def test_what_holds_is_not_shown_as_earlier(old: str, new: str) -> None:
    """Questions, other subjects in the same words, and remarks leave older statements alone."""
    text = summarised([user(old), user(new)], opens=False).text
    assert f"- {old}" in text.splitlines()


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


def test_what_replaces_a_constraint_takes_its_place() -> None:
    """A plain sentence that changes a constraint is one as well."""
    messages = [
        user("Memory use must stay below 512 MB."),
        user("Memory use is now 700 MB, sorry."),
    ]
    found = sections(summarised(messages, opens=False).text)
    assert found["Constraints"] == ["Memory use is now 700 MB, sorry."]


def test_a_message_that_stays_shown_replaces_older_values() -> None:
    """A summary does not state a value that a newer message beside it changes."""
    ledger = StatementLedger()
    ledger.add_message(user("The staging port is 8080."))
    ledger.replace_by(user("The staging port is now 9090."))
    texts = [entry.statement.text for entry in ledger.entries()]
    assert texts == ["The staging port is 8080."]
    assert ledger.entries()[0].statement.kind == HISTORY


def test_summaries_side_by_side_state_each_value_once() -> None:
    """An older summary of a tree loses what a newer one replaces; others stay as they are."""
    old = summarised([user("The port is 80 here."), user("My name is Ada.")], opens=False).text
    new = summarised([user("Correction: the port is 81 here.")], opens=False).text
    first, second = without_replaced([old, new], count)
    assert "The port is 80" not in first and "My name is Ada." in first
    assert second == new
    model = "The port is 80 here, a model wrote."
    assert without_replaced([model, new], count) == [model, new]
    assert without_replaced([new, old.replace("port", "host")], count)[0] == new

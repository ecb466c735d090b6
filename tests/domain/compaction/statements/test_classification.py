"""What kind of statement a sentence is, in nine languages. [summary.statements]"""

from __future__ import annotations

import pytest

from app.compaction.summaries.statements.statement import Author, Kind
from tests.domain.compaction.statements.messages import assistant, result, statements_of, user

STANDING = [
    "From now on, answer in German.",
    "For the rest of this session, write dates as ISO 8601.",
    "When you cite a source, give its page.",
    "Use tabs, not spaces.",
    "Please never use emojis.",
    "Ab jetzt bitte immer auf Deutsch antworten.",
    "Désormais, réponds toujours en français.",
    "A partir de ahora responde siempre en español.",
    "De agora em diante, responda sempre em português.",
    "Отныне отвечай только по-русски.",
    "今後は必ず日本語で答えてください。",
    "从现在开始请用中文回答。",
    "앞으로 모든 답변은 한국어로 해 주세요.",
]


@pytest.mark.parametrize("text", STANDING)
def test_standing_instructions_are_known_in_every_language(text: str) -> None:
    """An instruction about all that follows has a kind of its own."""
    (statement,) = statements_of([user(f"{text}")])
    assert (statement.kind, statement.text) == (Kind.STANDING, text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The export must not exceed 250 kilobytes.", Kind.CONSTRAINT),
        ("I am allergic to penicillin.", Kind.CONSTRAINT),
        ("Das Budget darf 500 Euro nicht überschreiten.", Kind.CONSTRAINT),
        ("Нельзя удалять резервные копии.", Kind.CONSTRAINT),
        ("バックアップは削除してはいけません。", Kind.CONSTRAINT),
        ("백업을 삭제하면 안 됩니다.", Kind.CONSTRAINT),
        ("I prefer short functions over clever ones.", Kind.PREFERENCE),
        ("Our goal is a checkout that takes a second.", Kind.GOAL),
        ("We decided to drop the XML feed.", Kind.DECISION),
        ("The staging port is 8080.", Kind.FACT),
        ("My user ID is mia_li_3668.", Kind.FACT),
        ("Please fix the login page", Kind.REQUEST),
    ],
)
def test_a_users_sentence_has_its_kind(text: str, kind: Kind) -> None:
    """Constraints, preferences, goals, decisions, facts and requests are told apart."""
    assert [item.kind for item in statements_of([user(text)])] == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "ok, thanks!",
        "好的。",
        "はい、",
        "감사합니다!",
        "<system-reminder>The port is 8080.</system-reminder>",
        "[Request interrupted by user]",
        "2026-11-23 10:00:01 INFO the port is 8080",
        "def port(): return 8080",
        "[File: app.py (3 lines total)]\nThe port is 8080.",
    ],
)
def test_noise_and_acknowledgements_state_nothing(text: str) -> None:
    """What a harness adds, output, code and thanks are left out."""
    assert statements_of([user(text)]) == []


def test_an_assistants_text_gives_decisions_findings_and_values() -> None:
    """Plans of the next step, questions, code and output of tools are no statements."""
    said = (
        "Let me look at the config. Now let's restore the port 8080. We decided to use bcrypt."
        " The reason is that it is slow.\n\n"
        "```python\n# we decided to use md5\n```\n"
        "The root cause is a wrong salt. Would you like me to go on?\nThe staging port is 8080."
    )
    messages = [assistant(said), result("We decided to use md5. The port is 1.", "c")]
    assert [(item.kind, item.author, item.text) for item in statements_of(messages)] == [
        (
            Kind.DECISION,
            Author.ASSISTANT,
            "We decided to use bcrypt. The reason is that it is slow.",
        ),
        (Kind.FINDING, Author.ASSISTANT, "The root cause is a wrong salt."),
        (Kind.FACT, Author.ASSISTANT, "The staging port is 8080."),
    ]

"""What kind of statement a sentence is, in nine languages. [summary.statements]"""

from __future__ import annotations

import pytest

from app.domain.compaction.summaries.statements.segments import Form, segments
from app.domain.compaction.summaries.statements.statement import Author, Kind
from tests.domain.compaction.statements.messages import assistant, result, statements_of, user

STANDING = [
    "From now on, answer in German.",
    "For the rest of this session, write dates as ISO 8601.",
    "When you cite a source, give its page.",
    "Use tabs, not spaces.",
    "Please never use emojis.",
    "Ab jetzt bitte immer auf Deutsch antworten.",
    "Verwende für den Rest der Sitzung metrische Einheiten.",
    "Désormais, réponds toujours en français.",
    "Pour le reste de la session, n'utilise pas d'émojis.",
    "A partir de ahora responde siempre en español.",
    "Usa tabuladores, no espacios.",
    "De agora em diante, responda sempre em português.",
    "Use espaços, não tabs, em todas as respostas.",
    "Отныне отвечай только по-русски.",
    "Когда ты цитируешь источник, указывай страницу.",
    "今後は必ず日本語で答えてください。",
    "引用するときは出典のページを示してください。",
    "从现在开始请用中文回答。",
    "每次引用时请注明来源。",
    "앞으로 모든 답변은 한국어로 해 주세요.",
    "이제부터 이모지를 쓰지 마세요.",
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
        ("Il est interdit de supprimer des sauvegardes.", Kind.CONSTRAINT),
        ("No se puede usar otra base de datos.", Kind.CONSTRAINT),
        ("Não é permitido apagar registros.", Kind.CONSTRAINT),
        ("Нельзя удалять резервные копии.", Kind.CONSTRAINT),
        ("バックアップは削除してはいけません。", Kind.CONSTRAINT),
        ("响应不得超过250KB。", Kind.CONSTRAINT),
        ("백업을 삭제하면 안 됩니다.", Kind.CONSTRAINT),
        ("I prefer short functions over clever ones.", Kind.PREFERENCE),
        ("Ich bevorzuge kurze Funktionen.", Kind.PREFERENCE),
        ("Я предпочитаю короткие функции.", Kind.PREFERENCE),
        ("Our goal is a checkout that takes a second.", Kind.GOAL),
        ("We decided to drop the XML feed.", Kind.DECISION),
        ("The staging port is 8080.", Kind.FACT),
        ("My user ID is mia_li_3668.", Kind.FACT),
        ("Please fix the login page", Kind.REQUEST),
        ("Where does it crash?", Kind.REQUEST),
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
        "Danke, super",
        "<system-reminder>The port is 8080.</system-reminder>",
        "<ide-selection>The port is 8080.</ide-selection>",
        "[Request interrupted by user]",
        "2026-11-23 10:00:01 INFO the port is 8080",
        "INFO the port is 8080",
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


def test_an_earlier_summary_of_a_harness_has_no_labels() -> None:
    """Headings and labels say nothing without what stood below them."""
    said = (
        "This session is being continued from a previous conversation.\n\n## Pending Tasks\n"
        "Files and Code Sections:\n   - The port is 8080.\n\n**Current Work**:\nFix test 6.1"
    )
    assert [(item.kind, item.text) for item in statements_of([user(said)])] == [
        (Kind.EARLIER, "This session is being continued from a previous conversation."),
        (Kind.EARLIER, "The port is 8080."),
        (Kind.EARLIER, "Fix test 6.1"),
    ]


def test_text_is_cut_between_sentences_only() -> None:
    """Abbreviations, numbers and paths end no sentence; lists, code and tables are units."""
    text = (
        "Use e.g. v1.2 of src/a.py, z.B. heute. Then stop!\n- first item\n- [ ] second\n"
        "| a | b |\n| 1 | 2 "
        "|\n```\ncode. More.\n```\nこれは文です。次の文です。\nwrapped at a long line"
        " that goes on with the words of the next line below\nand ends here."
    )
    assert [(unit.form, unit.text) for unit in segments(text)] == [
        (Form.SENTENCE, "Use e.g. v1.2 of src/a.py, z.B. heute."),
        (Form.SENTENCE, "Then stop!"),
        (Form.ITEM, "first item"),
        (Form.ITEM, "second"),
        (Form.BLOCK, "| a | b |\n| 1 | 2 |"),
        (Form.BLOCK, "```\ncode. More.\n```"),
        (Form.SENTENCE, "これは文です。"),
        (Form.SENTENCE, "次の文です。"),
        (
            Form.SENTENCE,
            "wrapped at a long line that goes on with the words of the next line below and ends"
            " here.",
        ),
    ]

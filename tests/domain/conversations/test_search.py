"""Words, queries, questions, ranking and excerpts, for any language.

[search.words, search.recall]
"""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.conversations.search.words import (
    EXCERPT_CHARS,
    MAX_LEXEME_BYTES,
    MAX_LEXEMES,
    MAX_RANKED,
    MAX_WORDS,
    MIN_PREFIX,
    excerpt,
    lexemes,
    places_of,
    query_terms,
    question_terms,
    ranked,
    scores_of,
    text_of,
)
from app.formats.message import Message, Reasoning, Role, Text, ToolCall

ALPHABETS = (
    *("abcdefghijklmnopqrstuvwxyz0123456789", "ABCDefghÄÖÜäöüßéèêñçåøł"),
    *("абвгдежзийклмнопрстуфхцчшщъыьэюяё", "αβγδεζηθικλμνξοπρστυφχψω"),
    *("ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "אבגדהוזחטיכלמנסעפצקרשת"),
    *("가나다라마바사아자차카타파하고양이", "知識管理東京天気", "ひらがなカタカナ", "กขคงจฉชซ"),
)
WORD = st.sampled_from(ALPHABETS).flatmap(lambda letters: st.text(letters, min_size=1, max_size=12))
JOINT = st.sampled_from(["-", ".", "/", "_", "'", "::", "--"])
NAME = st.builds(str.join, JOINT, st.lists(WORD, min_size=1, max_size=3))


def block(text: str) -> str:
    """Return the index of a message of this text, as PostgreSQL returns it."""
    return " ".join(f"'{lexeme}':1" for lexeme in lexemes(text))


def finds(text: str, said: str) -> bool:
    """Whether a query finds a message of this text."""
    return all(places_of(query_terms(text), block(said)).values())


def recalls(question: str, said: str) -> list[bool]:
    """Whether each word of a question is in a message of this text."""
    return [bool(found) for found in places_of(question_terms(question), block(said)).values()]


@settings(max_examples=40)
@given(WORD, st.lists(NAME, max_size=5), st.integers(min_value=MIN_PREFIX))
def test_every_word_is_found(word: str, names: list[str], size: int) -> None:
    """Words and names in any case, and a word by three of its characters, also inside a name."""
    text = " ".join([*names, f"xyz/{word}.abc"])
    assert all(finds(name, text) and finds(name.upper(), text) for name in (word, *names))
    assert finds(word[:size], text)


@given(st.text(alphabet=st.characters(), max_size=200))
@example("aA\U0001e130")
def test_any_text_is_indexed_asked_and_shown(text: str) -> None:
    """Lexemes and terms are short and have no characters but those of words. [errors.no-500]"""
    found, asked = lexemes(text), question_terms(text)
    assert len(set(found)) == len(found) <= MAX_LEXEMES and len(asked) <= MAX_WORDS
    for term in (*found, *(term.removesuffix("*") for term in asked)):
        assert 0 < len(term.encode()) <= MAX_LEXEME_BYTES
        assert not set(term) & set(" '\\%:&|!()*\x00\n\t")
    shown = excerpt(text * 9, dict.fromkeys(asked, 1.0))
    assert len(shown) <= EXCERPT_CHARS + 2 and "\n" not in shown


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("a" * 1_000_000, 40),
        ("aB" * 200_000, 40),
        ("\ud800\x00" * 100_000, 0),
        ("字" * 300_000, 2),
        (" ".join(map(str, range(100_000))), MAX_LEXEMES),
    ],
)
def test_large_texts_are_bounded(text: str, most: int) -> None:
    """Megabytes without a word, with one word, or with very many. [performance.no-stall]"""
    assert len(lexemes(text)) <= most


@pytest.mark.parametrize(
    ("query", "text", "other"),
    [
        ("compact", "after the compaction", "com pact"),
        ("search.py", "see app/domain/search.py:12", "search the pyramid"),
        ("username", "call getUserName", "use a name"),
        ("größe", "Die GRÖSSE stimmt", "groß"),
        ("индекс", "Индексы базы данных", "индек"),
        ("고양이", "고양이가 자고 있다", "양고이"),
        ("識管", "企業知識管理系統。", "管識"),
        ("ﾀﾜｰ", "東京タワー", "たわあ"),
        ("เอกสาร", "ค้นหาเอกสารทั้งหมด", "สารเอก"),
        ("كتاب", "قرأت كِتَابًا جديدا", "كتب"),
        ("हिन्दी", "यह हिन्दी है", "हिन्दु"),
        ("“quick fox” lazy", "The quick brown fox at the lazy_dog", "the quick fox"),
        ("py", "app.py", "a pyramid"),
    ],
)
def test_words_are_found_in_their_language(query: str, text: str, other: str) -> None:
    """Names by their parts, and words in the scripts of many languages, but no other words."""
    assert finds(query, text) and not finds(query, other)


def test_a_long_text_is_not_cut_inside_a_word() -> None:
    """Long texts are read in pieces, each of whole words."""
    for size in range(32_764, 32_770):
        assert finds("pelican", "x " * (size // 2) + "y" * (size % 2) + " pelican " + "z " * 40_000)


# --- what is searched -------------------------------------------------------------------------


def test_names_and_arguments_of_calls_are_searched() -> None:
    """The tool and the arguments of a call are searched, as strings and not as JSON."""
    arguments = json.dumps({"path": "a\nb", "text": 'caf\u00e9 "x"', "count": 5433})
    parts = (Text(r"I write C:\new"), ToolCall("c1", "write_file", arguments))
    text = text_of(Message(Role.ASSISTANT, parts))
    assert all(finds(word, text) for word in ("write_file", "café", "path", "b", "5433", "new"))
    assert not finds("nb", text)


def test_reasoning_and_recalled_messages_are_not_searched() -> None:
    """Thinking never comes back, and what recall said would only be found again.

    [search.not-reasoning]
    """
    assert text_of(Message(Role.ASSISTANT, (Reasoning("zebra"), Text("lion")))) == "lion"
    calls = (ToolCall("c1", "recall", '{"query": "zebra"}'), ToolCall("c2", "grep", '{"x": "cat"}'))
    assert text_of(Message(Role.ASSISTANT, calls)) == 'recall\ngrep\n{"x": "cat"}'
    result = Message(Role.TOOL, (Text("#4 user: zebra"),), "c1")
    assert text_of(result, "recall") == ""
    assert text_of(result, "grep") == "grep\n#4 user: zebra"


# --- recall -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said", "other"),
    [
        ("painting", "she paints", "a pain"),
        ("adoption", "they adopted", "adobe"),
        ("activities", "an activity", "an actor"),
        ("database", "the databases", "the data"),
        ("car", "two cars", "I do not care"),
        ("клавиатурой", "клавиатура", "клавиша"),
        ("Datenbanken", "eine Datenbankwahl", "Daten"),
        ("user_service", "the user's services", "it is used"),
        ("What did Ana's brother say about the port?", "Ana says: brothers, the port", "the Andes"),
    ],
)
def test_a_word_is_found_in_its_other_forms(asked: str, said: str, other: str) -> None:
    """Regular forms, and endings of other languages; function words are dropped."""
    assert all(recalls(asked, said)) and not any(recalls(asked, other))


def order(question: str, said: dict[int, str]) -> list[int]:
    """Return the seqs of a log of 1 000 messages in the order of the ranking."""
    indexed = {seq: block(text) for seq, text in said.items()}
    postings = {
        term: [seq for seq, words in indexed.items() if places_of([term], words)[term]]
        for term in question_terms(question)
    }
    _, scores = scores_of(postings, dict.fromkeys(said, 9), 1000, 1000)
    return ranked(question, scores, {seq: said[seq] for seq in scores if seq in said})


def test_an_answer_is_found_by_the_question_before_it() -> None:
    """A message has a share of its neighbours' words, so the pair ranks before a stray match."""
    said = {10: "What did you make at the pottery class?", 11: "A teal bowl for Ana."}
    said[500] = "The pottery is closed."
    assert order("What did she make at pottery class?", said)[:2] == [10, 11]
    assert order("What was made for Ana at pottery?", said)[0] == 11


@pytest.mark.parametrize(
    ("question", "better", "worse"),
    [
        ("Which port has staging?", "the staging port is known", "the staging port?"),
        ("When did she paint the lake?", "painted the lake yesterday", "painted the lake well"),
    ],
)
def test_a_fitting_answer_ranks_first(question: str, better: str, worse: str) -> None:
    """Of two messages with the same words one that tells, or has a time that is asked for."""
    assert order(question, {10: better, 500: worse})[0] == 10


@settings(max_examples=20)
@given(st.lists(st.sets(st.integers(1, 60), max_size=8), min_size=1, max_size=4))
def test_a_ranking_is_bounded_and_has_no_strangers(found: list[set[int]]) -> None:
    """Only messages near a match, each once."""
    postings = {str(number): sorted(seqs) for number, seqs in enumerate(found)}
    sizes = dict.fromkeys(set().union(*found), 9)
    shown = ranked("", scores_of(postings, sizes, 60, 60)[1], {})
    assert len(set(shown)) == len(shown) <= MAX_RANKED
    assert all(any(-3 <= seq - hit <= 4 for hit in sizes) and 0 < seq <= 60 for seq in shown)


def test_an_excerpt_shows_the_best_matches() -> None:
    """It is one line of about 300 characters around the terms with the highest weight."""
    text = "port " + "filler\nwords " * 100 + "the staging\nPORT is 5433, " + "and more " * 100
    shown = excerpt(text, dict.fromkeys(question_terms("staging port 5433"), 1.0))
    assert "the staging PORT is 5433" in shown
    assert shown.startswith("…") and shown.endswith("…") and len(shown) <= EXCERPT_CHARS + 2
    assert excerpt("short", {"stage": 1.0}) == "short"

"""Words and queries: the rules of the search, for any language.

[search.words]
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.conversations.search.query import Query, Word, query_from
from app.conversations.search.texts import text_of
from app.conversations.search.words import MAX_LEXEME_BYTES, MAX_LEXEMES, MIN_PREFIX, lexemes
from app.formats import PROVIDERS
from app.formats.message import FormatName, Message, Reasoning, Role, Text, ToolCall

ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz0123456789",
    "ABCDefghÄÖÜäöüßéèêñçåøł",
    "абвгдежзийклмнопрстуфхцчшщъыьэюяё",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "가나다라마바사아자차카타파하고양이",
    "知識管理東京天気",
    "ひらがなカタカナ",
    "กขคงจฉชซ",
)
WORD = st.sampled_from(ALPHABETS).flatmap(lambda letters: st.text(letters, min_size=1, max_size=12))
JOINT = st.sampled_from(["-", ".", "/", "_", "'", "::", "--"])
NAME = st.builds(str.join, JOINT, st.lists(WORD, min_size=1, max_size=3))


def finds(query: str | Query, *texts: str) -> bool:
    """Whether a query finds a message of these texts."""
    asked = query_from(query) if isinstance(query, str) else query
    known = lexemes(*texts)

    def has(words: Iterable[Word]) -> bool:
        return all(any(map(term.matches, known)) for word in words for term in word)

    excluded = ([(term,) for term in group] for group in asked.excluded)
    return has(asked.words) and not any(map(has, excluded)) and asked.matches_phrases(texts)


# --- words ------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(NAME, min_size=1, max_size=6), st.integers(min_value=0))
def test_every_word_is_found(names: list[str], place: int) -> None:
    """Each word and name of a text is found alone, in any case."""
    text = " ".join(names)
    name = names[place % len(names)]
    assert finds(name, text)
    assert finds(name.upper(), text)


@settings(max_examples=30)
@given(WORD, st.lists(NAME, max_size=4), st.integers(min_value=MIN_PREFIX))
def test_every_word_is_found_by_its_beginning(word: str, others: list[str], size: int) -> None:
    """Three characters of a word are enough, also inside a name."""
    assert finds(word[:size], " ".join([*others, word]))
    assert finds(word[:size], f"xyz/{word}.abc")


@settings(max_examples=30)
@given(st.lists(NAME, min_size=1, max_size=4), st.lists(NAME, min_size=1, max_size=2))
def test_a_message_without_a_word_of_the_query_is_not_found(
    said: list[str], asked: list[str]
) -> None:
    """A message that has no word of the query is not found by it."""
    text, query = " ".join(said), " ".join(asked)
    known = lexemes(text)
    terms = query_from(query).words
    if not any(term.matches(lexeme) for (term,) in terms for lexeme in known):
        assert not finds(query, text)
    if finds(query, text):
        assert all(finds(one, text) for one in asked)


@given(st.text(alphabet=st.characters(), max_size=200))
@example("aA\U0001e130")
def test_lexemes_of_any_text_can_be_stored(text: str) -> None:
    """Lexemes of any text are short, different, and have no other characters than words."""
    found = lexemes(text)
    assert len(set(found)) == len(found) <= MAX_LEXEMES
    for lexeme in found:
        assert 0 < len(lexeme.encode()) <= MAX_LEXEME_BYTES
        assert not set(lexeme) & set(" '\\%:&|!()*\x00\n\t")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (" " * 3_000_000, 0),
        ("a" * 1_000_000, 40),
        ("aB" * 200_000, 40),
        ("\ud800\x00" * 100_000, 0),
        ("字" * 300_000, 2),
        (" ".join(map(str, range(100_000))), MAX_LEXEMES),
        ("a." * 200_000, 40_000),
    ],
)
def test_large_texts_are_bounded(text: str, most: int) -> None:
    """Megabytes without a word, with one word, or with very many are bounded.

    [performance.no-stall]
    """
    found = lexemes(text)
    assert len(found) <= min(most, MAX_LEXEMES)
    assert sum(len(lexeme.encode()) + 8 for lexeme in found) < 2**20


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("compact", "after the compaction"),
        ("app/domain/search.py", "see app/domain/search.py:12"),
        ("search.py", "see app/domain/search.py"),
        ("app.domain.search", "see app/domain/search.py"),
        ("py", "see app/domain/search.py"),
        ("snake_case", "a snake_case name"),
        ("camelCase", "a camelCase name"),
        ("case", "a camelCase name"),
        ("Server", "HTTPServerError"),
        ("don't", "I don\u2019t know"),
        ("größe", "Die GRÖSSE stimmt"),
        ("Straße", "STRASSE 5"),
        ("été", "pendant l'e\u0301te\u0301"),
        ("индекс", "Индексы базы данных"),
        ("ёлка", "елка и йод"),
        ("고양이", "고양이가 자고 있다"),
        ("知識", "企業知識管理系統"),
        ("統", "企業知識管理系統"),
        ("管理系統", "企業知識管理系統。"),
        ("東京タワー", "明日東京タワーに行く"),
        ("ﾀﾜｰ", "東京タワー"),
        ("เอกสาร", "ค้นหาเอกสารทั้งหมด"),
        ("كتاب", "قرأت كِتَابًا جديدا"),
        ("हिन्दी", "यह हिन्दी है"),
        ("\uff21\uff22\uff23", "abc def"),
        ("donaudampf", "Donau\u00addampf\u00adschiff"),
    ],
)
def test_words_are_found_in_their_language(query: str, text: str) -> None:
    """Names are found by their parts, and words in the scripts of many languages."""
    assert finds(query, text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("compaction", "compact it"),
        ("action", "after the compaction"),
        ("py", "a pyramid"),
        ("識知", "企業知識管理"),
        ("かた", "がだ"),
        ("snake_case", "snake case"),
        ("search.py/domain", "app/domain/search.py"),
    ],
)
def test_other_words_are_not_found(query: str, text: str) -> None:
    """The inside of a word, a short prefix, and parts in another order do not match."""
    assert not finds(query, text)


def test_a_long_text_is_not_cut_inside_a_word() -> None:
    """Long texts are read in pieces, each of whole words."""
    for size in range(32_764, 32_770):
        assert finds("pelican", "x " * (size // 2) + "y" * (size % 2) + " pelican " + "z " * 40_000)


# --- what is searched -------------------------------------------------------------------------


def texts_of(format: FormatName, raw: dict[str, Any]) -> str:
    """Return the searched texts of a message of a request."""
    return "\n".join(text_of(PROVIDERS[format].parse(raw, "")[0]))


def test_names_and_arguments_of_calls_are_searched() -> None:
    """The tool and the arguments of a call are searched, as strings and not as JSON."""
    arguments = json.dumps({"path": "a\nb", "text": 'caf\u00e9 "x"', "count": 5433})
    function = {"name": "write_file", "arguments": arguments}
    calls = [{"id": "c1", "type": "function", "function": function}]
    raw = {"role": "assistant", "content": "I write.", "tool_calls": calls}
    text = texts_of(FormatName.OPENAI_CHAT, raw)
    for word in ("write_file", "café", "path", "b", "5433", "I"):
        assert finds(word, text)
    assert not finds("nb", text)


def test_results_are_searched_as_stored() -> None:
    """A result is searched by its text, JSON by its strings, also where it is cut."""
    text = '{"lines": ["one\\ntwo", "\\u77e5\\u8b58", "\\ud83d\\ude00"], "cut": "un'
    for content in (text, [{"type": "text", "text": text}]):
        raw = {"role": "tool", "tool_call_id": "c1", "content": content}
        found = texts_of(FormatName.OPENAI_CHAT, raw)
        assert finds("two", found) and finds("知識", found) and finds("lines", found)
        assert not finds("ntwo", found)
    windows = texts_of(FormatName.OPENAI_CHAT, {"role": "user", "content": r"C:\new"})
    assert finds("new", windows)


def test_reasoning_and_recalled_messages_are_not_searched() -> None:
    """Thinking never comes back, and what recall said would only be found again.

    [search.not-reasoning]
    """
    thinking = Message(Role.ASSISTANT, (Reasoning("zebra"), Text("lion")))
    assert text_of(thinking) == ("lion",)
    calls = (ToolCall("c1", "recall", '{"query": "zebra"}'), ToolCall("c2", "grep", '{"x": "cat"}'))
    assert text_of(Message(Role.ASSISTANT, calls)) == ("recall", "grep", '{"x": "cat"}')
    result = Message(Role.TOOL, (Text("#4 user: zebra"),), "c1")
    assert text_of(result, "recall") == ()
    assert text_of(result, "grep") == ("grep", "#4 user: zebra")


# --- queries ----------------------------------------------------------------------------------


def test_a_query_has_required_and_excluded_words_and_phrases() -> None:
    """All words are required, `-` excludes, and quoted words are a phrase."""
    text = "The quick brown fox jumps over the lazy_dog in app/main.py"
    for query in (
        "fox quick",
        '"quick brown"',
        '"brown fox" lazy',
        "fox -cat",
        "--fox",
        '"main py"',
    ):
        assert finds(query, text), query
    for query in (
        "fox cat",
        '"brown quick"',
        "fox -dog",
        '"quick bro"',
        'fox -"the lazy"',
        "-laz fox",
    ):
        assert not finds(query, text), query
    assert finds('fox -"lazy fox"', text)
    assert finds("“quick brown”", text)
    assert finds('fox "quick', text)
    assert finds('"識管"', "知識管理") and not finds('"知管"', "知識管理")


@settings(max_examples=30)
@given(NAME, NAME, st.lists(NAME, max_size=3))
def test_an_exclusion_removes_exactly_the_matches_of_its_word(
    wanted: str, unwanted: str, others: list[str]
) -> None:
    """`a -b` finds exactly what `a` finds and `b` does not. [search.finds-compacted]"""
    text = " ".join([wanted, *others])
    assert finds(f"{wanted} -{unwanted}", text) is not finds(unwanted, text)


@pytest.mark.parametrize(
    "query",
    [
        *("", "  ", "!?", "-word", '-"two words"', '""', "😀", "\x00", "\ud800", "x" * 1001),
        " ".join(f"w{number}" for number in range(65)),
    ],
)
def test_a_query_without_words_or_with_too_many_is_refused(query: str) -> None:
    """The error has the pointer of the query."""
    with pytest.raises(ValidationError) as refused:
        query_from(query)
    assert [problem.pointer for problem in refused.value.problems] == ["/query/q"]


@given(st.text(max_size=100))
def test_any_query_is_parsed_or_refused(text: str) -> None:
    """No characters make a query fail otherwise [search.words, errors.no-500]."""
    try:
        query = query_from(text)
    except ValidationError:
        return
    assert query.words
    for term in (term for group in (*query.words, *query.excluded) for term in group):
        assert 0 < len(term.lexeme.encode()) <= MAX_LEXEME_BYTES
        assert not set(term.lexeme) & set(" '\\%:&|!()*\x00")

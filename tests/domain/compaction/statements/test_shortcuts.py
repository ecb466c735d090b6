"""What is found out by a cheap test before a pattern is what the pattern would find."""

# ruff: noqa: RUF001 - characters of several scripts are meant

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.compaction.summaries.statements.entry_index import key_of
from app.domain.compaction.summaries.statements.outlines import SIGNS, pattern_of, values_in
from app.domain.compaction.summaries.statements.segments import letters_in
from app.domain.compaction.summaries.statements.subjects import (
    STRONG,
    may_have_value,
    strong_verbs,
    subject_of,
)
from app.domain.compaction.summaries.statements.words import WORD, read_sentence

PIECES = [
    *(
        "The port is",
        "now 8080",
        "host1.example.com",
        "a@b.example",
        "/var/log/x.txt",
        "x.py",
        "/etc/hosts",
    ),
    *("3.1.4", "v2.0.1", "12:30", "5 pm", "2024-03-05", "1.2.2024", "$5", "7 %", "ABC-12", "#x"),
    *("Ada Lovelace", "ist", "beträgt", "É", "it's", "that’s", "is-a", "_is", "a=b", '"was"'),
    *(
        "«es»",
        "порт это",
        "ポートは8080です",
        "端口是",
        "포트는 8",
        "twelve",
        "²",
        "ß",
        "été",
        "{}",
        "|",
    ),
    *(".", "!", "?", ",", ":", ";", "", "\t", "…"),
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=9).flatmap(
    lambda parts: st.sampled_from([" ", "", "-"]).map(lambda between: between.join(parts))
)
MANY = settings(max_examples=300)


@given(TEXTS)
@MANY
def test_values_of_shapes_without_their_signs_are_not_looked_for(text: str) -> None:
    """A pattern of fewer shapes finds the values that the pattern of all shapes does."""
    every = pattern_of(frozenset().union(*SIGNS.values()))
    found = [(match.lastgroup, match.span()) for match in values_in(text)]
    assert found == [(match.lastgroup, match.span()) for match in every.finditer(text)]


@given(TEXTS)
@MANY
def test_verbs_are_found_by_their_words(text: str) -> None:
    """Words are looked up where only words are found by the pattern."""
    places = [match.start() for match in STRONG.finditer(text)]
    assert [*strong_verbs(read_sentence(text), 0)] == places


@given(TEXTS)
@MANY
def test_what_may_have_no_value_has_none(text: str) -> None:
    """The subject has no exact value where the cheap test says so."""
    sentence = read_sentence(text)
    assert may_have_value(sentence) or not subject_of(sentence).exact


@given(TEXTS)
@MANY
def test_letters_count_the_same_in_any_text(text: str) -> None:
    """Those of ASCII are counted otherwise than those of other texts."""
    assert letters_in(text) == sum(map(str.isalpha, text))


@given(TEXTS)
@MANY
def test_a_key_has_the_words_in_lower_case(text: str) -> None:
    """Each word is in lower case as it would be alone."""
    words = [match[0].lower() for match in WORD.finditer(text)]
    assert key_of(text) == ("\0".join(words) or text.strip())

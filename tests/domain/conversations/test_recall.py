"""Questions, their ranking and excerpts: what `recall` finds and shows.

[search.recall]
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversations.search.query import MAX_WORDS, Word, forms, question_from
from app.conversations.search.ranking import MAX_RANKED, Postings, Ranking
from app.conversations.search.texts import EXCERPT_CHARS, excerpt
from app.conversations.search.times import time_in
from app.conversations.search.words import MAX_LEXEME_BYTES, Term, lexemes

NOW = datetime(2026, 3, 14, 15, 9, tzinfo=UTC)  # a Saturday


def weights(question: str) -> list[tuple[Term, float]]:
    """Return all terms of a question, each with the same weight."""
    return [(term, 1.0) for word in question_from(question).words for term in word]


def finds(word: Word, text: str) -> bool:
    """Whether a message of this text has a word of a question."""
    return any(term.matches(lexeme) for term in word for lexeme in lexemes(text))


def order(question: str, said: Mapping[int, str]) -> list[int]:
    """Return the seqs of a log in the order of the ranking, by the texts of some messages."""
    asked = question_from(question)
    newest = sorted(said, reverse=True)
    postings = [
        Postings({seq: 100 for seq in newest if finds(word, said[seq])}) for word in asked.words
    ]
    ranking = Ranking(asked, postings, 1000)
    return ranking.shown({seq: text for seq, text in said.items() if seq in ranking.scores})


# --- questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("painting", "she paints"),
        ("adoption", "they adopted"),
        ("runs", "we were running"),
        ("dance", "they danced"),
        ("dancing", "a dance"),
        ("activities", "an activity"),
        ("dogs", "the dog's bowl"),
        ("car", "two cars"),
        ("buy", "I bought it"),
        ("children", "a child"),
        ("database", "the databases"),
        ("клавиатурой", "клавиатура"),
        ("Datenbanken", "eine Datenbankwahl"),
        ("gpt-4o", "the model gpt-4o-mini"),
    ],
)
def test_a_word_is_found_in_its_other_forms(asked: str, said: str) -> None:
    """Regular and irregular forms, and endings of other languages."""
    assert any(finds(word, said) for word in question_from(asked).words)


@pytest.mark.parametrize(("asked", "said"), [("car", "I do not care"), ("art", "the article")])
def test_a_short_word_is_not_a_beginning(asked: str, said: str) -> None:
    """A short stem finds its forms only."""
    (word,) = question_from(asked).words
    assert not finds(word, said)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("What did Ana's brother say about the port?", ["ana", "brother", "said", "port"]),
        ("who are you", ["who", "are", "you"]),
        ("知識管理", ["知識", "識管", "管理"]),
        ("?!", []),
    ],
)
def test_function_words_are_dropped(question: str, words: list[str]) -> None:
    """Those of English, unless the question has no others."""
    asked = question_from(question).words
    assert len(asked) == len(words)
    assert all(finds(word, said) for word, said in zip(asked, words, strict=True))


def test_a_joined_word_is_also_one_word() -> None:
    """It is searched by its parts and as a whole."""
    asked = question_from("user_service").words
    assert [finds(word, "user_service.py") for word in asked] == [True] * 3
    assert [finds(word, "a service") for word in asked] == [False, True, False]


@settings(max_examples=25)
@given(st.text(max_size=300))
def test_any_question_has_bounded_words(text: str) -> None:
    """Their number, their terms and the time they take are bounded. [errors.no-500]"""
    asked = question_from(text)
    assert len(asked.words) <= MAX_WORDS
    for word in asked.words:
        assert 0 < len(word) <= 24
        for term in word:
            assert 0 < len(term.lexeme.encode()) <= MAX_LEXEME_BYTES
            assert not set(term.lexeme) & set(" '\\%:&|!()*\x00")
    if asked.time is not None and (span := asked.time.span(NOW)) is not None:
        assert span[0] < span[1]


@settings(max_examples=25)
@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=20))
def test_a_word_finds_itself(word: str) -> None:
    """Whatever ending it seems to have."""
    assert any(term.matches(word) for term in forms(word))


# --- times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("on 8 may 2023", "2023-05-08", "2023-05-20"),
        ("on may 8th, 2023", "2023-05-08", "2023-04-20"),
        ("on the 8th of may", "2025-05-08", "2024-05-08"),
        ("2023-05-08", "2023-05-08", "2023-05-20"),
        ("in july 2023", "2023-07-31", "2023-08-20"),
        ("last may", "2025-05-20", "2026-03-01"),
        ("in december", "2025-12-31", "2025-11-01"),
        ("in 2023", "2023-12-31", "2022-06-01"),
        ("yesterday", "2026-03-13", "2026-03-14"),
        ("two weeks ago", "2026-02-28", "2026-03-13"),
        ("3 days ago", "2026-03-11", "2026-03-13"),
        ("last week", "2026-03-07", "2026-02-20"),
        ("last year", "2025-06-01", "2023-06-01"),
    ],
)
def test_times_are_relative_to_the_newest_message(text: str, inside: str, outside: str) -> None:
    """Dates with and without a year, months, years and distances. [search.recall-times]"""
    found = time_in(text)
    assert found is not None
    span = found.span(NOW)
    assert span is not None
    for day, is_inside in ((inside, True), (outside, False)):
        said = datetime.fromisoformat(f"{day}T12:00:00+00:00")
        assert (span[0] <= said < span[1]) is is_inside


@pytest.mark.parametrize(
    "text",
    ["may I march", "version 2023.1", "port 5433", "31 february x ago", "8000 people", "2023-99"],
)
def test_other_words_and_numbers_are_no_times(text: str) -> None:
    """Words that are also months need a preposition or number; impossible dates have no span."""
    found = time_in(text)
    assert found is None or found.span(NOW) is None


# --- ranking ----------------------------------------------------------------------------------


def test_an_answer_is_found_by_the_question_before_it() -> None:
    """A message has a share of its neighbours' words, so the pair ranks before a stray match."""
    said = {
        10: "What did you make at the pottery class?",
        11: "A teal bowl for Ana.",
        500: "The pottery is closed.",
    }
    assert order("What did she make at pottery class?", said)[:2] == [10, 11]
    assert order("What was made for Ana at pottery?", said)[0] == 11


def test_a_fitting_answer_ranks_first() -> None:
    """Of two messages with the same words: one that tells, has a time, number or phrase."""
    for question, better, worse in (
        ("Which port has staging?", "the staging port is known", "the staging port?"),
        ("When did she paint the lake?", "painted the lake yesterday", "painted the lake well"),
        ("How many pelicans?", "12 pelicans", "pelicans everywhere"),
        ('about "blue whale"', "a blue whale", "blue sky, a whale"),
    ):
        assert order(question, {10: better, 500: worse})[0] == 10, question


def test_a_time_raises_its_messages() -> None:
    """The span's end is exclusive. [search.recall-times]"""
    asked = question_from("port")
    ranking = Ranking(asked, [Postings(dict.fromkeys((90, 50, 10), 9))], 100)
    ranking.raise_span(40, 51, 2.0)
    assert ranking.best(1) == [50]


def test_a_common_word_counts_in_its_own_messages_only() -> None:
    """Its postings are cut, so older messages get it by what is looked up for them."""
    asked = question_from("server port")
    common = Postings(dict.fromkeys(range(900, 700, -1), 9), since=701)
    ranking = Ranking(asked, [common, Postings({500: 9, 100: 9})], 1000)
    assert 701 in ranking.scores and 699 not in ranking.scores
    ranking.add_words({100: [0], 900: [0]})
    assert ranking.best(1) == [100]
    more = common.joined(Postings({800: 9, 100: 9}))
    assert [*more.sizes][-1] == 100 and len(more.sizes) == 201
    assert more.estimate(1000) == common.estimate(1000) == 200 * 1000 / 300


@settings(max_examples=20)
@given(
    st.lists(
        st.lists(st.integers(1, 60), max_size=8, unique=True).map(sorted), min_size=1, max_size=4
    ),
    st.integers(60, 200),
)
def test_a_ranking_is_bounded_and_has_no_strangers(found: list[list[int]], head_seq: int) -> None:
    """Only messages near a match, each once, by a score that never rises."""
    asked = question_from("alpha bravo charlie delta")
    postings = [Postings(dict.fromkeys(seqs[::-1], 9)) for seqs in found]
    ranking = Ranking(asked, postings, head_seq)
    shown = ranking.shown({})
    assert len(set(shown)) == len(shown) <= MAX_RANKED
    assert all(any(-3 <= seq - hit <= 4 for seqs in found for hit in seqs) for seq in shown)
    scores = [ranking.scores[seq] for seq in shown]
    assert all(now <= before + 1e-6 for before, now in pairwise(scores))


def test_the_largest_question_is_ranked_at_once() -> None:
    """As many words and postings as there may be. [performance.no-stall]"""
    text = " ".join(f"word{number}" for number in range(99))
    asked = question_from(text)
    assert len(asked.words) == MAX_WORDS
    postings = [
        Postings(dict.fromkeys(range(100_000 - number, 0, -500), 100))
        for number in range(MAX_WORDS)
    ]
    begun = process_time()
    assert len(Ranking(asked, postings, 100_000).best()) == MAX_RANKED
    assert process_time() - begun < 2


# --- excerpts ---------------------------------------------------------------------------------


def test_an_excerpt_shows_the_best_matches() -> None:
    """It is one line of about 300 characters around the terms with the highest weight."""
    text = "port " + "filler\nwords " * 100 + "the staging\nPORT is 5433, " + "and more " * 100
    shown = excerpt(text, weights("staging port 5433"))
    assert "the staging PORT is 5433" in shown
    assert shown.startswith("…") and shown.endswith("…")
    assert len(shown) <= EXCERPT_CHARS + 2
    assert excerpt("short", weights("staging")) == "short"


@given(st.text(max_size=1000), st.text(max_size=50))
def test_an_excerpt_of_any_text_is_one_short_line(text: str, question: str) -> None:
    """Any text has its excerpt, on one line."""
    shown = excerpt(text, weights(question))
    assert len(shown) <= EXCERPT_CHARS + 2
    assert "\n" not in shown

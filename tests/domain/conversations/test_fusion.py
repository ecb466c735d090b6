"""The fusion of two rankings. [search.recall-by-meaning]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.domain.conversations.search.fusion import ByWords, fused
from app.domain.models.embeddings import unit_vector

SEQS = st.lists(st.integers(1, 60), unique=True, max_size=40)
SHARES = st.floats(0, 1)


@given(SEQS, SEQS, SHARES, SHARES, st.integers(1, 40))
def test_a_fusion_has_messages_of_both_once(
    words: list[int], meaning: list[int], coverage: float, trust: float, limit: int
) -> None:
    """The best messages of both rankings, none twice, and no other one."""
    found = fused(ByWords(words, coverage), meaning, trust, limit)
    assert len(found) == len(set(found)) == min(limit, len({*words, *meaning}))
    assert set(found) <= {*words, *meaning}


@given(SEQS, SHARES, SHARES)
def test_one_ranking_alone_keeps_its_order(seqs: list[int], coverage: float, trust: float) -> None:
    """A ranking beside an empty one is the result."""
    assert fused(ByWords(seqs, coverage), [], trust, 40) == seqs
    assert fused(ByWords([], coverage), seqs, trust, 40) == seqs


@given(SEQS, SEQS, SHARES)
def test_the_coverage_decides(words: list[int], meaning: list[int], trust: float) -> None:
    """With all words of the question the words decide, with none of them meaning does."""
    assert fused(ByWords(words, 1.0), meaning, 0.0, 60)[: len(words)] == words
    assert fused(ByWords(words, 0.0), meaning, trust, 60)[: len(meaning)] == meaning


@given(SEQS.filter(len), SHARES)
def test_what_both_rank_first_is_first(seqs: list[int], coverage: float) -> None:
    """A message that leads both rankings leads the fused one, whatever their weights."""
    assert fused(ByWords(seqs, coverage), [seqs[0], 61, 62], 0.5, 40)[0] == seqs[0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_unit_vectors_have_the_length_one(values: list[float]) -> None:
    """Or there is none: a vector without a direction, or with an infinite length."""
    vector = unit_vector(values)
    if vector is None:
        assert sum(value * value for value in values) == 0
    else:
        assert abs(sum(value * value for value in vector) - 1) < 1e-6


def test_what_has_no_direction() -> None:
    """Neither zeros nor values that are not finite."""
    assert unit_vector([0.0, 0.0]) is None
    assert unit_vector([float("nan"), 1.0]) is None
    assert unit_vector([float("inf"), 1.0]) is None

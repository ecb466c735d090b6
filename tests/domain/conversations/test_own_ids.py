"""Public ids of conversations and their keys. [log.client-ids]"""

from __future__ import annotations

import re
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from app.common.ids import MAX_CHARS, PATTERN, keys_of, public_id_from

TENANTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8)
TEXTS = st.text(max_size=MAX_CHARS + 2) | st.text("ab ./%?#\\é漢🙂", max_size=6)
OWN_IDS = TEXTS.filter(lambda text: public_id_from(text) is not None)
UUIDS = st.uuids(version=4).map(str) | st.uuids().map(str)
PAIRS = st.tuples(TENANTS, OWN_IDS | UUIDS)


@given(PAIRS, PAIRS)
@example(("a", "bc"), ("ab", "c"))
@example(("a ", "b"), ("a", " b"))
@example(("a", "A"), ("a", "a"))
def test_two_conversations_never_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Derived keys of two pairs differ; of all keys only a UUID itself may be common to tenants."""
    shared = set(keys_of(*one)) & set(keys_of(*other))
    if one == other:
        assert keys_of(*one) == keys_of(*other)
    elif one[1] == other[1]:
        assert shared <= {one[1]}
    else:
        assert not shared


@given(TENANTS, UUIDS, PAIRS)
def test_no_caller_can_choose_a_derived_key(
    tenant: str, chosen: str, pair: tuple[str, str]
) -> None:
    """Derived keys have version 8, and a caller's UUID of that version is not the first key."""
    (derived,) = {*keys_of(*pair)} - {pair[1]}
    assert UUID(derived).version == 8
    assert keys_of(tenant, derived)[0] != derived
    first = keys_of(tenant, chosen)[0]
    assert first != chosen or chosen[14] != "8"


@given(TEXTS)
def test_the_published_pattern_is_the_rule(text: str) -> None:
    """A text is an id if JSON Schema says so, and an own string is kept as it is."""
    # In JSON Schema the end is the end, in Python also a place before a last line break.
    pattern = PATTERN.removesuffix("$") + r"\Z"
    is_valid = len(text) <= MAX_CHARS and re.search(pattern, text) is not None
    assert (public_id_from(text) is not None) == is_valid
    if is_valid and len(text) != 36:
        assert public_id_from(text) == text


def test_the_key_of_an_own_id_never_changes() -> None:
    """Keys are stored: another release has to derive the same ones."""
    # The first half of `printf 'default\\0customer-42:ticket-7' | sha256sum`, as a UUID.
    expected = ("4379a0fe-3793-8f67-8ec0-4d3b123f93da",)
    assert keys_of("default", "customer-42:ticket-7") == expected

"""Sections: order, settings levels and where a cacheable prefix may end.

[sections.order, breakpoints.listed]
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.prompt.sections import PromptSection, SectionKind, merge_sections, prefix_end_indices
from tests.domain.prompt.generated import KINDS, sections

STATIC = (SectionKind.BASE, SectionKind.RULES, SectionKind.MEMORIES, SectionKind.DOCS)


LAYERS = st.lists(st.lists(sections(), max_size=5), max_size=3)


@given(LAYERS)
def test_later_levels_replace_sections_by_name(settings_levels: list[list[PromptSection]]) -> None:
    """Of each name the last level's section is used, unless it is empty. [policy.merge-by-name]"""
    last = {
        section.name: section for settings_level in settings_levels for section in settings_level
    }
    merged = merge_sections(settings_levels)
    assert {s.name: s for s in merged} == {n: s for n, s in last.items() if s.content.strip()}
    assert len({section.name for section in merged}) == len(merged)


@given(LAYERS)
def test_order_is_static_to_dynamic(settings_levels: list[list[PromptSection]]) -> None:
    """Kinds stand in their order, inside a kind `order` decides."""
    merged = merge_sections(settings_levels)
    places = [(KINDS.index(section.kind), section.order) for section in merged]
    assert places == sorted(places)


@given(LAYERS)
def test_prefixes_end_after_static_cacheable_kinds(
    settings_levels: list[list[PromptSection]],
) -> None:
    """A prefix ends with the last section of a static kind, before anything uncacheable.

    [breakpoints.provider-form]
    """
    merged = merge_sections(settings_levels)
    found = prefix_end_indices(merged)
    assert found == sorted(set(found))
    for index in found:
        assert merged[index].kind in STATIC
        assert all(section.cacheable for section in merged[: index + 1])
        assert index + 1 == len(merged) or merged[index + 1].kind is not merged[index].kind

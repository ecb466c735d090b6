"""Generated prompt sections."""

from __future__ import annotations

from hypothesis import strategies as st

from app.prompt.sections import PromptSection, SectionKind

KINDS = list(SectionKind)


def sections() -> st.SearchStrategy[PromptSection]:
    """Sections with few names, so that settings levels override each other."""
    return st.builds(
        PromptSection,
        name=st.sampled_from("abcdef"),
        content=st.sampled_from(["x", "some text", "", "  "]),
        kind=st.sampled_from(KINDS),
        cacheable=st.booleans(),
        order=st.integers(-2, 3),
    )

"""Messages of a role and a text have a shorter way into the log, with the same result."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.conversations.messages.draft import DEFAULT_RULES, Draft, drafts_of_any, make_drafts
from app.formats.message import FormatName

texts = st.text(
    st.one_of(st.characters(), st.sampled_from(' \n\u2028\x00\ud800"\\é中')), max_size=8
)
values = st.one_of(texts, st.none(), st.integers(), st.dictionaries(texts, texts, max_size=2))
plain = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": texts}
)
messages = st.one_of(
    plain,
    plain.map(lambda message: dict(reversed(message.items()))),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("role", "content", "name", "id"), values)),
    values,
)


def count(text: str) -> int:
    """Count so that another text has another count."""
    return sum(map(ord, text)) % 9_973 + len(text)


def outcome(make: Any, *arguments: Any) -> list[Draft] | str:
    """Return the drafts, or the error."""
    try:
        return list(make(*arguments))
    except ValidationError as error:
        return f"{error.detail} {error.problems}"


@given(messages, st.sampled_from(FormatName))
@example({"role": "user", "content": " \n"}, FormatName.OPENAI_CHAT)
@example({"role": ["user"], "content": "a"}, FormatName.OPENAI_CHAT)
def test_the_short_way_makes_the_same_drafts(message: Any, format: FormatName) -> None:
    """Every field of each draft is equal, and so is every error."""
    arguments: tuple[Any, ...] = (message, format, count, "/messages/3", DEFAULT_RULES)
    assert outcome(make_drafts, *arguments) == outcome(drafts_of_any, *arguments)

"""The status of an agent's other conversations: what it says, and what it must not.

[agents.status-preamble]
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from app.domain.conversations.status import MAX_LISTED, Activity, status_text

NOON = datetime(2026, 1, 5, 12, 0, 30, tzinfo=UTC)


def test_a_status_names_the_others() -> None:
    """Each by its title or id, with what it says of itself and what it waits for."""
    told = status_text(
        [
            Activity("one", "{}", NOON, ("shell", "shell", "search")),
            Activity("me", "{}", NOON),
            Activity("two", '{"title": " Fix\\nlogin ", "status": "running tests"}', NOON),
            Activity("three", '{"title": 7, "status": " "}', NOON),
        ],
        "me",
    )
    assert told == (
        "Other conversations of this agent:\n"
        "- one: last message 2026-01-05 12:00 UTC; waiting for shell, search\n"
        "- Fix login: running tests; last message 2026-01-05 12:00 UTC\n"
        "- three: last message 2026-01-05 12:00 UTC"
    )


def test_nothing_is_said_without_others() -> None:
    """A conversation is not told of itself."""
    assert status_text([], "me") is None
    assert status_text([Activity("me", "{}", NOON)], "me") is None


@given(
    metadata=st.lists(
        st.dictionaries(st.sampled_from(["title", "status", "other"]), st.text()), max_size=20
    )
)
def test_a_status_is_bounded(metadata: list[dict[str, str]]) -> None:
    """Whatever the metadata says, each conversation takes one short line [openai-chat.sizes]."""
    activities = [
        Activity(f"{number}", json.dumps(item), NOON) for number, item in enumerate(metadata)
    ]
    lines = (status_text(activities, "me") or "").splitlines()
    assert len(lines) == (1 + min(len(metadata), MAX_LISTED) if metadata else 0)
    assert all(len(line) < 500 for line in lines)

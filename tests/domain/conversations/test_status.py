"""The status of an agent's other conversations: what it says, and what it must not.

[agents.status-preamble]
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from app.conversations.statuses import MAX_LISTED, Activity, status_text

NOON = datetime(2026, 1, 5, 12, 0, 30, tzinfo=UTC)


def test_a_status_lists_the_other_conversations() -> None:
    """Each has its title or id, its own status, and the tools that it waits for."""
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


@given(
    metadata=st.lists(
        st.dictionaries(st.sampled_from(["title", "status", "other"]), st.text()), max_size=20
    )
)
def test_a_status_is_bounded(metadata: list[dict[str, str]]) -> None:
    """Each conversation has one short line, for any metadata [openai-chat.sizes]."""
    activities = [
        Activity(f"{number}", json.dumps(item), NOON) for number, item in enumerate(metadata)
    ]
    lines = (status_text(activities, "me") or "").splitlines()
    assert len(lines) == (1 + min(len(metadata), MAX_LISTED) if metadata else 0)
    assert all(len(line) < 500 for line in lines)

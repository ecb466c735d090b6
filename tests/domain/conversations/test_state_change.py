"""State changes by appends, computed from a state in memory [log.known-state]."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.common.ids import ConversationId
from app.domain.common.messages import FormatName
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.log.batch import batch_shape
from app.domain.conversations.log.draft import Draft, make_drafts
from app.domain.conversations.log.state_change import (
    LogTotals,
    StateChange,
    state_after,
    state_change,
)
from app.domain.conversations.settings import StoredSettings

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STATE = ConversationState(
    head_seq=4,
    turns=1,
    tokens=40,
    open_calls=("c1", "c2"),
    oldest_at=NOW - timedelta(hours=1),
    hidden_tokens=7,
    summary_tokens=3,
    hidden_messages=2,
    resume_at_tokens=9,
    version=11,
)
USER = {"role": "user", "content": "hello"}
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "new", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    ],
}


def answer(call_id: str) -> dict[str, Any]:
    """Return a tool result."""
    return {"role": "tool", "tool_call_id": call_id, "content": "short"}


def drafts(*messages: dict[str, Any]) -> list[Draft]:
    """Return the drafts of messages in the Chat format."""
    return [
        draft
        for message in messages
        for draft in make_drafts(message, FormatName.OPENAI_CHAT, len, "")
    ]


def known(**changes: Any) -> Conversation:
    """Return a conversation with this state, changed so."""
    own = StoredSettings()
    return Conversation(
        conversation_id=ConversationId("id"),
        agent_id=None,
        counter="tokenizer",
        settings=own,
        agent=own,
        metadata="{}",
        created_at=NOW,
        updated_at=NOW,
        state=replace(STATE, **changes),
        settings_version=5,
    )


def change(
    conversation: Conversation,
    *messages: dict[str, Any],
    due_tokens: int | None = None,
    due_messages: int | None = None,
) -> StateChange | None:
    """Return the change of a state by these messages."""
    batch = drafts(*messages)
    return state_change(
        conversation,
        batch,
        batch_shape(batch),
        NOW,
        due_tokens=due_tokens,
        due_messages=due_messages,
    )


@pytest.mark.parametrize(
    ("messages", "open_before", "open_calls", "settings_version"),
    [
        ([USER], None, (), None),
        ([CALLING], None, ("new",), None),
        ([answer("c1")], ("c1", "c2"), ("c2",), 5),
        ([answer("c2"), answer("c1")], ("c1", "c2"), (), 5),
        ([answer("c1"), USER], ("c1", "c2"), (), 5),
        ([CALLING, answer("new")], None, (), 5),
    ],
)
def test_open_calls(
    messages: list[dict[str, Any]],
    open_before: tuple[str, ...] | None,
    open_calls: tuple[str, ...],
    settings_version: int | None,
) -> None:
    """Results need the calls that are known, and the settings; other messages need neither."""
    found = change(known(), *messages)
    assert found is not None
    assert (found.open_before, found.open_calls) == (open_before, open_calls)
    assert (found.state_version, found.settings_version) == (11, settings_version)


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        (known(oldest_at=None), USER),
        (known(oldest_at=NOW + timedelta(seconds=1)), USER),
        (known(), USER | {"timestamp": "2026-01-01T00:00:00Z"}),
        (known(), answer("unknown")),
        (replace(known(), expires_at=NOW), USER),
    ],
)
def test_what_a_state_in_memory_is_not_enough_for(
    conversation: Conversation, message: dict[str, Any]
) -> None:
    """These batches change more of the state, or are refused, and so need the stored one."""
    assert change(conversation, message) is None


@given(
    tokens=st.integers(0, 100),
    due_tokens=st.none() | st.integers(0, 100),
    due_messages=st.none() | st.integers(0, 12),
)
def test_a_compaction_is_due_as_by_the_stored_state(
    tokens: int, due_tokens: int | None, due_messages: int | None
) -> None:
    """The limits of the whole log say the same as those of what is shown."""
    found = change(known(), USER, due_tokens=due_tokens, due_messages=due_messages)
    assert found is not None
    after = replace(STATE, head_seq=5, tokens=STATE.tokens + tokens)
    shown = after.shown_tokens + after.summary_tokens
    expected = (due_tokens is not None and shown >= due_tokens) or (
        due_messages is not None and after.shown_messages > due_messages
    )
    by_log = (found.due_tokens is not None and after.tokens >= found.due_tokens) or (
        found.due_messages is not None and after.head_seq > found.due_messages
    )
    assert by_log == expected
    assert found.resume_at_tokens == STATE.resume_at_tokens


@pytest.mark.parametrize(("was_due", "became_due"), [(False, True), (True, False)])
def test_the_state_after(was_due: bool, became_due: bool) -> None:
    """Totals are those of the database; what appends do not change stays."""
    before = replace(STATE, is_due=was_due)
    found = change(known(), USER)
    assert found is not None
    after = state_after(before, found, LogTotals(9, 3, 90, True, True))
    assert (after.head_seq, after.turns, after.tokens, after.open_calls) == (9, 3, 90, ())
    assert (after.is_due, after.became_due) == (True, became_due)
    assert replace(after, head_seq=4, turns=1, tokens=40) == replace(
        before, open_calls=(), is_due=True, became_due=became_due
    )

"""Pages of lists: together they are what an in-memory filter of the same conversations gives.

[lists.filters]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.conversations import listing as statements
from app.conversations.listing import ConversationFilter
from app.repositories import Database
from tests.services.fakes import TENANT, Harness, WatchedDatabase

START = datetime(2026, 1, 1, tzinfo=UTC)
FILTERS = 60


@dataclass(frozen=True)
class Planted:
    """A conversation as it was planted."""

    conversation_id: str
    agent_id: str | None
    model: str | None
    metadata: Mapping[str, Any]
    created: datetime
    active: datetime

    @property
    def text(self) -> str:
        """The metadata as it is stored."""
        return json.dumps(self.metadata)

    def matches(self, wanted: ConversationFilter) -> bool:
        """Whether it matches, by the meaning of each filter."""
        return (
            all(_text(self.metadata.get(key)) == value for key, value in wanted.labels.items())
            and wanted.agent_id in (None, self.agent_id)
            and wanted.model in (None, self.model)
            and (wanted.active_after is None or self.active > wanted.active_after)
        )


def _text(value: Any) -> str | None:
    if isinstance(value, str) or value is None:
        return value
    return json.dumps(value) if not isinstance(value, list | dict) else None


def conversations(rng: Random) -> Iterator[Planted]:
    """Yield conversations, some with the same times."""
    for _ in range(80):
        created = START + timedelta(minutes=rng.randrange(30))
        yield Planted(
            str(UUID(int=rng.getrandbits(128))),
            rng.choice((None, "a", "b")),
            rng.choice((None, None, "m", "n")),
            {
                "env": rng.choice(("live", "test")),
                "count": rng.randrange(4),
                "paid": rng.random() < 0.5,
                "nested": {"env": "live"},
                "note": "a\x00b",
                "quoted": rng.choice(('"é"\\u0000', "x")),
            },
            created,
            created + timedelta(minutes=rng.randrange(20)),
        )


async def plant(url: str, planted: list[Planted]) -> None:
    """Store conversations, each with a message at the time that it is active."""
    connection = await asyncpg.connect(url)
    await connection.executemany(
        "INSERT INTO conversations (conversation_id, tenant_id, agent_id, model, metadata,"
        " created_at) VALUES ($1, $2, $3, $4, $5, $6)",
        [
            (UUID(it.conversation_id), TENANT, it.agent_id, it.model, it.text, it.created)
            for it in planted
        ],
    )
    await connection.execute(
        "INSERT INTO heads (conversation_id, counter) SELECT conversation_id, 'bytes_4'"
        " FROM conversations"
    )
    await connection.executemany(
        "INSERT INTO messages (conversation_id, seq, message_id, turn, role, format, tokens,"
        " reasoning_tokens, total_tokens, has_media, joins, body, created_at)"
        " VALUES ($1, 1, 'm', 1, 'user', 'openai_chat', 1, 0, 1, false, false, '{}', $2)",
        [(UUID(it.conversation_id), it.active) for it in planted],
    )
    await connection.close()


def some_filter(rng: Random) -> ConversationFilter:
    """Return a filter of none, some or all kinds."""
    labels = {"env": "live", "count": "2", "paid": "true", "quoted": "x", "none": "x"}
    keys = rng.sample(sorted(labels), rng.choice((0, 0, 1, 1, 2)))
    return ConversationFilter(
        {key: labels[key] for key in keys},
        rng.choice((None, None, "a")),
        rng.choice((None, None, "m")),
        rng.choice((None, None, START + timedelta(minutes=rng.randrange(40)))),
    )


@pytest.mark.parametrize("max_scanned", [3, 20, 5_000])
async def test_pages_together_are_the_filtered_list(
    database_url: str,
    database: Database,
    max_scanned: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever index is read, and wherever a page ends, nothing is missing, twice or misplaced."""
    monkeypatch.setattr(statements, "MAX_SCANNED", max_scanned)
    rng = Random(max_scanned)
    planted = list(conversations(rng))
    await plant(database_url, planted)
    service = Harness(WatchedDatabase(database)).conversations
    for _ in range(FILTERS):
        wanted, limit = some_filter(rng), rng.choice((1, 4, 100))
        found: list[str] = []
        before = None
        while True:
            items, end = await service.list(TENANT, wanted, limit, before)
            assert len(items) <= limit
            found += [item.conversation_id for item, *_ in items]
            assert before is None or end is None or end < before
            before = end
            if before is None:
                break
        expected = sorted(
            (it for it in planted if it.matches(wanted)),
            key=lambda it: (it.created, it.conversation_id),
            reverse=True,
        )
        assert found == [it.conversation_id for it in expected], (wanted, limit)
    assert await service.list("other", ConversationFilter(), 9, None) == ([], None)

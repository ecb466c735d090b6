"""The places of tables on Citus, and the errors that its nodes return.

[storage.conversation-key]
"""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from app.adapters.postgres.common.connections import _translated
from app.adapters.postgres.distribution import (
    BY_CONVERSATION,
    BY_TENANT,
    EVERYWHERE,
    _misplaced,
)


def placed() -> dict[str, dict[str, Any]]:
    """Return the places of a cluster that is set up by the script."""
    rows = {name: {"key": "conversation_id", "colocationid": 7} for name in BY_CONVERSATION}
    rows |= {name: {"key": "tenant_id", "colocationid": 8} for name in BY_TENANT}
    return rows | {name: {"key": None, "colocationid": 1} for name in EVERYWHERE}


def test_a_cluster_by_the_script_is_right() -> None:
    """Scaling: the places that the script makes are accepted."""
    assert _misplaced(placed()) == []


@pytest.mark.parametrize("table", [*BY_CONVERSATION, *BY_TENANT, *EVERYWHERE])
def test_a_table_that_was_forgotten_is_named(table: str) -> None:
    """Scaling: a process is not ready while a table is on the coordinator alone."""
    rows = placed()
    del rows[table]
    assert table in _misplaced(rows)


def test_a_table_that_lies_apart_is_named() -> None:
    """Scaling: another key, or other nodes than those of the conversations."""
    rows = placed()
    rows["pins"] = {"key": "conversation_id", "colocationid": 9}
    rows["agents"] = {"key": "agent_id", "colocationid": 1}
    assert sorted(_misplaced(rows)) == ["agents", "pins"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            'duplicate key value violates unique constraint "events_pkey_102104"',
            asyncpg.UniqueViolationError,
        ),
        (
            "connection to the remote node context@one:5432 failed with the following error: x",
            asyncpg.PostgresConnectionError,
        ),
        ("server closed the connection unexpectedly", asyncpg.PostgresConnectionError),
        ("cache lookup failed for function 7", asyncpg.InternalServerError),
    ],
)
def test_errors_of_nodes_are_what_they_say(text: str, kind: type[asyncpg.PostgresError]) -> None:
    """Scaling: Citus passes some errors of its nodes on as internal ones."""
    assert type(_translated(asyncpg.InternalServerError(text))) is kind

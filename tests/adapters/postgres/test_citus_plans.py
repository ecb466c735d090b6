"""What needs the nodes of a Citus cluster; `test_sharding.py` needs none.

[storage.conversation-key]
"""

from __future__ import annotations

import re

import pytest

from app.database.citus import calls_of
from app.database.connections import Store
from app.repositories import FREQUENT
from tests.conftest import CITUS, CITUS_URL, execute

pytestmark = pytest.mark.skipif(CITUS_URL is None, reason="they need a Citus cluster")


async def test_the_nodes_have_the_settings_of_the_file(database_url: str) -> None:
    """Scaling: what `node.conf` says is in force on each node of the cluster."""
    pairs = re.findall(r"(?m)^([\w.]+) = '?([^'\n]+)", (CITUS / "node.conf").read_text("utf-8"))
    for name, value in pairs:
        rows = await execute(
            database_url, "SELECT result FROM run_command_on_all_nodes($1)", f"SHOW {name}"
        )
        assert {row["result"] for row in rows} == {value}, name


async def test_no_statement_without_a_conversation_is_delegated(database_url: str) -> None:
    """Citus crashes when it delegates a call whose conversation is NULL."""
    (found,) = await execute(
        database_url, "SELECT to_regnamespace($1) IS NOT NULL", calls_of(FREQUENT).schema
    )
    assert found[0]
    store = Store(database_url)
    await store.open(FREQUENT)
    async with store.session() as session:
        for statement in FREQUENT:  # a crash closes the connection, which raises
            await session.all(statement, **dict.fromkeys(statement.names))
    await store.close()

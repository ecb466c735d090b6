"""The settings of the nodes of a Citus cluster; `test_sharding.py` needs no cluster.

[storage.conversation-key]
"""

from __future__ import annotations

import re

import pytest

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

"""Health, and the database failing in the middle.

[compaction.failure-keeps-state, operation.health]
"""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from tests.api.talk import assert_problem
from tests.conftest import execute, started
from tests.logged import lines

__all__ = ["lines"]


async def test_health_and_readiness(client: httpx.AsyncClient) -> None:
    """Both answer ok on a migrated database. [operation.database-away]"""
    for path in ("/healthz", "/readyz"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_without_a_database(settings: Settings) -> None:
    """Without a database the app starts, is alive, is not ready, and returns 503."""
    away = settings.model_copy(update={"database_url": "postgresql://nobody@127.0.0.1:9/nothing"})
    async with started(create_app(away)) as client:
        assert (await client.get("/healthz")).status_code == 200
        answer = await client.get("/readyz")
        assert_problem(answer, 503, "SERVICE_UNAVAILABLE")
        assert answer.headers["retry-after"] == "1"
        for method, path in (("POST", "/v1/conversations"), ("GET", "/v1/agents")):
            answer = await client.request(method, path, json={} if method == "POST" else None)
            assert_problem(answer, 503, "SERVICE_UNAVAILABLE")
            assert "127.0.0.1" not in answer.text


@pytest.mark.one_server  # it drops tables
async def test_an_older_schema_is_not_ready(settings: Settings, database_url: str) -> None:
    """A database without this version's schema is not ready, and requests are 503."""
    await execute(database_url, "UPDATE alembic_version SET version_num = '0000'")
    async with started(create_app(settings)) as client:
        assert_problem(await client.get("/readyz"), 503, "SERVICE_UNAVAILABLE")
        await execute(database_url, "DROP TABLE alembic_version, conversations")
        assert_problem(await client.get("/readyz"), 503, "SERVICE_UNAVAILABLE")
        assert_problem(await client.get("/v1/conversations"), 503, "SERVICE_UNAVAILABLE")


# It waits until each backend has ended: a connection that ends later would fail a later request.


LEFT = """
import os, sys, threading, app.main
files = [os.path.realpath(f"/dev/fd/{number}") for number in os.listdir("/dev/fd")]
open_files = [file for file in files if "socket:" in file or "eventpoll" in file]
print({"litellm", "tiktoken", "alembic"} & {*sys.modules}, threading.enumerate()[1:], open_files)
"""


def test_importing_the_app_is_light() -> None:
    """What costs seconds is not imported before it is needed, and no thread, socket or loop stays.

    [operation.lazy-imports]
    """
    done = subprocess.run([sys.executable, "-c", LEFT], check=True, capture_output=True, text=True)
    assert done.stdout == "set() [] []\n"

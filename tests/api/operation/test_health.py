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
from tests.logged import Lines, lines

__all__ = ["lines"]


async def test_health_and_readiness(client: httpx.AsyncClient) -> None:
    """Both answer ok on a migrated database. [operation.database-away]"""
    for path in ("/healthz", "/readyz"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("model", "variable", "other"),
    [
        ("claude-haiku-4-5", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        ("gemini/gemini-2.5-flash", "GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ],
)
async def test_a_summarizer_without_its_key_is_reported(
    settings: Settings,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    variable: str,
    other: str,
) -> None:
    """The start logs it; with a key, from wherever, it does not."""
    for name in (variable, other):
        monkeypatch.delenv(name, raising=False)
    keyless = settings.model_copy(update={"summarizer_model": model, "summarizer_api_key": None})

    async def reports(of: Settings) -> int:
        before = len(lines.told("summarizer_without_key"))
        async with started(create_app(of)) as client:
            assert (await client.get("/readyz")).status_code == 200
        return len(lines.told("summarizer_without_key")) - before

    assert await reports(keyless) == 1
    (told,) = lines.told("summarizer_without_key")
    assert (told["model"], told["variable"]) == (model, variable)
    assert await reports(keyless.model_copy(update={"summarizer_api_key": "key"})) == 0
    monkeypatch.setenv(other, "key")
    assert await reports(keyless) == 0


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


def test_importing_the_app_is_light() -> None:
    """What costs seconds to import is not imported before it is needed. [operation.lazy-imports]"""
    code = "import sys, app.main; print({'litellm', 'tiktoken', 'alembic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"

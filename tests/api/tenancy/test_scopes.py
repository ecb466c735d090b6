"""Read-only keys over HTTP: every operation of the OpenAPI document, and MCP.

[tenancy.read-only-keys]
"""

from __future__ import annotations

from typing import Any

from app.http.middleware import PUBLIC_PATHS
from app.main import create_app
from app.settings import Settings
from tests.api.http.openapi_document import OPERATIONS
from tests.api.talk import append, assert_problem, new_conversation, user
from tests.conftest import execute, started
from tests.keys import create

READINGS = {("post", "/v1/tokens/count"), ("post", "/v1/context/needs-compression")}
"""The only requests with a body that change nothing; written down here by hand."""
UNKNOWN = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


async def test_a_read_only_key_changes_nothing(settings: Settings, database_url: str) -> None:
    """Of all operations it may send those that read; MCP and unknown requests are refused."""
    key, reader = [
        await create("acme", "", None, settings, read_only=read_only) for read_only in (False, True)
    ]
    tables = "SELECT (SELECT count(*) FROM conversations), (SELECT count(*) FROM messages)"
    async with started(create_app(settings)) as client:
        client.headers["authorization"] = f"Bearer {key}"
        path = await new_conversation(client)
        await append(client, path, user("hello"))
        before = await execute(database_url, tables)
        client.headers["authorization"] = f"Bearer {reader}"
        for method, template, _ in OPERATIONS:
            if template in PUBLIC_PATHS:
                continue
            filled = template.replace("{conversation_id}", path.rpartition("/")[2])
            filled = filled.replace("{job_id}", UNKNOWN).replace("{snapshot_id}", UNKNOWN)
            asks: dict[str, Any] = {"json": {}} if method not in {"get", "delete"} else {}
            asks["params"] = {"follow": "false"} if template.endswith("/events") else {}
            answer = await client.request(method, filled, **asks)
            if method == "get" or (method, template) in READINGS:
                assert answer.status_code in {200, 404, 422}, (method, template)
            else:
                problem = assert_problem(answer, 403, "FORBIDDEN")
                assert problem["reason"] == "read_only_key" and "read-only" in problem["detail"]
        for other in ("/mcp", "/v1/nothing"):
            assert_problem(await client.post(other, json={}), 403, "FORBIDDEN")
        assert (await client.get(f"{path}/messages")).json()["data"][0]["seq"] == 1
        counted = await client.post("/v1/tokens/count", json={"messages": [user("hello")]})
        assert counted.status_code == 200, counted.text
    assert await execute(database_url, tables) == before

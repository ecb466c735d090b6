"""Answers that are sent without validation are those of their schemas. [api.documented]

Builds, pages of messages and downloads are written from parts that are JSON already.
"""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema_rs

from tests.api.http.openapi_document import DOCUMENT, OPERATIONS
from tests.api.talk import append, calling, new_conversation, result, talk, user

SCHEMAS = {operation["operationId"]: operation["responses"] for _, _, operation in OPERATIONS}


def require_valid(operation_id: str, answer: httpx.Response) -> Any:
    """Validate an answer by the schema of its operation, and return its body."""
    response = SCHEMAS[operation_id][str(answer.status_code)]
    schema = response["content"]["application/json"]["schema"]
    whole = schema | {"components": DOCUMENT["components"]}
    jsonschema_rs.Draft202012Validator(whole, validate_formats=True).validate(answer.json())
    return answer.json()


async def test_answers_have_their_schemas(client: httpx.AsyncClient) -> None:
    """Each answer of a short life: appends, builds, a step, a compaction, reads, a snapshot."""
    path = await new_conversation(client, model="gpt-4o", sections=[{"name": "a", "content": "b"}])
    body: dict[str, Any] = {"messages": talk(30)}
    require_valid("append_messages", await client.post(f"{path}/messages", json=body))
    built = require_valid("build_context", await client.post(f"{path}/context"))
    body = {
        "append": {"messages": [calling("c"), result("c"), user("Go on.")]},
        "report": {
            "usage": {"prompt_tokens": 9_000, "completion_tokens": 20, "total_tokens": 9_020}
        },
        "known": {name: built[name] for name in ("epoch", "through_seq", "build_id")},
    }
    step = require_valid("build_context", await client.post(f"{path}/context", json=body))
    assert step["appended"] and step["reported"] and step["delta"]
    as_of = {"as_of": step["build_id"]}
    require_valid("get_context", await client.get(f"{path}/context", params=as_of))
    require_valid("report_usage", await client.post(f"{path}/usage", json={}))
    for dry_run in (True, False):
        answer = await client.post(f"{path}/compact", json={"dry_run": dry_run})
        require_valid("compact", answer)
    await append(client, path, user("One more."))
    built = require_valid("build_context", await client.post(f"{path}/context"))
    assert built["diagnostics"]["summary_used"]
    for payload in ("true", "false"):
        answer = await client.get(f"{path}/context/preview?payload={payload}")
        require_valid("preview_context", answer)
    page = require_valid("list_messages", await client.get(f"{path}/messages"))
    one = f"{path}/messages/{page['data'][0]['id']}"
    require_valid("get_message", await client.get(one))
    require_valid("list_compactions", await client.get(f"{path}/compactions"))
    saved = require_valid("save_conversation_snapshot", await client.post(f"{path}/snapshots"))
    require_valid("get_snapshot", await client.get(f"/v1/snapshots/{saved['snapshot_id']}"))
    answer = await client.post(f"{path}/overflow", json={"error": "prompt is too long"})
    require_valid("overflow", answer)

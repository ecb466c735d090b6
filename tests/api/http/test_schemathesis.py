"""Requests made from the published description, against the app as it is really served.

[api.documented]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from tests.answers import PUBLISHED
from tests.api.talk import talk
from tests.conftest import Server, in_thread, serving
from tests.keys import create

ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
TENANTS = ("alice", "bob")
EXAMPLES = 1
WITH_POLICY = ("AgentPatch", "ConversationCreate", "ConversationPatch")
LONG_LIST = 100
"""Longer lists are left to test_bounds.py: to make them up takes most of the time of a run."""

CONFIG = """
[checks]
enabled = true

[auth.wfc]
path = "keys.json"
peers = ["alice", "bob"]

# A tool output that was collected is 410. What a schema allows is no 422, but for what is unsaid.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 403, 404, 409, 410]

# A stream that is followed has no end. Its schema is that of the whole text, which clients are made
# from, and Schemathesis would hold each event against it; test_events.py has these.
[[operations]]
include-path = "/v1/conversations/{conversation_id}/events"
parameters = { follow = false }
checks.response_schema_conformance.enabled = false
checks.positive_data_acceptance.expected-statuses = ["2xx", 403, 404, 409, 410, 422]

# It writes no lines of JSON; test_exports.py does.
[[operations]]
include-operation-id = "import_conversation"
enabled = false

# A GET of these is that of a message whose id ends with the last segment.
[[operations]]
include-operation-id = ["pin_message", "unpin_message", "redact_message"]
checks.unsupported_method.enabled = false
"""

UNSAID = {
    "a cursor is what a page has given": (
        *("list_agents", "list_conversations"),
        *("list_blobs", "list_compactions", "list_messages"),
        *("list_models", "list_snapshots", "expand_compaction", "search_messages"),
        *("list_epochs", "list_usage_reports"),
    ),
    "settings have to work together, and no name may stand twice in a list": (
        *("create_agent", "change_agent", "create_conversation", "change_conversation"),
    ),
    "days are a range, and a cursor is what a page of the same groups has given": (
        *("get_conversation_usage", "get_usage"),
    ),
    "a window may have no messages": (
        *("save_agent_snapshot", "save_conversation_snapshot", "build_context"),
        "dry_run_context",
    ),
    "a message or a call has the form of the format beside it": (
        *("append_messages", "answer_tool_call", "count_tokens"),
        *("build_stateless_context", "needs_compression"),
    ),
    "a model has to be known, or allowed": ("compact", "compress"),
    "a seq, a build or a count is what there is": (
        *("fork_conversation", "rewind", "report_usage", "import_snapshot"),
    ),
    "an error has to be about the size of a request": ("overflow",),
    "several conversations do not become one": ("restore_snapshot",),
    "JSON Schema takes 1.0 for a whole number": ("search_tools",),
}
"""What no schema can say, and so is found out by a 422 only, with the operations it is true of."""

SAID_BY_422 = """
[[operations]]
include-operation-id = {ids}
checks.positive_data_acceptance.expected-statuses = ["2xx", 403, 404, 409, 410, 422]
"""


@dataclass(frozen=True)
class Place:
    """A served app with two tenants, and the folder of the run against it."""

    address: str
    folder: Path


def without_long_lists(node: object) -> object:
    """Return a description in which a list that may be long has no upper bound."""
    match node:
        case dict():
            return {
                name: without_long_lists(value)
                for name, value in node.items()
                if not (name == "maxItems" and isinstance(value, int) and value > LONG_LIST)
            }
        case list():
            return [without_long_lists(value) for value in node]
        case _:
            return node


def with_one_policy(document: dict[str, Any]) -> dict[str, Any]:
    """Return a description whose policy is that of one operation; the others take an empty one.

    The same hundreds of its values would be tried in four operations.
    """
    empty = {"type": ["object", "null"], "additionalProperties": False}
    for name in WITH_POLICY:
        body = document["components"]["schemas"][name]
        assert "policy" in body["properties"]
        body["properties"]["policy"] = empty
    return document


@pytest.fixture
def place(server: Server, tmp_path: Path) -> Iterator[Place]:
    """The first tenant has the conversation and the agent that the examples name."""
    with server.clone() as url:
        # Each operation is tried with wrong keys, which are more than a client may send.
        settings = Settings(database_url=url, default_model="gpt-4o")
        keys = {name: in_thread(create, name, "", None, settings) for name in TENANTS}
        headers = {name: f"Bearer {key}" for name, key in keys.items()}
        known = [
            {"name": name, "fixedHeaders": [{"name": "Authorization", "value": header}]}
            for name, header in headers.items()
        ]
        (tmp_path / "keys.json").write_text(json.dumps({"auth": known}))
        ids = sorted(name for names in UNSAID.values() for name in names)
        config = CONFIG + SAID_BY_422.format(ids=json.dumps(ids))
        (tmp_path / "schemathesis.toml").write_text(config)
        published = without_long_lists(with_one_policy(json.loads(PUBLISHED.read_text())))
        (tmp_path / "openapi.json").write_text(json.dumps(published))
        with (
            serving(create_app(settings)) as base,
            httpx.Client(base_url=base, headers={"Authorization": headers["alice"]}) as client,
        ):
            agent = {"agent_id": "support-bot", "name": "Support bot"}
            client.post("/v1/agents", json=agent).raise_for_status()
            client.post("/v1/conversations", json={"conversation_id": ID}).raise_for_status()
            path = f"/v1/conversations/{ID}/messages"
            client.post(path, json={"messages": talk(30)}).raise_for_status()
            yield Place(base, tmp_path)


def test_all_checks_pass(place: Place) -> None:
    """Every check of Schemathesis, in all its phases, as two tenants who must not meet.

    No request gives a 5xx, every answer is one that the description declares, what it allows is
    taken and what it forbids refused, every operation wants a key, what is deleted is gone, and no
    tenant gets what the other one made.
    """
    command = (
        sys.executable,
        "-c",
        "from schemathesis.cli import schemathesis; schemathesis()",
        "run",
        str(place.folder / "openapi.json"),
    )
    options = (
        *("--url", place.address),
        *("--max-examples", str(EXAMPLES)),
        *("--seed", "1"),
        *("--generation-deterministic", "--continue-on-failure", "--no-color"),
    )
    done = subprocess.run(
        (*command, *options),
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert "object_level_authorization" not in done.stdout

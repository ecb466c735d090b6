"""Requests made from the published schema, against the app as it is really served (M)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from app.main import create_app
from app.settings import Settings
from tests.api.talk import talk
from tests.api.test_openapi import DOCUMENT
from tests.conftest import Server, serving

ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]

schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    """The served app, with the conversation and the agent that the examples name."""
    with server.clone() as url:
        app = create_app(Settings(database_url=url, default_model="gpt-4o"))
        with serving(app) as base, httpx.Client(base_url=base) as client:
            agent = {"agent_id": "support-bot", "name": "Support bot"}
            client.post("/v1/agents", json=agent).raise_for_status()
            client.post("/v1/conversations", json={"conversation_id": ID}).raise_for_status()
            path = f"/v1/conversations/{ID}/messages"
            client.post(path, json={"messages": talk(30)}).raise_for_status()
            yield base


@schema.parametrize()
@hypothesis_settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_keeps_its_word(case: Any, address: str) -> None:
    """M: no request gives a 5xx, and every answer is one that the schema declares."""
    if case.operation.path.endswith("/events"):  # a stream that is followed has no end
        case.query = {**(case.query or {}), "follow": "false"}
    case.call_and_validate(base_url=address, checks=CHECKS)

"""The links of the description: each leads somewhere, and with what an answer really has.

[api.documented]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx

from app.main import create_app
from app.settings import Settings
from tests.api.http.openapi_document import DOCUMENT, OPERATIONS
from tests.api.talk import talk
from tests.conftest import started

Operation = dict[str, Any]
BY_NAME = {operation["operationId"]: (method, path) for method, path, operation in OPERATIONS}
AT = {operation["operationId"]: operation for _, _, operation in OPERATIONS}
REST = {
    "grep_blob": {"pattern": "one"},
    "stream_events": {"follow": "false"},
    "get_context": {"as_of": "1"},
}
"""Parameters that a reader chooses."""
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}


def links() -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Yield each link with the operation and the status that have it."""
    for name, operation in AT.items():
        for status, answer in operation["responses"].items():
            for link_name, link in answer.get("links", {}).items():
                yield name, status, link_name, link


def parameters_of(operation_id: str) -> dict[str, Operation]:
    """Return the parameters of an operation by name."""
    return {item["name"]: item for item in AT[operation_id].get("parameters", [])}


def test_every_link_has_a_target_operation_and_its_parameters() -> None:
    """The operation exists, has each parameter, and gets all that its path needs."""
    found = list(links())
    assert len(found) > 80
    for source, status, name, link in found:
        target = link["operationId"]
        assert target in AT and name == target, (source, name)
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)
        assert set(link["parameters"]) <= set(parameters_of(target)), (source, target)
        needed = set(re.findall(r"\{(\w+)\}", BY_NAME[target][1]))
        assert needed <= set(link["parameters"]), (source, target)
        for expression in link["parameters"].values():
            place = expression.removeprefix("$request.path.")
            assert expression.startswith("$response.body#/") or place in parameters_of(source)
        assert status in AT[source]["responses"]


def test_every_creation_has_links() -> None:
    """What was made can be read, changed and deleted, as far as there is an operation for it."""
    with_links = {(name, status) for name, status, _, _ in links()}
    for name, operation in AT.items():
        for status in {"201", "202"} & set(operation["responses"]):
            assert (name, status) in with_links, name
    assert {"append_messages", "build_context", "get_conversation", "change_conversation"} <= set(
        AT["create_conversation"]["responses"]["201"]["links"]
    )


@dataclass(frozen=True)
class Answer:
    """What an operation answered, with the parameters of its path."""

    operation_id: str
    path: Mapping[str, str]
    response: httpx.Response

    def resolve(self, expression: str) -> Any:
        """Return what a runtime expression stands for here."""
        if expression.startswith("$request.path."):
            return self.path[expression.removeprefix("$request.path.")]
        value: Any = self.response.json()
        for step in expression.removeprefix("$response.body#/").split("/"):
            value = value[int(step)] if isinstance(value, list) else value[step]
        return value


class Caller:
    """Calls operations by their ids, and keeps what they answered."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.answers: list[Answer] = []

    async def call(
        self, operation_id: str, body: Any = None, query: Any = None, **path: str
    ) -> Any:
        """Return the body of an answer, which is no error: JSON, or the bytes of a stream."""
        method, template = BY_NAME[operation_id]
        url = template.format(**{key: quote(value, safe="") for key, value in path.items()})
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        sent = given if body is not None else {}
        response = await self._client.request(method.upper(), url, params=query, **sent)
        assert response.is_success, (operation_id, response.text)
        self.answers.append(Answer(operation_id, path, response))
        is_json = response.headers["content-type"] == "application/json"
        return response.json() if is_json else response.content


async def act(caller: Caller) -> None:
    """Do everything that has links, once for each status."""
    agent = (await caller.call("create_agent", {"name": "A", "agent_id": "a"}))["agent_id"]
    for kind, items in (("sections", [{"name": "s", "content": "x"}]), ("tools", [TOOL])):
        await caller.call(f"set_agent_{kind}", {kind: items}, agent_id=agent)
    body = {"agent_id": agent, "policy": {"budget": {"context_window": 9_000}}}
    cid = (await caller.call("create_conversation", body))["conversation_id"]
    for kind, items in (("sections", [{"name": "t", "content": "y"}]), ("tools", [TOOL])):
        await caller.call(f"set_conversation_{kind}", {kind: items}, conversation_id=cid)
    messages = talk(60, "some words of a talk that goes on ")
    await caller.call("append_messages", {"messages": messages}, conversation_id=cid)
    await caller.call("build_context", {"format": "openai_chat"}, conversation_id=cid)
    await caller.call("upload_blob", b"one\ntwo\n", conversation_id=cid)
    await caller.call("fork_conversation", {}, conversation_id=cid)
    export = await caller.call("export_conversation", conversation_id=cid)
    await caller.call("import_conversation", export)
    await caller.call("save_agent_snapshot", {}, agent_id=agent)
    saved = await caller.call("save_conversation_snapshot", {}, conversation_id=cid)
    file = await caller.call("get_snapshot", session_id=saved["session_id"])
    await caller.call("import_snapshot", file | {"session_id": str(uuid4())})
    done = await caller.call("compact", {}, conversation_id=cid)
    assert done["compacted"]
    await caller.call("compact", {}, {"wait": "false"}, conversation_id=cid)
    await caller.call("set_model", {"context_window": 9_000}, model="mine/own")


async def test_every_link_can_be_followed(settings: Settings) -> None:
    """Expressions stand for what a real answer has, and what is read there is found."""
    async with started(
        create_app(settings.model_copy(update={"default_model": "gpt-4o"}))
    ) as client:
        caller = Caller(client)
        await act(caller)
        made, followed = list(caller.answers), set()
        for answer in made:
            status = str(answer.response.status_code)
            shown = AT[answer.operation_id]["responses"][status].get("links", {})
            for name, link in shown.items():
                values = {key: answer.resolve(text) for key, text in link["parameters"].items()}
                assert None not in values.values(), (answer.operation_id, name)
                followed.add((answer.operation_id, status, name))
                if BY_NAME[name][0] == "get":
                    await _read(client, name, values)
    assert followed == {(source, status, name) for source, status, name, _ in links()}


async def _read(client: httpx.AsyncClient, name: str, values: Mapping[str, Any]) -> None:
    path = BY_NAME[name][1].format(**{k: quote(str(v), safe="") for k, v in values.items()})
    query = {key: value for key, value in values.items() if f"{{{key}}}" not in BY_NAME[name][1]}
    query = REST.get(name, {}) | query
    response = await client.get(path, params=query)
    # There was no build yet where the link gives no `as_of`.
    may_be = {200, 206, 404} if name == "get_context" and "as_of" not in values else {200, 206}
    assert response.status_code in may_be, (name, response.text)


def test_no_component_is_unused() -> None:
    """Links refer to operations of this document alone."""
    assert not [link for *_, link in links() if "operationRef" in link]
    assert "links" not in DOCUMENT["components"]

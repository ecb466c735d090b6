"""Agent tools over MCP: by the SDK's own client, and at the edges of the protocol.

The app is really served, for the SDK's client speaks to nothing less.

[agent-tools.mcp]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import httpx2
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INVALID_PARAMS, TextContent
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from app.composition import utc_now
from app.main import create_app
from app.mcp_server.endpoint import MAX_BYTES
from app.prompt.agent_tools import AGENT_TOOLS
from app.repositories import Database
from app.settings import Settings
from app.tenancy.api_keys import KeyService
from tests.api.talk import append, assert_problem, calling, new_conversation, result, talk, user
from tests.conftest import serving, started
from tests.documents import block
from tests.fake_llm import Behaviour, Request
from tests.fake_providers import PROTOCOLS, Call, FakeProviders, Spent
from tests.keys import create
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
LOCAL = "http://127.0.0.1:8080"
SPENT = Spent(100, 0)
TEXT = "".join(f"line {number} {'x' * 40}\n" for number in range(1, 3001))
SECRET = "The harbour master's name is Solveig."
TOOLS = [{"name": "get_weather", "description": "Weather of now.", "category": "mcp"}]
NOWHERE = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
ASKED = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
MODES = ["legacy", "auto"]


@asynccontextmanager
async def connected(
    url: str, mode: str = "auto", path: str = "/mcp", **headers: str
) -> AsyncIterator[Client]:
    """Yield the SDK's client of a served app; underscores of header names are dashes."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx2.AsyncClient(headers=sent, timeout=PATIENCE_SECONDS) as http:
        transport = streamable_http_client(f"{url}{path}", http_client=http)
        async with Client(transport, mode=mode) as opened:
            yield opened


@asynccontextmanager
async def bound(
    url: str, conversation_id: str, binding: str, mode: str = "auto", path: str = "/mcp"
) -> AsyncIterator[Calls]:
    """Yield a way to call tools on a conversation, which the client names in that way."""
    where = f"{path}?conversation_id={conversation_id}" if binding == "url" else path
    headers = {"Context-Conversation-Id": conversation_id} if binding == "header" else {}
    always = {"conversation_id": conversation_id} if binding == "argument" else {}
    async with connected(url, mode, where, **headers) as opened:
        yield Calls(opened, always)


class Calls:
    """Calls tools, and reads what they answer."""

    def __init__(self, client: Client, always: dict[str, Any]) -> None:
        self._client = client
        self._always = always

    async def __call__(self, name: str, **arguments: Any) -> tuple[str, bool]:
        """Return the text of a tool's answer, and whether the model has something to mend."""
        answer = await self._client.call_tool(name, self._always | arguments)
        (content,) = answer.content
        assert isinstance(content, TextContent)
        assert answer.structured_content is None
        return content.text, answer.is_error


@pytest_asyncio.fixture
async def http(served: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of the served app, for what goes before and for what the SDK's never sends."""
    async with httpx.AsyncClient(base_url=served, timeout=PATIENCE_SECONDS) as opened:
        yield opened


async def offloaded(http: httpx.AsyncClient, **body: Any) -> tuple[str, str]:
    """Return the id of a conversation with a large tool result, and the ref of that."""
    path = await new_conversation(http, **body)
    answer = await append(http, path, user(SECRET), calling("c1"), result("c1", TEXT))
    return path.rpartition("/")[2], answer["messages"][2]["output_ref"]["id"]


async def over_http(http: httpx.AsyncClient, conversation_id: str, name: str, **given: Any) -> str:
    """Return the text of the tool message of a call to `…/tool-calls`."""
    call = {"type": "tool_use", "id": "c2", "name": name, "input": given}
    path = f"/v1/conversations/{conversation_id}/tool-calls"
    answer = await http.post(path, json={"format": "anthropic", "tool_call": call})
    text: str = answer.json()["message"]["content"][0]["content"]
    return text


# --- tools ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_the_tools_listed_are_those_of_the_service(served: str, mode: str) -> None:
    """Names, descriptions and schemas are the definitions', for newest and older clients."""
    async with connected(served, mode, f"/mcp?conversation_id={NOWHERE}") as client:
        listed = (await client.list_tools()).tools
        newest = LATEST_MODERN_VERSION if mode == "auto" else HANDSHAKE_PROTOCOL_VERSIONS[-1]
        assert client.protocol_version == newest
        assert client.instructions is not None and client.instructions.count(". ") == 1
        assert client.server_info is not None and client.server_info.name == "context-service"
    assert [tool.name for tool in listed] == list(AGENT_TOOLS)
    for tool in listed:
        definition = AGENT_TOOLS[tool.name]
        assert tool.description == definition.description
        assert tool.input_schema == definition.parameters
        assert tool.title and tool.annotations is not None
        is_reading = tool.name not in {"compact_context", "pin_messages", "tool_search"}
        assert tool.annotations.read_only_hint is is_reading
        assert tool.annotations.destructive_hint is tool.annotations.open_world_hint is False


@pytest.mark.parametrize(
    ("binding", "path", "mode"),
    [
        ("url", "/mcp", "legacy"),
        ("url", "/mcp/", "auto"),
        ("header", "/mcp", "auto"),
        ("argument", "/mcp/", "legacy"),
    ],
)
async def test_every_tool_is_executed(
    served: str, http: httpx.AsyncClient, binding: str, path: str, mode: str
) -> None:
    """Each of the six does what `…/tool-calls` does, in the same words.

    [agent-tools.execute, tool-output.read-bytes, tool-output.grep, tools.search, compaction.forced,
     search.words]
    """
    conversation_id, ref = await offloaded(http, tools=TOOLS)
    at = f"/v1/conversations/{conversation_id}"
    await append(http, at, *talk(40, "word " * 200))
    async with bound(served, conversation_id, binding, mode, path) as call:
        for name, given in (
            ("tool_output_cache", {"ref_id": ref, "offset": 41, "limit": 2}),
            ("tool_output_cache_grep", {"ref_id": ref, "pattern": "^line 7 "}),
            ("read_result", {"ref_id": ref, "limit": 6}),
        ):
            expected = await over_http(http, conversation_id, name, **given)
            assert await call(name, **given) == (expected, False)
        text, is_error = await call("compact_context")
        assert text.startswith("[Compacted: ") and not is_error
        assert (await http.get(f"{at}/state")).json()["summary"]
        text, is_error = await call("recall", query="harbour master")
        assert text.startswith("#1 user 20") and SECRET in text.splitlines()[0] and not is_error
        text, is_error = await call("tool_search", query="weather")
        assert json.loads(text)["name"] == "get_weather" and not is_error
    found = (await http.post(f"{at}/tools/search", json={"query": "chess"})).json()
    assert found["promoted"] == ["get_weather"]
    assert (await http.get(at)).json()["head_seq"] == 43


# --- conversations ----------------------------------------------------------------------------


@pytest.mark.parametrize("named", [NOWHERE, "nothing", "%00", "é", "a" * 4000])
async def test_an_unknown_conversation_is_an_error(served: str, named: str) -> None:
    """An invalid id has the error of an unknown one, for every tool [agent-tools.model-errors]."""
    words = f"No conversation {named[:257]}"
    calls: dict[str, dict[str, Any]] = {
        name: dict.fromkeys(tool.parameters["required"], "x") for name, tool in AGENT_TOOLS.items()
    }
    async with bound(served, named, "argument") as call:
        for name, arguments in calls.items():
            assert await call(name, **arguments) == (words, True)
    where = str(httpx.URL("/mcp", params={"conversation_id": named}))
    async with connected(served, path=where) as client:
        for name, arguments in calls.items():
            with pytest.raises(MCPError) as caught:
                await client.call_tool(name, arguments)
            assert (caught.value.code, caught.value.message) == (INVALID_PARAMS, words)
            assert caught.value.data == {"code": "NOT_FOUND"}


async def test_a_bound_client_cannot_name_another_conversation(
    served: str, http: httpx.AsyncClient
) -> None:
    """Bound, the tools have the documented signatures, and an argument leads to no other
    conversation.
    """
    conversation_id, _ = await offloaded(http)
    other, _ = await offloaded(http)
    async with bound(served, conversation_id, "header") as call:
        text, is_error = await call("recall", query="harbour", conversation_id=other)
    assert is_error and 'there is no argument "conversation_id"' in text


async def test_conversations_of_other_tenants_are_unknown(
    settings: Settings, database: Database
) -> None:
    """With keys, another tenant's conversation is one that never was [agent-tools.mcp]."""
    keys = KeyService(database, utc_now, monotonic)
    headers = []
    for tenant in ("one", "two"):
        text = await keys.create(tenant, "test", None)
        headers.append({"Authorization": f"Bearer {text}"})
    with serving(create_app(settings)) as url:
        async with httpx.AsyncClient(base_url=url, headers=headers[0]) as http:
            conversation_id, ref = await offloaded(http)
        stranger = await http_once(url, asked("ping"))
        assert_problem(stranger, 401, "UNAUTHENTICATED")
        assert stranger.headers["www-authenticate"].startswith("Bearer")
        path = f"/mcp?conversation_id={conversation_id}"
        async with connected(url, path=path, **headers[0]) as own:
            assert not (await own.call_tool("read_result", {"ref_id": ref})).is_error
        async with connected(url, path=path, **headers[1]) as other:
            for name, given in (("read_result", {"ref_id": ref}), ("recall", {"query": "harbour"})):
                with pytest.raises(MCPError) as caught:
                    await other.call_tool(name, given)
                assert caught.value.message == f"No conversation {conversation_id}"
                assert caught.value.data == {"code": "NOT_FOUND"}
        page = {**ASKED, **headers[0], "Origin": "https://chat.example"}
        assert (await http_once(url, asked("ping"), page)).status_code == 200


# --- the protocol -----------------------------------------------------------------------------


def asked(method: str, version: str | None = None, /, **params: Any) -> dict[str, Any]:
    """Return a JSON-RPC request; one of the newest revision has it in the body."""
    if version == LATEST_MODERN_VERSION:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def http_once(
    url: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> httpx.Response:
    """Send one request on a connection of its own."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        return await http.post("/mcp", json=body, headers=headers or ASKED)


async def test_a_call_has_a_limit_of_its_own(client: httpx.AsyncClient) -> None:
    """A call of 1 MB is read; one that the SDK would parse for long is refused. [api.limits]"""
    for size, status in ((1_000_000, 200), (MAX_BYTES, 413)):
        body = asked("tools/call", name="recall", arguments={"query": "x" * size})
        body["params"]["arguments"]["conversation_id"] = NOWHERE
        answer = await client.post("/mcp", json=body, headers=ASKED)
        assert answer.status_code == status
        assert status == 413 or answer.json()["result"]["isError"]


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=8), PLAIN)
METHODS = st.sampled_from(["tools/call", "tools/list", "initialize", "x", ""])
ARGUMENTS = st.dictionaries(st.sampled_from(["conversation_id", "ref_id", "query"]), JSON) | JSON


@example_settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(METHODS, st.sampled_from(list(AGENT_TOOLS)) | JSON, ARGUMENTS, JSON, st.booleans())
def test_no_input_is_a_500(
    served: str, method: str, name: Any, arguments: Any, id: Any, newest: bool
) -> None:
    """Whatever the request, it is answered and never by a 500. [errors.no-500]"""
    version = LATEST_MODERN_VERSION if newest else None
    body = asked(method, version, name=name, arguments=arguments) | {"id": id}
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": method} if version else {}
    content, headers = json.dumps(body), ASKED | headers
    answer = httpx.post(f"{served}/mcp", content=content, headers=headers, timeout=60)
    assert answer.status_code < 500


async def test_a_call_has_a_deadline(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call over the deadline is cancelled, and its result is an error."""
    monkeypatch.setattr("app.main.MCP_MARGIN_SECONDS", -settings.summarizer_deadline_seconds)
    body = asked("tools/call", name="recall", arguments={"query": "x"})
    async with started(create_app(settings)) as client:
        answer = await client.post(f"/mcp?conversation_id={NOWHERE}", json=body, headers=ASKED)
    told = answer.json()["result"]
    text = "recall took longer than 0 s and was cancelled."
    assert (told["isError"], told["content"][0]["text"]) == (True, text)


FOREIGN = [
    "https://evil.example",
    "http://evil.example:8080",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://[::1",
    "null",
]
OWN = ["http://localhost:6274", "http://127.0.0.1:8080", "http://[::1]:8080"]


async def test_cross_origin_requests_are_refused(client: httpx.AsyncClient) -> None:
    """Without keys a cross-origin page that uses DNS rebinding is refused."""
    for origin in FOREIGN:
        answer = await client.post("/mcp", json=asked("ping"), headers={**ASKED, "Origin": origin})
        assert_problem(answer, 403, "FORBIDDEN")
    for origin in OWN:
        answer = await client.post("/mcp", json=asked("ping"), headers={**ASKED, "Origin": origin})
        assert answer.status_code == 200


# --- as the documentation shows it ------------------------------------------------------------


async def test_the_sdk_client_of_the_docs_works(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script runs as printed, bound by its headers, without a key and with one."""
    script = block(DOCUMENT, "python", "streamable_http_client")
    monkeypatch.delenv("CONTEXT_API_KEY", raising=False)
    headers: dict[str, str] = {}
    with serving(create_app(settings)) as url:
        for port in ("5433", "6543"):
            async with httpx.AsyncClient(
                base_url=url, headers=headers, timeout=PATIENCE_SECONDS
            ) as http:
                path = await new_conversation(http)
                await append(http, path, user(f"The staging port is {port}."))
            monkeypatch.setenv("ID", path.rpartition("/")[2])
            assert (await printed(script.replace(LOCAL, url))).endswith(f"port is {port}.\n")
            key = await create("acme", "", None, settings)
            monkeypatch.setenv("CONTEXT_API_KEY", key)
            headers = {"Authorization": f"Bearer {key}"}


async def printed(script: str) -> str:
    """Return what a script prints in a process of its own."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    said, complaints = (text.decode() for text in await running.communicate())
    assert running.returncode == 0, complaints
    return said


def test_the_sdk_is_imported_on_demand() -> None:
    """A service without MCP requests does not import it. [operation.lazy-imports]"""
    script = "import sys, app.main; print('mcp' in sys.modules)"
    script += "; import app.mcp_server.tools; print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, cwd=ROOT)
    assert done.stdout.split() == [b"False", b"True"]


@pytest.fixture
def providers() -> Iterator[FakeProviders]:
    """The providers of models."""
    server = FakeProviders()
    yield server
    server.stop()


async def test_an_agent_of_the_openai_sdk_has_payload_and_tools(
    served: str, http: httpx.AsyncClient, providers: FakeProviders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script runs as printed; the model has each tool once, and the log all it did."""
    path = await new_conversation(http, model="gpt-4.1")
    await append(http, path, user(SECRET))
    speak = next(protocol for protocol in PROTOCOLS if protocol.path.fullmatch("/v1/responses"))

    def call(request: Request) -> Behaviour:
        body = speak.calling([Call("c1", "recall", {"query": "harbour"})], SPENT, request.body)
        return Behaviour(body=body | {"output": [without_id(item) for item in body["output"]]})

    def repeat(request: Request) -> Behaviour:
        return Behaviour(body=speak.saying(request.body["input"][-1]["output"][0]["text"], SPENT))

    providers.script(call, repeat)
    monkeypatch.setenv("ID", path.rpartition("/")[2])
    monkeypatch.setenv("OPENAI_BASE_URL", providers.api_base)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    script = block(DOCUMENT, "python", "MCPServerStreamableHttp").replace(LOCAL, served)
    assert SECRET in await printed(script)
    assert providers.refused == []
    asked_first = providers.requests[0].body
    assert [tool["name"] for tool in asked_first["tools"]] == list(AGENT_TOOLS)
    assert SECRET in json.dumps(asked_first["input"][0])
    log = (await http.get(f"{path}/messages")).json()["data"]
    assert [said["role"] for said in log] == ["user", "user", "assistant", "tool", "assistant"]


def without_id(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as one that is not bound to the reasoning before it."""
    return {key: value for key, value in item.items() if key != "id"}

"""An OpenAI Agents SDK session whose history the Context Service keeps, and shows in a window.

    service = AsyncContextClient("http://127.0.0.1:8080")
    session = ContextSession("chat-17", service, {"model": "gpt-4.1"})
    agent = await session.bound(Agent(name="ops", instructions="...", tools=[...]))
    result = await Runner.run(agent, "What failed?", session=session)

1. The runner saves through the session what is new before each call of the model: the user's
   input, then every answer with its results. All of it goes into the log, as Responses items.
2. A bound agent's model is given a build in place of the items that the runner has gathered. So
   compaction, views of tool outputs and the budget take effect inside a run, streamed or not.
3. The agent's instructions are a section of that build, and its tools are counted in it. The model
   is offered the tools that the payload names; the service's own are executed by the service.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import openai
from agents import Agent, FunctionTool, ModelResponse, ModelSettings, SessionSettings
from agents.items import TResponseInputItem
from agents.items import TResponseStreamEvent as Event
from agents.memory import OpenAIResponsesCompactionArgs
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.models.interface import Model
from agents.models.multi_provider import MultiProvider
from agents.models.openai_responses import Converter
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from agents.tool_context import ToolContext

from context_service_client.service import (
    AsyncContextClient,
    ContextServiceError,
    cut,
    opened,
    uuid_of,
)

FORMAT = {"format": "openai_responses"}
GIVEN = (
    "system_instructions",
    "input",
    "model_settings",
    "tools",
    "output_schema",
    "handoffs",
    "tracing",
)
TAKEN = ("model", "input", "tools", "max_output_tokens")
ADDED = {"seq", "turn", "token_count", "format", "created_at", "conversation_id", "agent_id"}
ADDED |= {"output_ref", "content_truncated", "content_collected", "pinned", "visibility", "given"}
ADDED |= {"redacted_at"}


class ContextSession:
    """One conversation of the service, as a `Session` of the SDK that can compact as well.

    A `session_id` that is no UUID is made into one. `settings` are those of a new conversation:
    `model`, `policy`, `agent_id`. `request_id` names what the user asks for: a run that is repeated
    with the same one appends its input once, also in another process. Without it, a run that failed
    goes on with the input `[]`.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        service: AsyncContextClient,
        settings: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> None:
        self.session_id = session_id
        self.conversation_id = uuid_of(session_id)
        self._service = service
        self._settings = settings or {}
        self.asked: dict[str, Any] = dict(FORMAT)
        self._request_id = request_id
        self._is_open = False

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the context as it is now, with summaries and views; with `limit` its end.

        The runner of a bound agent asks for nothing (`limit=0`): its model is given the build. That
        is also what is asked for here once there was one: another would begin a new epoch.
        """
        try:
            built = await self.post("context", self.asked) if limit != 0 else None
        except ContextServiceError as error:
            if "has no messages" not in str(error):
                raise
            built = None
        items = built["payload"]["input"][: -len(built["tail"]) or None] if built else []
        said = [item for item in items if item.get("role") not in ("developer", "system")]
        return said[-limit:] if limit else said

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items to the log: all or none, and once even if the answer is lost on its way."""
        batch = [self._named(place, dict(item)) for place, item in enumerate(items)]
        if batch:
            await self.post("messages", {"messages": batch, **FORMAT})

    async def pop_item(self) -> TResponseInputItem | None:
        """Take back the newest item, to correct a turn or ask again; None if nothing is shown.

        The log never loses anything. So the session goes on in a fork that ends before the item,
        where later sessions of this id follow; the conversation that it leaves can still be read.
        """
        page = await self._get("/messages?order=desc&limit=100&content=full")
        shown = [said for said in page["data"] if said["visibility"]["state"] != "outside"]
        if not shown:
            return None
        start = next(place for place, said in enumerate(shown) if said["role"] != "tool")
        group: list[TResponseInputItem] = []
        for said in reversed(shown[: start + 1]):
            group += _items_of(said)
        old, metadata = self.conversation_id, (await self._get(""))["metadata"]
        fork = await self.post("fork", {"through_seq": shown[start]["seq"] - 1})
        self.conversation_id = metadata["continued_in"] = fork["conversation_id"]
        if start + 1 == len(shown):
            await self.clear_session()  # else the fork would show what was cleared before
        item = group.pop()
        while group and group[-1].get("type") == "reasoning":
            group.pop()  # nothing that it led to is left, and no provider takes it alone
        await self.add_items(group)
        await self._service.ask("PATCH", f"/conversations/{old}", {"metadata": metadata})
        return item

    async def clear_session(self) -> None:
        """Begin anew: nothing said so far is shown any more, and the log keeps all of it."""
        await self.post("clear")

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None) -> None:
        """Compact now if forced; otherwise builds and reports of usage see to it by themselves."""
        if args and args.get("force"):
            await self.post("compact", {})

    async def bound(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the agent with its model and tools bound here; bind each one it hands over to."""
        given = agent.model
        model = given if isinstance(given, Model) else MultiProvider().get_model(given)
        answer = await self._service.ask("GET", "/tool-definitions?format=openai_responses")
        own = [self._tool(definition) for definition in answer["tools"]]
        self.session_settings = SessionSettings(limit=0)
        return agent.clone(model=ContextModel(self, model, own), tools=[*agent.tools, *own])

    async def post(self, to: str, body: Any = None) -> Any:
        """Ask the service something of this conversation."""
        await self._open()
        return await self._service.ask("POST", f"/conversations/{self.conversation_id}/{to}", body)

    async def cut(self, error: openai.BadRequestError) -> Any:
        """Return a build without the oldest turns, if "too long" is what the provider said."""
        path = f"/conversations/{self.conversation_id}"
        return await self._service.run(cut(path, self.asked, error))

    async def _get(self, to: str) -> Any:
        await self._open()
        return await self._service.ask("GET", f"/conversations/{self.conversation_id}{to}")

    async def _open(self) -> None:
        """Create the conversation when it is not there, and follow it to its newest fork."""
        if self._is_open:
            return
        await self._service.run(opened(self.conversation_id, self._settings))
        newest = self.conversation_id
        while True:
            found = await self._service.ask("GET", f"/conversations/{newest}")
            if not (following := found["metadata"].get("continued_in")):
                break
            newest = following
        self.conversation_id, self._is_open = newest, True

    def _named(self, place: int, item: dict[str, Any]) -> dict[str, Any]:
        if item.get("id") == FAKE_RESPONSES_ID:
            del item["id"]
        if self._request_id and "role" in item and "id" not in item:
            text = f"{self._request_id} {place} {json.dumps(item, sort_keys=True)}"
            item["id"] = str(uuid.uuid5(uuid.NAMESPACE_URL, text))
        return item

    def _tool(self, definition: dict[str, Any]) -> FunctionTool:
        name, about, schema = (definition[key] for key in ("name", "description", "parameters"))

        async def run(context: ToolContext[Any], arguments: str) -> str:
            call = {"type": "function_call", "call_id": context.tool_call_id, "name": name}
            asked = {"tool_call": {**call, "arguments": arguments}, **FORMAT}
            return str((await self.post("tool-calls", asked))["message"]["output"])

        return FunctionTool(name, about, schema, run, strict_json_schema=False)


class ContextModel(Model):
    """A model that is given builds, reports what they cost, and tries once more when "too long"."""

    def __init__(self, session: ContextSession, model: Model, own: list[FunctionTool]) -> None:
        self._session = session
        self._model = model
        self._own = {tool.name for tool in own}

    async def get_response(self, *given: Any, **call: Any) -> ModelResponse:
        """Call the model with a build; the runner's items are in the log already."""
        call |= zip(GIVEN, given, strict=False)
        built = await self._session.post("context", self._ask_of(call))
        try:
            response = await self._model.get_response(**self._with(built, call))
        except openai.BadRequestError as error:
            built = await self._session.cut(error)
            response = await self._model.get_response(**self._with(built, call))
        await self._report(built, response.usage)
        return response

    async def stream_response(self, *given: Any, **call: Any) -> AsyncIterator[Event]:
        """Stream the same; "too long" is said before the first event."""
        call |= zip(GIVEN, given, strict=False)
        built = await self._session.post("context", self._ask_of(call))
        for may_cut in (True, False):
            try:
                async for event in self._model.stream_response(**self._with(built, call)):
                    if event.type == "response.completed":
                        await self._report(built, event.response.usage)
                    yield event
                return
            except openai.BadRequestError as error:
                if not may_cut:
                    raise
                built = await self._session.cut(error)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Leave that to the model."""
        return self._model.get_retry_advice(request)

    def _ask_of(self, call: dict[str, Any]) -> dict[str, Any]:
        """Say what a call needs; hosted tools, which the provider counts itself, are not told."""
        tools: list[Any] = Converter.convert_tools(call["tools"], call["handoffs"]).tools
        mine = [tool for tool in tools if tool["type"] == "function"]
        ask = {"tools": [tool for tool in mine if tool["name"] not in self._own], **FORMAT}
        text, limit = call["system_instructions"], call["model_settings"].max_tokens
        ask |= {"sections": [{"name": "instructions", "content": text}]} if text else {}
        ask |= {"max_output_tokens": limit} if limit else {}
        self._session.asked = {**ask, "model": getattr(self._model, "model", None)}
        return self._session.asked

    def _with(self, built: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
        """Put a payload in the place of what the runner has gathered."""
        payload = built["payload"]
        names = {tool.get("name") for tool in payload.get("tools", [])}
        extra = {name: value for name, value in payload.items() if name not in TAKEN}
        limits = ModelSettings(max_tokens=payload["max_output_tokens"], extra_args=extra)
        return {
            **call,
            "system_instructions": None,
            "input": payload["input"],
            "model_settings": call["model_settings"].resolve(limits),
            "tools": [
                tool
                for tool in call["tools"]
                if not isinstance(tool, FunctionTool) or tool.name in names
            ],
        }

    async def _report(self, built: dict[str, Any], usage: Any) -> None:
        names = ("input_tokens", "output_tokens", "total_tokens")
        spent: dict[str, Any] = {name: getattr(usage, name) for name in names}
        spent["input_tokens_details"] = {"cached_tokens": usage.input_tokens_details.cached_tokens}
        await self._session.post("usage", {"usage": spent, "build_id": built["build_id"], **FORMAT})


def _items_of(stored: dict[str, Any]) -> list[Any]:
    """Return the items of a message of the log, as they were said."""
    if stored["role"] == "assistant" and "type" not in stored and "output" in stored:
        return list(stored["output"])
    item = {name: value for name, value in stored.items() if name not in ADDED}
    if "_" not in item["id"]:
        del item["id"]  # made by the service, or of a request's id: no provider takes it
    if item.get("type", "message") != "message":
        del item["role"]
    return [item]

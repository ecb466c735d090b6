"""A LangChain middleware that has the Context Service keep the history and build each payload.

    context = ContextMiddleware("http://127.0.0.1:8080", settings={"model": "gpt-4.1"})
    agent = create_agent("openai:gpt-4.1", tools=[...], system_prompt="...", middleware=[context],
                         checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "chat-17"}}
    agent.invoke({"messages": [("user", "What failed?")]}, thread)

1. Before each call of the model the messages of the state go into the log of the thread's
   conversation, as LangChain's own converter says them to OpenAI. Their ids make that idempotent:
   a step that is repeated, or resumed from a checkpoint, appends nothing twice.
2. The model is given the build: its messages, its tools and its output limit. The system prompt is
   a section of it, the tools are counted in it.
3. A call of a tool that the agent has not got is one of the service's, which executes it.
4. The checkpoint keeps the messages of the newest turn; the older ones are removed from the state
   when a turn ends, for the log has them all.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    convert_to_messages,
    convert_to_openai_messages,
)
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command

from context_service_client.service import (
    BASE_URL,
    AsyncContextClient,
    ContextClient,
    Steps,
    asked,
    cut,
    opened,
    uuid_of,
)

MAX_MESSAGES = 1000

TAKEN = ("model", "messages", "tools", "max_completion_tokens")


class ContextMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """All threads of an agent, each with a conversation of the service.

    A `thread_id` that is no UUID is made into one. `settings` are those of a new conversation:
    `model`, `policy`, `agent_id`.
    """

    def __init__(
        self,
        base_url: str = BASE_URL,
        api_key: str | None = None,
        *,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.client = ContextClient(base_url, api_key)
        self.async_client = AsyncContextClient(base_url, api_key)
        self._settings = settings or {}
        self._logged: dict[str, set[str | None]] = {}

    # --- what LangChain calls -------------------------------------------------------------------

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with a build in place of the state's messages."""
        return cast("ModelResponse[Any]", self.client.run(self._call(request), handler))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Do the same without blocking."""
        return cast("ModelResponse[Any]", await self.async_client.run(self._call(request), handler))

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Have the service execute a call of a tool that is not the agent's."""
        if request.tool is not None:
            return handler(request)
        return cast("ToolMessage", self.client.run(self._execute(request.tool_call)))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Do the same without blocking."""
        if request.tool is not None:
            return await handler(request)
        return cast("ToolMessage", await self.async_client.run(self._execute(request.tool_call)))

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Log the answer, and leave only the newest turn to the checkpoint."""
        self._logged.pop(self.client.run(self._append(state["messages"])))
        return {"messages": _outdated(state["messages"])}

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Do the same without blocking."""
        self._logged.pop(await self.async_client.run(self._append(state["messages"])))
        return {"messages": _outdated(state["messages"])}

    # --- what is asked, and in which order ------------------------------------------------------

    def _call(self, request: ModelRequest[Any]) -> Steps:
        path, batch = yield from self._append_but_last(request.state["messages"])
        ask = _ask_of(request)
        step = {**ask, "append": {"messages": batch, "format": "openai_chat"}} if batch else ask
        built = yield from asked("POST", f"{path}/context", step)
        self._logged[path] = {message.id for message in request.state["messages"]}
        try:
            response = yield _with(request, built["payload"])
        except Exception as error:  # each provider has its own; the service knows "too long"
            built = yield from cut(path, ask, error)
            response = yield _with(request, built["payload"])
        if usage := _usage_of(response.result[0]):
            spent = {"usage": usage, "build_id": built["build_id"]}
            yield from asked("POST", f"{path}/usage", spent)
        return response

    def _execute(self, call: ToolCall) -> Steps:
        path = yield from self._opened()
        function = {"name": call["name"], "arguments": json.dumps(call["args"])}
        told = {"tool_call": {"id": call["id"], "type": "function", "function": function}}
        answer = yield from asked("POST", f"{path}/tool-calls", told)
        text, status = answer["message"]["content"], "error" if answer["is_error"] else "success"
        return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status=status)

    def _append(self, messages: Sequence[BaseMessage]) -> Steps:
        """Append the messages that are new in the state; the log skips those that it has."""
        path, batch = yield from self._append_but_last(messages)
        if batch:
            yield from asked("POST", f"{path}/messages", {"messages": batch})
        self._logged[path] = {message.id for message in messages}
        return path

    def _append_but_last(self, messages: Sequence[BaseMessage]) -> Steps:
        """Append all new batches but the last, and return that one for a request with it."""
        path = yield from self._opened()
        new = [_native(message) for message in messages if message.id not in self._logged[path]]
        while len(new) > MAX_MESSAGES:
            yield from asked("POST", f"{path}/messages", {"messages": new[:MAX_MESSAGES]})
            new = new[MAX_MESSAGES:]
        return path, new

    def _opened(self) -> Steps:
        thread = str(get_config()["configurable"]["thread_id"])
        path = f"/conversations/{uuid_of(thread)}"
        if path not in self._logged:
            yield from opened(thread, self._settings)
            self._logged[path] = set()
        return path


def _native(message: BaseMessage) -> dict[str, Any]:
    said = convert_to_openai_messages(message, include_id=True)
    if thought := message.additional_kwargs.get("reasoning_content"):
        said["reasoning_content"] = thought
    return said


def _ask_of(request: ModelRequest[Any]) -> dict[str, Any]:
    """Say what a call needs; a tool's `metadata` may give its category, such as `mcp`."""
    names = (getattr(request.model, name, None) for name in ("model_name", "model"))
    ask: dict[str, Any] = {"model": next(filter(None, names), None), "tools": []}
    for tool in request.tools:
        kind = (tool.metadata or {}).get("category") if isinstance(tool, BaseTool) else None
        if not _is_hosted(tool):
            ask["tools"].append({"category": kind or "builtin", **convert_to_openai_tool(tool)})
    if request.system_message:
        ask["sections"] = [{"name": "instructions", "content": request.system_message.text}]
    if limit := request.model_settings.get("max_tokens"):
        ask["max_output_tokens"] = limit
    return ask


def _with(request: ModelRequest[Any], payload: dict[str, Any]) -> ModelRequest[Any]:
    """Put a payload in the place of what LangChain has gathered."""
    messages = cast("list[AnyMessage]", convert_to_messages(payload["messages"]))
    system = messages.pop(0) if isinstance(messages[0], SystemMessage) else None
    hosted = [tool for tool in request.tools if _is_hosted(tool)]
    extra = {name: value for name, value in payload.items() if name not in TAKEN}
    limit = {"max_tokens": payload["max_completion_tokens"]}
    return request.override(
        system_message=cast("SystemMessage | None", system),
        messages=messages,
        tools=[*payload.get("tools", []), *hosted],
        model_settings={**request.model_settings, **extra, **limit},
    )


def _is_hosted(tool: BaseTool | dict[str, Any]) -> bool:
    return isinstance(tool, dict) and tool.get("type") != "function"


def _usage_of(message: BaseMessage) -> dict[str, Any] | None:
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    if not usage:
        return None
    return {
        "prompt_tokens": usage["input_tokens"],
        "prompt_tokens_details": {
            "cached_tokens": usage.get("input_token_details", {}).get("cache_read", 0)
        },
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
    }


def _outdated(messages: Sequence[BaseMessage]) -> list[RemoveMessage]:
    """Name the messages before the newest turn."""
    turns = [place for place, one in enumerate(messages) if isinstance(one, HumanMessage)]
    return [RemoveMessage(id=one.id or "") for one in messages[: turns[-1] if turns else 0]]

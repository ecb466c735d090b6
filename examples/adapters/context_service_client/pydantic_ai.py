"""A pydantic-ai history processor backed by the Context Service, as a capability of an agent.

    context = ContextHistory(AsyncContextClient("http://127.0.0.1:8080"), {"model": "gpt-4.1"})
    agent = Agent("openai-responses:gpt-4.1", instructions="...", capabilities=[context])
    result = await agent.run("What failed?", conversation_id="chat-17")

1. `process` is the history processor. What is new goes into the log of the conversation, as
   Responses items, reasoning and calls included; the build takes the place of the history. What
   the log has is marked in its `metadata`, and never appended again.
2. A run needs no `message_history`: the conversation is known by its id, in any process.
3. The agent's instructions are a section of the build, and its tools are counted in it. The model
   is offered the tools that the payload names; the service's own are executed by the service.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from pydantic_ai import (
    AgentRunResult,
    BinaryContent,
    FunctionToolset,
    ImageUrl,
    ModelHTTPError,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    RunContext,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserError,
    UserPromptPart,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.direct import model_request
from pydantic_ai.models import ModelRequestContext

from context_service_client.service import AsyncContextClient, cut, opened

FORMAT = {"format": "openai_responses"}
OPENAI = ("openai", "azure")
MADE = (TextPart, ThinkingPart, ToolCallPart)
STORED = "context_service"
"""Key of a message's metadata: the conversation whose log has it."""


@dataclass
class ContextHistory(AbstractCapability[Any]):
    """The history of all runs of an agent, each in the conversation that its run names.

    A `conversation_id` that is no UUID is made into one.
    `settings` are those of a new conversation: `model`, `policy`, `agent_id`. A run that is
    repeated with the same `metadata={"request_id": …}` appends its prompt once; one that failed
    goes on without a prompt, too.
    """

    client: AsyncContextClient
    settings: dict[str, Any] = field(default_factory=dict)
    _ask: dict[str, Any] = field(default_factory=lambda: dict(FORMAT), init=False)
    _built: dict[str, Any] = field(default_factory=dict, init=False)
    _path: str = field(default="", init=False)
    _own: dict[str, Tool[Any]] = field(default_factory=dict, init=False)
    _given: list[Any] = field(default_factory=list, init=False)

    async def process(
        self, ctx: RunContext[Any], messages: list[ModelMessage]
    ) -> list[ModelMessage]:
        """Append what is new, and return the history as the model is to see it."""
        path = await self._opened(ctx)
        new = self._new_in(messages)
        items = [item for message in new for item in _items_of(message)]
        if ctx.run_step == 1 and (request_id := (ctx.metadata or {}).get("request_id")):
            for place, item in enumerate(items):
                if item.get("role") == "user":
                    text = f"{request_id} {place} {json.dumps(item, sort_keys=True)}"
                    item["id"] = str(uuid.uuid5(uuid.NAMESPACE_URL, text))
        step = {**self._ask, "append": {"messages": items}} if items else self._ask
        self._built = await self.client.ask("POST", f"{path}/context", step)
        self._mark(new)
        return self._messages(ctx)

    async def for_run(self, ctx: RunContext[Any]) -> ContextHistory:
        """Keep what a run is at apart from other runs."""
        return replace(self)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Ask for a build of what this call needs, and put it in the place of the history."""
        given, settings = request_context.model_request_parameters, request_context.model_settings
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters_json_schema,
                "category": (tool.metadata or {}).get("category", "builtin"),
            }
            for tool in (*given.function_tools, *given.output_tools)
            if tool.name not in self._own
        ]
        self._ask = {"model": request_context.model.model_name, "tools": tools, **FORMAT}
        if parts := given.instruction_parts:
            text = "\n\n".join(part.content for part in parts)
            self._ask["sections"] = [{"name": "instructions", "content": text}]
        if limit := (settings or {}).get("max_tokens"):
            self._ask["max_output_tokens"] = limit
        self._given = given.function_tools
        request_context.messages = await self.process(ctx, request_context.messages)
        self._limit(request_context)
        return request_context

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Try once more when it was too long."""
        if not isinstance(error, ModelHTTPError):
            raise error
        self._built = await self.client.run(cut(self._path, self._ask, error))
        self._limit(request_context)
        return await model_request(
            request_context.model,
            self._messages(ctx),
            model_settings=request_context.model_settings,
            model_request_parameters=request_context.model_request_parameters,
        )

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Append the answer, and report what it cost."""
        await self._append([response])
        usage = response.usage
        spent: dict[str, Any] = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cache_read_tokens},
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        }
        report = {"usage": spent, "build_id": self._built["build_id"], **FORMAT}
        await self.client.ask("POST", f"{self._path}/usage", report)
        return response

    async def after_run(
        self, ctx: RunContext[Any], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Append what no call of the model came after, such as the result of an output tool."""
        await self._append(self._new_in(result.all_messages()))
        return result

    def get_toolset(self) -> Any:
        """Give the agent the service's own tools; the model sees them when a payload has them."""
        return self._tools

    async def _tools(self, ctx: RunContext[Any]) -> FunctionToolset[Any]:
        if not self._own:
            answer = await self.client.ask("GET", "/tool-definitions?format=openai_responses")
            self._own = {told["name"]: self._tool(told) for told in answer["tools"]}
        return FunctionToolset([*self._own.values()])

    def _tool(self, definition: dict[str, Any]) -> Tool[Any]:
        name, about, schema = (definition[key] for key in ("name", "description", "parameters"))

        async def run(ctx: RunContext[Any], **arguments: Any) -> str:
            call = {"type": "function_call", "call_id": ctx.tool_call_id, "name": name}
            asked = {"tool_call": {**call, "arguments": json.dumps(arguments)}, **FORMAT}
            answer = await self.client.ask("POST", f"{await self._opened(ctx)}/tool-calls", asked)
            return str(answer["message"]["output"])

        return Tool.from_schema(run, name, about, schema, takes_ctx=True)

    async def _opened(self, ctx: RunContext[Any]) -> str:
        if not self._path:
            self._path = await self.client.run(opened(ctx.conversation_id or "", self.settings))
        return self._path

    def _new_in(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        return [one for one in messages if (one.metadata or {}).get(STORED) != self._path]

    def _mark(self, messages: list[ModelMessage]) -> None:
        for message in messages:
            message.metadata = {**(message.metadata or {}), STORED: self._path}

    async def _append(self, messages: list[ModelMessage]) -> None:
        if items := [item for message in messages for item in _items_of(message)]:
            batch = {"messages": items, **FORMAT}
            await self.client.ask("POST", f"{self._path}/messages", batch)
        self._mark(messages)

    def _messages(self, ctx: RunContext[Any]) -> list[ModelMessage]:
        """Say the payload in messages: what the model made in a row is one, and so is the rest."""
        items, mark = self._built["payload"]["input"], {STORED: self._path}
        names = {item["call_id"]: item["name"] for item in items if "name" in item}
        parts = [part for item in items for part in _parts_of(item, ctx.model.system, names)]
        runs = groupby(parts, lambda part: isinstance(part, MADE))
        return [
            (ModelResponse if made else ModelRequest)(list(run), metadata=dict(mark))
            for made, run in runs
        ]

    def _limit(self, request_context: ModelRequestContext) -> None:
        """Take the payload's tools, output limit and cache key; its instructions are a message."""
        payload, given = self._built["payload"], request_context.model_request_parameters
        names = {tool.get("name") for tool in payload.get("tools", [])}
        offered = [tool for tool in self._given if tool.name in names]
        request_context.model_request_parameters = replace(
            given, function_tools=offered, instruction_parts=None
        )
        settings: Any = {**(request_context.model_settings or {})}
        settings["max_tokens"] = payload["max_output_tokens"]
        if key := payload.get("prompt_cache_key"):
            settings["openai_prompt_cache_key"] = key
        request_context.model_settings = settings


def _items_of(message: ModelMessage) -> list[dict[str, Any]]:
    """Say a message in items, as the Responses API has them."""
    items: list[dict[str, Any]] = []
    for part in message.parts:
        item = _item_of(part)
        last = items[-1] if items else {}
        if "id" in item and item["id"] == last.get("id"):  # one item was made into several parts
            key = "summary" if item["type"] == "reasoning" else "content"
            last[key] += item[key]
        else:
            items.append(item)
    return items


def _item_of(part: Any) -> dict[str, Any]:
    item: dict[str, Any]
    match part:
        case UserPromptPart(content=str(text)):
            return {"role": "user", "content": text}
        case UserPromptPart(content=several):
            return {"role": "user", "content": [_content_of(one) for one in several]}
        case RetryPromptPart(tool_name=None):
            return {"role": "user", "content": part.model_response()}
        case RetryPromptPart(tool_call_id=call_id):
            text = part.model_response()
            return {"type": "function_call_output", "call_id": call_id, "output": text}
        case ToolReturnPart(tool_call_id=call_id):
            text = part.model_response_str()
            return {"type": "function_call_output", "call_id": call_id, "output": text}
        case ThinkingPart(content=text, signature=sealed):
            summary = [{"type": "summary_text", "text": text}] if text else []
            item = {"type": "reasoning", "summary": summary}
            item |= {"encrypted_content": sealed} if sealed and part.provider_name in OPENAI else {}
        case TextPart(content=text):
            said = [{"type": "output_text", "text": text, "annotations": []}]
            item = {"type": "message", "role": "assistant", "content": said, "status": "completed"}
        case ToolCallPart(tool_name=name, tool_call_id=call_id):
            item = {"type": "function_call", "call_id": call_id, "name": name}
            item["arguments"] = part.args_as_json_str()
        case _:  # system prompts are sections: give the agent `instructions` in their place
            raise UserError(f"the log cannot keep a {type(part).__name__}")
    return item | ({"id": part.id} if part.id and part.provider_name in OPENAI else {})


def _content_of(content: UserContent) -> dict[str, Any]:
    match content:
        case str():
            return {"type": "input_text", "text": content}
        case ImageUrl(url=url):
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case BinaryContent(is_image=True, data_uri=uri):
            return {"type": "input_image", "image_url": uri, "detail": "auto"}
    raise UserError(f"the log cannot keep a {type(content).__name__}")


def _parts_of(item: dict[str, Any], provider: str, names: dict[str, str]) -> list[Any]:
    """Say an item in parts; what OpenAI has sealed or named goes back to no other provider."""
    provider = provider if provider in OPENAI else OPENAI[0]
    made: dict[str, Any] = {"id": item.get("id"), "provider_name": provider}
    match item:
        case {"role": "assistant", "content": content}:
            texts = [content] if isinstance(content, str) else _texts(content)
            return [TextPart(text, **made) for text in texts]
        case {"role": "user", "content": content}:
            return [UserPromptPart(content if isinstance(content, str) else _shown(content))]
        case {"role": _, "content": content}:
            text = content if isinstance(content, str) else "\n\n".join(_texts(content))
            return [SystemPromptPart(text)]
        case {"type": "reasoning", "summary": summary}:
            texts = _texts(summary) or [""]
            sealed = item.get("encrypted_content")
            return [ThinkingPart(text, signature=sealed, **made) for text in texts]
        case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
            return [ToolCallPart(name, arguments, call_id, **made)]
        case {"type": "function_call_output", "call_id": call_id, "output": output}:
            text = output if isinstance(output, str) else "\n".join(_texts(output))
            return [ToolReturnPart(names[call_id], text, call_id)]
    raise UserError(f"the payload has an item of type {item.get('type')!r}")


def _texts(parts: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for part in parts if "text" in part]


def _shown(parts: list[dict[str, Any]]) -> list[UserContent]:
    return [part["text"] if "text" in part else ImageUrl(part["image_url"]) for part in parts]

"""The adapters of three frameworks, with agents that really run over the served app.

1. Each framework talks over HTTP to a provider on the loopback, which refuses what a real one
   would, and to the service. Tracing of the frameworks is off; nothing else is reached.
2. The window is so small that the conversation is compacted on the way, and every log that a tool
   prints is larger than what its view may be.
3. A `Process` is a framework with an adapter as its users have it; a second one knows nothing of
   the first but the conversation's name.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import anthropic
import httpx
import litellm
import openai
import pydantic_ai
import pytest
import pytest_asyncio
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import Session, is_openai_responses_compaction_aware_session
from anthropic.lib.streaming._messages import accumulate_event
from context_service_client import AsyncContextClient, Built, ContextClient, uuid_of
from context_service_client.agents import ContextSession
from context_service_client.langchain import ContextMiddleware
from context_service_client.litellm import ContextCallback
from context_service_client.pydantic_ai import ContextHistory
from context_service_client.wrap import wrap
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    convert_to_messages,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from openai.lib.streaming.chat import ChatCompletionStreamState
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticModel
from pydantic_ai.providers.openai import OpenAIProvider

from app.blobs.preview import READ_LINES
from tests.documents import block
from tests.fake_llm import Behaviour, Request, status
from tests.fake_providers import NOTHING_FOUND, PROTOCOLS, Call, FakeProviders, Spent
from tests.judge import refusals
from tests.patience import PATIENCE_SECONDS

WINDOW = 3328
TURNS = 4
SETTINGS: dict[str, Any] = {
    "model": "gpt-5",
    "policy": {
        "budget": {"context_window": WINDOW, "max_output_tokens": 512},
        "tool_output": {"max_message_bytes": 1000, "offload_threshold_bytes": 1000},
        "compaction": {"mode": "inline"},
    },
}
INSTRUCTIONS = "You find needles in logs."
SYSTEM = ("system", "developer")
REF = re.compile(r"\bref(?:_id)?=\\*\"?(blob_[0-9a-f]+)")
NEEDLE = re.compile(r"needle-\d+")


def read_log(name: str) -> str:
    """Read a log."""
    lines = [f"{n:03} {f'needle-{name}' if n == 150 else 'nothing here'}" for n in range(300)]
    return "\n".join(lines)


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read_log",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
}


def asked(turn: int) -> str:
    """Return what the user says, which takes room."""
    return f"Look at log {turn}. " + "Mind that it is long, and that I need it soon. " * 12


def chat_stream(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a chat completion in chunks, and its usage in one of its own."""
    (choice,), usage = answer.pop("choices"), answer.pop("usage")
    said = choice["message"]
    pieces: list[dict[str, Any]] = [{"role": "assistant", "content": said["content"] and ""}]
    pieces += [{"content": half} for half in halves(said["content"])]
    for index, call in enumerate(said.get("tool_calls", [])):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        pieces.append(
            {"tool_calls": [{**call, "index": index, "function": {"name": name, "arguments": ""}}]}
        )
        for half in halves(arguments):
            pieces.append({"tool_calls": [{"index": index, "function": {"arguments": half}}]})
    chunk = {**answer, "object": "chat.completion.chunk"}
    for delta in pieces:
        yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield {**chunk, "choices": [end]}
    yield {**chunk, "choices": [], "usage": usage}


def responses_stream(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a response in events."""
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**answer, "output": [], "usage": None}}
    ]
    for index, item in enumerate(answer["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"content": []} if "content" in item else {}
        empty |= {"arguments": ""} if "arguments" in item else {}
        events.append({"type": "response.output_item.added", **at, "item": {**item, **empty}})
        if "content" in item:
            part, where = item["content"][0], {**at, "content_index": 0}
            blank = {**part, "text": ""}
            events.append({"type": "response.content_part.added", **where, "part": blank})
            for half in halves(part["text"]):
                delta = {"delta": half, "logprobs": []}
                events.append({"type": "response.output_text.delta", **where, **delta})
        for half in halves(item.get("arguments")):
            events.append({"type": "response.function_call_arguments.delta", **at, "delta": half})
        events.append({"type": "response.output_item.done", **at, "item": item})
    events.append({"type": "response.completed", "response": answer})
    yield from ({**event, "sequence_number": place} for place, event in enumerate(events))


def anthropic_stream(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message in events."""
    content, usage = answer.pop("content"), answer["usage"]
    yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
    for index, part in enumerate(content):
        is_text = part["type"] == "text"
        start: dict[str, Any] = {**part, "text": ""} if is_text else {**part, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for half in halves(part["text"] if is_text else json.dumps(part["input"])):
            delta = (
                {"type": "text_delta", "text": half}
                if is_text
                else {"type": "input_json_delta", "partial_json": half}
            )
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": usage}
    yield {"type": "message_stop"}


def unstreamed(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request without what makes its answer a stream."""
    return {name: value for name, value in body.items() if not name.startswith("stream")}


def halves(text: str | None) -> list[str]:
    """Return a text in two pieces."""
    return [text[: len(text) // 2], text[len(text) // 2 :]] if text else []


STREAMS = {
    "/v1/chat/completions": chat_stream,
    "/v1/responses": responses_stream,
    "/v1/messages": anthropic_stream,
}


class Readers(FakeProviders):
    """Agents that read a log, read on behind its view, and say what they have found there.

    Of three answers the first calls the agent's tool, the second the service's, the third speaks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answered = 0
        self.cut_off_at: int | None = None
        """The number of events after which streams break off."""
        self.fails_at: list[int] = []

    def complaint(self, request: Request) -> str | None:
        """Judge what is sent as if it were not streamed."""
        return super().complaint(replace(request, body=unstreamed(request.body)))

    def _act(self, request: Request) -> Behaviour:
        protocol = next(one for one in PROTOCOLS if one.path.fullmatch(request.path))
        if self.answered in self.fails_at:
            self.fails_at.remove(self.answered)
            return status(500, "out of order")
        if self.overflow_at == self.answered and not self.overflows:
            self.overflows += 1
            return Behaviour(status=400, body=protocol.too_long())
        turn, step = divmod(self.answered, 3)
        self.answered += 1
        sent = json.dumps(request.body)
        spent, body = Spent(len(sent) // 4, 0), request.body
        match step:
            case 0:
                call = Call(f"c{turn}a", "read_log", {"name": str(turn)})
                answer = protocol.calling([call], spent, body)
            case 1:
                where = {"ref_id": REF.findall(sent)[-1], "offset": 150, "limit": 1}
                answer = protocol.calling([Call(f"c{turn}b", READ_LINES, where)], spent, body)
            case _:
                answer = protocol.saying(f"In log {turn} is {NEEDLE.findall(sent)[-1]}.", spent)
        answer = json.loads(json.dumps(answer).replace("msg_1", f"msg_{turn}"))
        if body.get("stream"):
            events = tuple(STREAMS[request.path](answer))
            return Behaviour(events=events[: self.cut_off_at])
        return Behaviour(body=answer)


@pytest.fixture
def provider() -> Iterator[Readers]:
    """The agents' provider."""
    server = Readers()
    yield server
    server.stop()


class Told:
    """What a service answered its adapters: builds and reports of usage."""

    def __init__(self) -> None:
        self.builds: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []

    def watch(self, client: httpx.AsyncClient | httpx.Client) -> None:
        """Keep what this client is answered."""
        is_async = isinstance(client, httpx.AsyncClient)
        client.event_hooks = {"response": [self._aread if is_async else self._read]}

    async def _aread(self, response: httpx.Response) -> None:
        await response.aread()
        self._keep(response)

    def _read(self, response: httpx.Response) -> None:
        response.read()
        self._keep(response)

    def _keep(self, response: httpx.Response) -> None:
        match response.request.url.path.rsplit("/", 1)[-1]:
            case "context" if response.is_success:
                self.builds.append(response.json())
                self.reports += filter(None, [response.json()["reported"]])
            case "overflow" if response.is_success:
                self.builds.append(response.json()["context"])
            case "usage":
                self.reports.append(response.json())


# --- the frameworks -----------------------------------------------------------------------------


class Process(ABC):
    """One process with an agent, in which one user has one conversation."""

    format = "openai_responses"

    def __init__(self, served: str, provider: Readers) -> None:
        self.service = httpx.Client(base_url=f"{served}/v1", timeout=PATIENCE_SECONDS)
        self.told = Told()
        self.openai = openai.AsyncOpenAI(base_url=provider.api_base, api_key="test", max_retries=0)

    @property
    @abstractmethod
    def conversation_id(self) -> str:
        """The conversation's id at the service."""

    @abstractmethod
    async def say(self, text: str, request_id: str) -> str:
        """Run the agent until it answers this; with an id of before, do it again."""

    async def close(self) -> None:
        """Close all connections."""
        self.service.close()
        await self.openai.close()


class AgentsSdk(Process):
    """The OpenAI Agents SDK; a session for each request, as a web server has them."""

    def __init__(self, served: str, provider: Readers) -> None:
        super().__init__(served, provider)
        self.client = AsyncContextClient(served)
        self.told.watch(self.client)
        self.session = self.session_of("")

    def session_of(self, request_id: str) -> ContextSession:
        """Return the conversation's session for a request."""
        return ContextSession("chat-1", self.client, SETTINGS, request_id=request_id)

    @property
    def conversation_id(self) -> str:
        """The conversation's id at the service."""
        return self.session.conversation_id

    async def agent(self) -> Agent[Any]:
        """Return an agent that is bound to the session."""
        settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
        agent: Agent[Any] = Agent(
            name="reader",
            instructions=INSTRUCTIONS,
            model=OpenAIResponsesModel("gpt-5", self.openai),
            model_settings=settings,
            tools=[function_tool(read_log)],
        )
        return await self.session.bound(agent)

    async def say(self, text: str, request_id: str) -> str:
        """Run it with the runner."""
        self.session = self.session_of(request_id)
        config = RunConfig(tracing_disabled=True)
        done = await Runner.run(await self.agent(), text, session=self.session, run_config=config)
        return str(done.final_output)

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        await self.client.aclose()


class ChatModel(BaseChatModel):
    """OpenAI's Chat Completions, as small as a model of LangChain can be."""

    client: openai.OpenAI
    async_client: openai.AsyncOpenAI

    @property
    def _llm_type(self) -> str:
        return "chat"

    def bind_tools(self, tools: Sequence[Any], **more: Any) -> Runnable[Any, AIMessage]:
        """Keep the tools for the call; these are as OpenAI has them already."""
        return self.bind(tools=list(tools), **more)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **more: Any
    ) -> ChatResult:
        return _result(self.client.chat.completions.create(**_asked(messages, **more)))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **more: Any
    ) -> ChatResult:
        asked = _asked(messages, **more)
        return _result(await self.async_client.chat.completions.create(**asked))


def _asked(
    messages: list[BaseMessage], max_tokens: int, tool_choice: Any = None, **more: Any
) -> dict[str, Any]:
    said = convert_to_openai_messages(messages)
    return {"model": "fake", "messages": said, "max_completion_tokens": max_tokens, **more}


def _result(answer: Any) -> ChatResult:
    said = answer.choices[0].message
    (message,) = convert_to_messages([said.to_dict() | {"content": said.content or ""}])
    assert isinstance(message, AIMessage)
    message.usage_metadata = {
        "input_tokens": answer.usage.prompt_tokens,
        "output_tokens": answer.usage.completion_tokens,
        "total_tokens": answer.usage.total_tokens,
    }
    return ChatResult(generations=[ChatGeneration(message=message)])


class LangChain(Process):
    """LangChain with checkpoints of its own; the user's message has an id."""

    format = "openai_chat"

    def __init__(self, served: str, provider: Readers) -> None:
        super().__init__(served, provider)
        base_url = provider.api_base
        self.blocking = openai.OpenAI(base_url=base_url, api_key="test", max_retries=0)
        self.context = ContextMiddleware(served, settings=SETTINGS)
        self.told.watch(self.context.async_client)
        self.told.watch(self.context.client)
        self.agent: Any = create_agent(
            ChatModel(client=self.blocking, async_client=self.openai),
            tools=[tool(read_log)],
            system_prompt=INSTRUCTIONS,
            middleware=[self.context],
            checkpointer=InMemorySaver(),
        )
        self.thread: RunnableConfig = {"configurable": {"thread_id": "chat-1"}}

    @property
    def conversation_id(self) -> str:
        """The conversation's id at the service."""
        return uuid_of("chat-1")

    async def say(self, text: str, request_id: str) -> str:
        """Run it; what a checkpoint has is resumed."""
        state = (await self.agent.aget_state(self.thread)).values.get("messages", [])
        is_known = request_id in [message.id for message in state]
        message = {"role": "user", "content": text, "id": request_id}
        given = None if is_known else {"messages": [message]}
        done = await self.agent.ainvoke(given, self.thread)
        return str(done["messages"][-1].content)

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        self.blocking.close()
        self.context.client.close()
        await self.context.async_client.aclose()


class BlockingLangChain(LangChain):
    """The same agent in sync code."""

    async def say(self, text: str, request_id: str) -> str:
        """Run it in a thread, for the message of the user alone."""
        message = {"role": "user", "content": text, "id": request_id}
        done = await asyncio.to_thread(self.agent.invoke, {"messages": [message]}, self.thread)
        return str(done["messages"][-1].content)


class PydanticAi(Process):
    """pydantic-ai, whose runs have no history but what the service has."""

    def __init__(self, served: str, provider: Readers) -> None:
        super().__init__(served, provider)
        self.client = AsyncContextClient(served)
        self.told.watch(self.client)
        self.agent = pydantic_ai.Agent(
            PydanticModel("gpt-5", provider=OpenAIProvider(openai_client=self.openai)),
            instructions=INSTRUCTIONS,
            tools=[read_log],
            capabilities=[ContextHistory(self.client, SETTINGS)],
        )

    @property
    def conversation_id(self) -> str:
        """The conversation's id at the service."""
        return uuid_of("chat-1")

    async def say(self, text: str, request_id: str) -> str:
        """Run it."""
        metadata = {"request_id": request_id}
        done = await self.agent.run(text, conversation_id="chat-1", metadata=metadata)
        return done.output

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        await self.client.aclose()


class Wrapped(Process):
    """A loop over an SDK whose client is wrapped, with the messages of a request in a list."""

    create: tuple[str, ...]
    root = "api_base"
    sdk: tuple[type[Any], type[Any]] = (openai.OpenAI, openai.AsyncOpenAI)
    asked: ClassVar[dict[str, Any]] = {"model": "gpt-5", "tools": [TOOL]}

    def __init__(self, served: str, provider: Readers, is_async: bool, is_stream: bool) -> None:
        super().__init__(served, provider)
        self.is_async, self.is_stream = is_async, is_stream
        self.client = (AsyncContextClient if is_async else ContextClient)(served)
        self.told.watch(self.client)
        self.model = self.sdk[is_async](
            base_url=getattr(provider, self.root), api_key="test", max_retries=0
        )
        self.said: dict[str, list[Any]] = {}

    @property
    def conversation_id(self) -> str:
        """The conversation's id at the service."""
        return uuid_of("chat-1")

    async def say(self, text: str, request_id: str) -> str:
        """Run the loop, on with the messages that it has."""
        client = wrap(self.model, "chat-1", self.client, SETTINGS, request_id)
        messages = self.said.setdefault(request_id, [{"role": "user", "content": text}])
        while True:
            answer = await self.answer(client, self.asked | self.sent(messages))
            calls = self.taken(messages, answer)
            if not calls:
                return self.text(answer)
            for call_id, arguments in calls:
                messages.append(self.result(call_id, read_log(**arguments)))

    async def answer(self, client: Any, asked: dict[str, Any]) -> Any:
        """Call the model, and put a stream together with the SDK."""
        create = client
        for name in self.create:
            create = getattr(create, name)
        asked |= {"stream": True} if self.is_stream else {}
        if self.is_async:
            answer = await create(**asked)
            return self.joined([event async for event in answer]) if self.is_stream else answer
        answer = await asyncio.to_thread(create, **asked)
        return self.joined(await asyncio.to_thread(list, answer)) if self.is_stream else answer

    def sent(self, messages: list[Any]) -> dict[str, Any]:
        """Return the fields of a request that hold the messages."""
        return {"messages": [{"role": "system", "content": INSTRUCTIONS}, *messages]}

    @abstractmethod
    def joined(self, events: list[Any]) -> Any:
        """Return the answer of a stream."""

    @abstractmethod
    def taken(self, messages: list[Any], answer: Any) -> list[tuple[str, dict[str, Any]]]:
        """Add an answer to the messages, and return its calls."""

    @abstractmethod
    def text(self, answer: Any) -> str:
        """Return the text of an answer."""

    @abstractmethod
    def result(self, call_id: str, text: str) -> dict[str, Any]:
        """Return the result of a call."""

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        if isinstance(self.client, AsyncContextClient):
            await self.client.aclose()
            await self.model.close()
        else:
            self.client.close()
            self.model.close()


class WrappedChat(Wrapped):
    """Chat Completions."""

    format = "openai_chat"
    create = ("chat", "completions", "create")

    def joined(self, events: list[Any]) -> Any:
        """Return the answer of a stream."""
        state = ChatCompletionStreamState()
        for event in events:
            state.handle_chunk(event)
        return state.get_final_completion()

    def taken(self, messages: list[Any], answer: Any) -> list[tuple[str, dict[str, Any]]]:
        """Add an answer to the messages, and return its calls."""
        said = answer.choices[0].message
        messages.append({"role": "assistant", **said.to_dict(exclude_unset=False)})
        calls = said.tool_calls or []
        return [(call.id, json.loads(call.function.arguments)) for call in calls]

    def text(self, answer: Any) -> str:
        """Return the text of an answer."""
        return str(answer.choices[0].message.content)

    def result(self, call_id: str, text: str) -> dict[str, Any]:
        """Return the result of a call."""
        return {"role": "tool", "tool_call_id": call_id, "content": text}


class LiteLlm(WrappedChat):
    """LiteLLM with the callback; the loop executes the service's tools itself."""

    asked: ClassVar[dict[str, Any]] = {"model": "openai/gpt-4.1", "tools": [TOOL]}

    def __init__(self, served: str, provider: Readers, is_stream: bool = False) -> None:
        super().__init__(served, provider, is_async=True, is_stream=is_stream)
        self.callback = ContextCallback(cast(AsyncContextClient, self.client), **SETTINGS)
        # LiteLLM keeps the callbacks of the tests before in lists of its own.
        litellm.logging_callback_manager._reset_all_callbacks()
        litellm.callbacks = [self.callback]
        # A client that LiteLLM makes is open until something collects it: it gets ours.
        self.reached = {"client": self.model, "api_key": "test", "max_retries": 0}

    async def say(self, text: str, request_id: str) -> str:
        """Run the loop, on with the messages that it has."""
        messages = self.said.setdefault(request_id, [{"role": "user", "content": text}])
        named = {"conversation": "chat-1", "request_id": request_id}
        while True:
            asked = self.asked | self.sent(messages) | {"metadata": named} | self.reached
            answer = await litellm.acompletion(**asked, stream=self.is_stream)
            if self.is_stream:
                answer = litellm.stream_chunk_builder([chunk async for chunk in answer])
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            for call in messages[-1].get("tool_calls", []):
                messages.append(await self.executed(call))
            if messages[-1]["role"] == "assistant":
                return str(messages[-1]["content"])

    async def executed(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a call of either tool."""
        function = call["function"]
        if function["name"] == "read_log":
            return self.result(call["id"], read_log(**json.loads(function["arguments"])))
        path = f"/conversations/{self.conversation_id}/tool-calls"
        told = ask(self, path, {"tool_call": call})["message"]
        assert isinstance(told, dict)
        return told


class WrappedResponses(Wrapped):
    """Responses."""

    create = ("responses", "create")
    asked: ClassVar[dict[str, Any]] = {
        "model": "gpt-5",
        "tools": [{"type": "function", **TOOL["function"]}],
        "instructions": INSTRUCTIONS,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }

    def sent(self, messages: list[Any]) -> dict[str, Any]:
        """Return the fields of a request that hold the messages."""
        return {"input": messages}

    def joined(self, events: list[Any]) -> Any:
        """Return the answer of a stream, whose events count on."""
        assert [event.sequence_number for event in events] == list(range(len(events)))
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert done == events[-1].response.output
        return events[-1].response

    def taken(self, messages: list[Any], answer: Any) -> list[tuple[str, dict[str, Any]]]:
        """Add an answer to the messages, and return its calls."""
        messages += answer.output
        calls = [item for item in answer.output if item.type == "function_call"]
        return [(call.call_id, json.loads(call.arguments)) for call in calls]

    def text(self, answer: Any) -> str:
        """Return the text of an answer."""
        return str(answer.output_text)

    def result(self, call_id: str, text: str) -> dict[str, Any]:
        """Return the result of a call."""
        return {"type": "function_call_output", "call_id": call_id, "output": text}


class WrappedAnthropic(Wrapped):
    """Anthropic Messages."""

    format = "anthropic"
    create = ("messages", "create")
    root = "root"
    sdk = (anthropic.Anthropic, anthropic.AsyncAnthropic)
    asked: ClassVar[dict[str, Any]] = {
        "model": "claude-sonnet-5",
        "tools": [{"name": "read_log", "input_schema": TOOL["function"]["parameters"]}],
        "system": INSTRUCTIONS,
        "max_tokens": 512,
    }

    def sent(self, messages: list[Any]) -> dict[str, Any]:
        """Return the fields of a request that hold the messages."""
        return {"messages": messages}

    def joined(self, events: list[Any]) -> Any:
        """Return the answer of a stream."""
        answer, pieces = None, dict[int, bytes]()
        for event in events:
            answer = accumulate_event(event=event, current_snapshot=answer, json_bufs=pieces)
        return answer

    def taken(self, messages: list[Any], answer: Any) -> list[tuple[str, dict[str, Any]]]:
        """Add an answer to the messages, and return its calls."""
        messages.append({"role": "assistant", "content": answer.content})
        return [(block.id, block.input) for block in answer.content if block.type == "tool_use"]

    def text(self, answer: Any) -> str:
        """Return the text of an answer, whose parts before hidden calls are in it."""
        return str(answer.content[-1].text)

    def result(self, call_id: str, text: str) -> dict[str, Any]:
        """Return the result of a call."""
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return {"role": "user", "content": [block]}


WRAPPED: list[Callable[[str, Readers], Wrapped]] = [
    partial(WrappedChat, is_async=False, is_stream=True),
    partial(WrappedChat, is_async=True, is_stream=False),
    partial(WrappedResponses, is_async=False, is_stream=False),
    partial(WrappedResponses, is_async=True, is_stream=True),
    partial(WrappedAnthropic, is_async=False, is_stream=True),
    partial(WrappedAnthropic, is_async=True, is_stream=False),
    LiteLlm,
]
NAMES = ["chat", "achat", "responses", "aresponses", "anthropic", "aanthropic", "litellm"]


Start = Callable[[], Process]
P = TypeVar("P", bound=Process)


class Launch:
    """Starts processes, and closes them at the test's end."""

    def __init__(self, served: str, provider: Readers) -> None:
        self._given = served, provider
        self.running: list[Process] = []

    def __call__(self, kind: Callable[[str, Readers], P]) -> P:
        """Start one."""
        process = kind(*self._given)
        self.running.append(process)
        return process


@pytest_asyncio.fixture
async def launch(served: str, provider: Readers) -> AsyncIterator[Launch]:
    """What starts a process of a framework."""
    launch = Launch(served, provider)
    yield launch
    for process in launch.running:
        await process.close()


@pytest.fixture(
    params=[AgentsSdk, LangChain, BlockingLangChain, PydanticAi, *WRAPPED],
    ids=["agents", "langchain", "blocking-langchain", "pydantic-ai", *NAMES],
)
def start(request: pytest.FixtureRequest, launch: Launch) -> Start:
    """The same for each framework in turn."""
    return lambda: launch(request.param)


# --- what is looked at --------------------------------------------------------------------------


def ask(process: Process, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask the service, as others than the adapters do."""
    answer = process.service.request("POST" if body else "GET", path, json=body)
    return answer.raise_for_status().json()


def assert_logged(process: Process, turns: int) -> None:
    """Assert that the log has every message of these turns once, in order, and whole."""
    path = f"/conversations/{process.conversation_id}/messages?content=full&limit=1000"
    expected: list[tuple[str, str]] = []
    for turn in range(turns):
        expected += [
            ("user", asked(turn)),
            ("assistant", f'"c{turn}a"'),
            ("tool", json.dumps(read_log(str(turn)))),
            ("assistant", f'"c{turn}b"'),
            ("tool", f"150 needle-{turn}"),
            ("assistant", f"In log {turn} is needle-{turn}."),
        ]
    log = ask(process, path)["data"]
    assert [message["role"] for message in log] == [role for role, _ in expected]
    for message, (_, text) in zip(log, expected, strict=True):
        assert text in json.dumps(message)


def assert_built(process: Process, requests: Sequence[Request], builds: Sequence[Any]) -> None:
    """Assert that the model was called with builds, all valid and inside the window."""
    for request, built in zip(requests, builds, strict=True):
        body, payload = request.body, built["payload"]
        assert said_in(body) == said_in(payload)
        assert names_in(body) == names_in(payload)
        assert limit_of(body) == limit_of(payload)
        assert refusals(process.format, unstreamed(body)) == []
        assert tokens_of(process, body) + limit_of(body) <= WINDOW


def tokens_of(process: Process, body: dict[str, Any]) -> int:
    """Count what a provider got, as `/v1/tokens/count` does."""
    items = items_in(body)
    system = [item for item in items if item.get("role") in SYSTEM]
    system += [{"content": body["system"]}] if "system" in body else []
    counted = {
        "format": process.format,
        "messages": [item for item in items if item.get("role") not in SYSTEM],
        "text": "".join(map(text_of, system)),
        "tools": body.get("tools", []),
        "model": "gpt-5",
    }
    return int(ask(process, "/tokens/count", counted)["token_count"])


def items_in(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a payload."""
    return list(body["input"] if "input" in body else body["messages"])


def text_of(item: dict[str, Any]) -> str:
    """Return the text of a message's content."""
    content = item["content"]
    return content if isinstance(content, str) else "\n\n".join(one["text"] for one in content)


def limit_of(body: dict[str, Any]) -> int:
    """Return the output limit of a payload."""
    names = ("max_output_tokens", "max_completion_tokens", "max_tokens")
    return int(next(body[name] for name in names if name in body))


def names_in(body: dict[str, Any]) -> set[str]:
    """Return the names of the tools of a payload."""
    return {tool.get("function", tool)["name"] for tool in body.get("tools", [])}


def said_in(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items without what frameworks word in their own way, and that alone.

    pydantic-ai calls a developer message a system one, leaves out the type of messages and the
    status of calls, and says one text as a string; LangChain writes the JSON of arguments anew,
    and nothing as "".
    """
    return [_said(json.loads(json.dumps(item))) for item in items_in(body)]


def _said(item: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in item.items() if value not in (None, "", [])}
    if "role" in said:
        said["role"] = "system" if said["role"] in SYSTEM else said["role"]
        said.pop("type", None)
    if "content" in said and all("text" in part for part in said["content"]):
        said["content"] = text_of(said)
    said.pop("status", None)
    for call in [said, *(call["function"] for call in said.get("tool_calls", []))]:
        if "arguments" in call:
            call["arguments"] = json.loads(call["arguments"])
    return said


# --- all frameworks -----------------------------------------------------------------------------


async def test_the_service_builds_what_the_model_is_called_with(
    start: Start, provider: Readers
) -> None:
    """A conversation is compacted inside its runs, and goes on in a second process."""
    first, second = start(), start()
    for turn in range(TURNS):
        process = first if turn < TURNS - 2 else second
        said = await process.say(asked(turn), f"request-{turn}")
        assert said == f"In log {turn} is needle-{turn}."
    builds = first.told.builds + second.told.builds
    assert provider.refused == []
    assert_logged(second, TURNS)
    assert_built(second, provider.requests, builds)
    assert any(built["diagnostics"]["summary_used"] for built in builds)
    assert_read_on(provider.requests)
    reports = first.told.reports + second.told.reports
    assert [report["current"] for report in reports] == [True] * len(provider.requests)


def assert_read_on(requests: Sequence[Request]) -> None:
    """Assert that logs were sent as views, and the tool to read on from the next turn on."""
    assert READ_LINES not in names_in(requests[0].body)
    assert READ_LINES in names_in(requests[3].body)
    for request in requests:
        assert "299 nothing here" not in json.dumps(request.body)


async def test_a_run_that_failed_is_repeated(start: Start, provider: Readers) -> None:
    """Whichever calls of the model fail, the log has every message once in the end."""
    process = start()
    await process.say(asked(0), "request-0")
    provider.fails_at = [3, 4, 5]
    for _ in range(3):
        with pytest.raises(Exception, match="out of order"):
            await process.say(asked(1), "request-1")
    assert await process.say(asked(1), "request-1") == "In log 1 is needle-1."
    assert provider.refused == []
    assert_logged(process, 2)
    assert_built(process, provider.requests, process.told.builds)


# --- what one of them has -----------------------------------------------------------------------


async def shown_by(session: Any, limit: int | None = None) -> list[str]:
    """Return what a session shows: the role, or the type, of each item."""
    return [item.get("role") or item["type"] for item in await session.get_items(limit)]


async def test_a_session_is_what_the_sdk_asks_for(launch: Launch, provider: Readers) -> None:
    """Its items are the context; clear hides them, and the log stays [window.clear]."""
    process = launch(AgentsSdk)
    session: Session = process.session
    assert isinstance(session, Session)
    assert is_openai_responses_compaction_aware_session(session)
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await process.say(asked(0), "request-0")
    session = process.session
    call = ["function_call", "function_call_output"]
    step = ["reasoning", *call]
    assert await shown_by(session) == ["user", *step, *step, "assistant"]
    assert await shown_by(session, 2) == ["function_call_output", "assistant"]
    assert await session.get_items(0) == []
    await session.run_compaction({"force": True})
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    assert_logged(process, 1)


def log_of(process: Process) -> list[str]:
    """Return the roles in a log."""
    path = f"/conversations/{process.conversation_id}/messages"
    return [message["role"] for message in ask(process, path)["data"]]


async def test_nothing_is_stored_of_a_stream_that_breaks_off(
    launch: Launch, provider: Readers
) -> None:
    """The same call is then made again."""
    process = launch(WRAPPED[0])
    client = wrap(process.model, "chat-1", process.client, SETTINGS)
    asked_first = process.asked | process.sent([{"role": "user", "content": asked(0)}])
    provider.cut_off_at = 3
    assert len(list(client.chat.completions.create(**asked_first, stream=True))) == 3
    assert log_of(process) == ["user"]
    provider.cut_off_at, provider.answered = None, 0
    assert list(client.chat.completions.create(**asked_first, stream=True))
    assert log_of(process) == ["user", "assistant"]


async def test_lost_answers_of_the_service_are_asked_for_again(
    launch: Launch, provider: Readers
) -> None:
    """What was stored before the connection broke is stored once."""
    process = launch(WRAPPED[2])
    lost: set[str] = set()

    def lose(response: httpx.Response) -> None:
        end = response.request.url.path.rsplit("/", 1)[-1]
        if end in ("context", "messages", "usage") and end not in lost:
            lost.add(end)
            raise httpx.ReadError("The connection broke.")

    process.client.event_hooks["response"].insert(0, lose)
    assert await process.say(asked(0), "request-0") == "In log 0 is needle-0."
    assert lost == {"context", "messages", "usage"}
    assert_logged(process, 1)
    usage = ask(process, f"/conversations/{process.conversation_id}/usage")
    assert usage["totals"]["reported"]["calls"] == 3


async def test_messages_go_on_in_another_process_and_are_not_changed(
    launch: Launch, provider: Readers
) -> None:
    """Without a request's id a call has the conversation from its beginning, or is refused."""
    first, second = launch(WRAPPED[2]), launch(WRAPPED[2])
    messages: list[Any] = [{"role": "user", "content": asked(0)}]
    clients = [wrap(one.model, "chat-1", one.client, SETTINGS) for one in (first, second)]
    for process, client in zip((first, second), clients, strict=True):
        answer = client.responses.create(**process.asked, **process.sent(messages))
        for call_id, arguments in process.taken(messages, answer):
            messages.append(process.result(call_id, read_log(**arguments)))
    assert_logged(second, 1)
    messages[0] = {"role": "user", "content": "Something else."}
    with pytest.raises(openai.ConflictError, match="do not continue") as refused:
        clients[1].responses.create(**second.asked, **second.sent(messages))
    assert refused.value.code == "HistoryChanged"
    assert provider.calls == 3


@pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")  # by LiteLLM
@pytest.mark.parametrize("is_late", [True, False])
async def test_a_streamed_answer_of_litellm_is_stored_once(
    is_late: bool, launch: Launch, provider: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiteLLM tells of it after its end: during the next call, or when that has appended it."""
    tells, stored = asyncio.Event(), asyncio.Semaphore(0)
    tell = ContextCallback.async_log_success_event

    async def told(callback: ContextCallback, **event: Any) -> None:
        await tells.wait()
        await tell(callback, **event)
        stored.release()

    monkeypatch.setattr(ContextCallback, "async_log_success_event", told)
    process = launch(partial(LiteLlm, is_stream=True))
    if not is_late:
        tells.set()
    assert await process.say(asked(0), "request-0") == "In log 0 is needle-0."
    tells.set()
    for _ in range(3):
        await stored.acquire()
    assert_logged(process, 1)
    usage = ask(process, f"/conversations/{process.conversation_id}/usage")
    assert usage["totals"]["reported"]["calls"] == 3
    assert provider.refused == []


async def test_too_long_is_survived(launch: Launch, provider: Readers) -> None:
    """The call is made once more, without the oldest turns [compaction.overflow-errors]."""
    process = launch(WRAPPED[4])
    await process.say(asked(0), "request-0")
    provider.overflow_at = 3
    assert await process.say(asked(1), "request-1") == "In log 1 is needle-1."
    assert (provider.overflows, provider.refused) == (1, [])
    assert_logged(process, 2)


# --- docs/integration ---------------------------------------------------------------------------

LOCAL = "http://127.0.0.1:8080"
ROOT = Path(__file__).parents[1]


def code(page: str) -> str:
    """Return the Python of the page of a framework."""
    document = (ROOT / "docs" / "integration" / f"{page}.md").read_text(encoding="utf-8")
    return block(document, "python").replace(
        "from langchain.chat_models import init_chat_model\n", ""
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a script's end closes what it has opened
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("page", ["openai-agents", "langchain", "pydantic-ai", "wrap", "litellm"])
def test_the_code_of_the_document_runs_as_printed(
    page: str, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each agent finds the failure in a file of which its model sees a part; others just answer.

    LangChain's model is the test's own, since its package for OpenAI is not among ours.

    [agent-tools.definitions, payload.one-call]
    """
    lines = [f"{n} {'FAILED' if n == 4242 else 'ok'} parser\n" for n in range(9000)]
    (tmp_path / "build.log").write_text("".join(lines))
    provider = FakeProviders()
    provider.arguments = {"path": "build.log"}
    blocking = openai.OpenAI(base_url=provider.api_base, api_key="test", max_retries=0)
    model = ChatModel(client=blocking, async_client=openai.AsyncOpenAI(api_key="test"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    set_tracing_disabled(True)
    printed = io.StringIO()
    with redirect_stdout(printed), blocking:
        exec(code(page).replace(LOCAL, served), {"init_chat_model": lambda name: model})
    litellm.in_memory_llm_clients_cache.flush_cache()
    gc.collect()  # what was left open ends here, not in a later test
    found = NOTHING_FOUND if page in ("wrap", "litellm") else "4242 FAILED parser"
    assert printed.getvalue().splitlines()[-1] == found
    assert provider.refused == []
    provider.stop()


# --- the package --------------------------------------------------------------------------------


def test_the_types_of_the_package_are_those_of_the_api() -> None:
    """What it says of a build is what openapi.json says."""
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))
    assert set(Built.__annotations__) == set(
        document["components"]["schemas"]["BuiltContext"]["properties"]
    )

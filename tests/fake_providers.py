"""Providers on the loopback, each with its own protocol, and one agent behind them all.

1. The agent calls the first tool it is offered; then the service's own search of stored output,
   where the payload has it, and the second tool beside it; then it says what the search found.
2. A payload that `tests.judge` refuses is refused. `refused` keeps the reasons.
3. `overflow_at` has one request answered as by a provider whose window is full.
4. Usage is reported in the provider's own shape; what an earlier request held comes from a cache.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.blobs.preview import GREP
from app.policy.policy import AGENT_TOOL_NAMES
from tests.fake_llm import Behaviour, FakeLLM, Request
from tests.judge import Facts, refusals

Body = dict[str, Any]

FOUND = re.compile(r"\b(\d+ FAILED \w+)")
NOTHING_FOUND = "I found no failure."
_REF = re.compile(r"\bref(?:_id)?=\\*\"?(blob_[0-9a-f]+)")
_BYTES_PER_TOKEN = 4
_OUTPUT_TOKENS = 20
_REASONING = "c2VhbGVkIHRob3VnaHRz"


@dataclass(frozen=True)
class Call:
    """A tool call of the agent, before a provider has put it into its own words."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Spent:
    """The tokens of one request; `sent` includes those that were cached."""

    sent: int
    cached: int

    @property
    def total(self) -> int:
        """Everything, the answer included."""
        return self.sent + _OUTPUT_TOKENS


class Protocol(ABC):
    """One provider's words: how it is asked, how it answers, what it refuses."""

    path: re.Pattern[str]

    @abstractmethod
    def tools(self, body: Body) -> dict[str, Body]:
        """Return the schemas of the tools offered, by name."""

    @abstractmethod
    def judge(self, body: Body) -> list[str]:
        """Return what an independent judge says against the payload."""

    @abstractmethod
    def calling(self, calls: Sequence[Call], spent: Spent, body: Body) -> Body:
        """Return an answer with these calls."""

    @abstractmethod
    def saying(self, text: str, spent: Spent) -> Body:
        """Return an answer that is a text."""

    @abstractmethod
    def too_long(self) -> Body:
        """Return the body of the 400 with which the provider says that its window is full."""


class _Chat(Protocol):
    """OpenAI Chat Completions."""

    path = re.compile(r"/v1/chat/completions")

    def tools(self, body: Body) -> dict[str, Body]:
        functions = [tool["function"] for tool in body.get("tools", [])]
        return {function["name"]: function["parameters"] for function in functions}

    def judge(self, body: Body) -> list[str]:
        sent = _without(body, {"usage"})  # which LiteLLM adds for OpenRouter
        return refusals("openai_chat", sent, Facts(has_gateway=True))

    def calling(self, calls: Sequence[Call], spent: Spent, body: Body) -> Body:
        made = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in calls
        ]
        return self._completion({"content": None, "tool_calls": made}, "tool_calls", spent)

    def saying(self, text: str, spent: Spent) -> Body:
        return self._completion({"content": text}, "stop", spent)

    def _completion(self, said: Body, finish_reason: str, spent: Spent) -> Body:
        message = {"role": "assistant", "refusal": None, "annotations": [], **said}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "fake",
            "choices": [choice],
            "usage": {
                "prompt_tokens": spent.sent,
                "completion_tokens": _OUTPUT_TOKENS,
                "total_tokens": spent.total,
                "prompt_tokens_details": {"cached_tokens": spent.cached, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
            },
            "service_tier": "default",
            "system_fingerprint": None,
        }

    def too_long(self) -> Body:
        message = (
            "This model's maximum context length is 128000 tokens. However, your messages resulted"
            " in 130412 tokens. Please reduce the length of the messages."
        )
        return {"error": _openai_error(message, "messages")}


class _Responses(Protocol):
    """OpenAI Responses; `reasoning` goes out sealed when it is asked for."""

    path = re.compile(r"/v1/responses")

    def tools(self, body: Body) -> dict[str, Body]:
        functions = [tool for tool in body.get("tools", []) if tool["type"] == "function"]
        return {function["name"]: function["parameters"] for function in functions}

    def judge(self, body: Body) -> list[str]:
        return refusals("openai_responses", body)

    def calling(self, calls: Sequence[Call], spent: Spent, body: Body) -> Body:
        made: list[Body] = [
            {
                "type": "function_call",
                "id": f"fc_{call.id}",
                "call_id": call.id,
                "name": call.name,
                "arguments": json.dumps(call.arguments),
                "status": "completed",
            }
            for call in calls
        ]
        if "reasoning.encrypted_content" in (body.get("include") or []):
            sealed = {"type": "reasoning", "summary": [], "encrypted_content": _REASONING}
            made.insert(0, {"id": f"rs_{calls[0].id}", **sealed})
        return self._response(made, spent)

    def saying(self, text: str, spent: Spent) -> Body:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
        return self._response([{**message, "content": [part]}], spent)

    def _response(self, output: list[Body], spent: Spent) -> Body:
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": "fake",
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": spent.sent,
                "input_tokens_details": {"cached_tokens": spent.cached, "cache_write_tokens": 0},
                "output_tokens": _OUTPUT_TOKENS,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": spent.total,
            },
        }

    def too_long(self) -> Body:
        message = (
            "Your input exceeds the context window of this model. Please adjust your input and try"
            " again."
        )
        return {"error": _openai_error(message, "input")}


class _Anthropic(Protocol):
    """Anthropic Messages."""

    path = re.compile(r"/v1/messages")

    def tools(self, body: Body) -> dict[str, Body]:
        return {
            tool["name"]: tool["input_schema"]
            for tool in body.get("tools", [])
            if "input_schema" in tool
        }

    def judge(self, body: Body) -> list[str]:
        return refusals("anthropic", body)

    def calling(self, calls: Sequence[Call], spent: Spent, body: Body) -> Body:
        made: list[Body] = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            for call in calls
        ]
        text = {"type": "text", "text": "Let me look.", "citations": None}
        return self._message([text, *made], "tool_use", spent)

    def saying(self, text: str, spent: Spent) -> Body:
        return self._message([{"type": "text", "text": text, "citations": None}], "end_turn", spent)

    def _message(self, content: list[Body], stop_reason: str, spent: Spent) -> Body:
        new = spent.sent - spent.cached
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "fake",
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 7,
                "cache_creation_input_tokens": new - 7,
                "cache_read_input_tokens": spent.cached,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": new - 7,
                    "ephemeral_1h_input_tokens": 0,
                },
                "output_tokens": _OUTPUT_TOKENS,
                "server_tool_use": None,
                "service_tier": "standard",
            },
        }

    def too_long(self) -> Body:
        message = "prompt is too long: 208310 tokens > 200000 maximum"
        return {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": message},
            "request_id": "req_1",
        }


class _Gemini(Protocol):
    """Gemini's `generateContent`; the first call of an answer is signed, some calls have no id."""

    path = re.compile(r"/v1(?:beta)?/models/[^/:]+:generateContent")

    def tools(self, body: Body) -> dict[str, Body]:
        declared = [
            one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])
        ]
        names = ("parametersJsonSchema", "parameters_json_schema", "parameters")
        return {
            one["name"]: next((one[name] for name in names if name in one), {}) for one in declared
        }

    def judge(self, body: Body) -> list[str]:
        config = {**body.get("generationConfig", {})}
        config |= {key: body[key] for key in ("systemInstruction", "tools") if key in body}
        outside = {"systemInstruction", "tools", "generationConfig"}
        return refusals("gemini", {**_without(body, outside), "config": config})

    def calling(self, calls: Sequence[Call], spent: Spent, body: Body) -> Body:
        goes_on = any(_within(content, "functionCall") for content in body["contents"])

        def named(call: Call) -> Body:
            return {"id": call.id} if goes_on else {}

        parts: list[Body] = [
            {"functionCall": named(call) | {"name": call.name, "args": call.arguments}}
            for call in calls
        ]
        parts[0]["thoughtSignature"] = _REASONING
        return self._content(parts, spent)

    def saying(self, text: str, spent: Spent) -> Body:
        return self._content([{"text": text}], spent)

    def _content(self, parts: list[Body], spent: Spent) -> Body:
        content = {"role": "model", "parts": parts}
        usage = {
            "promptTokenCount": spent.sent,
            "candidatesTokenCount": _OUTPUT_TOKENS,
            "totalTokenCount": spent.total,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": spent.sent}],
        }
        if spent.cached:
            usage["cachedContentTokenCount"] = spent.cached
        return {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
            "modelVersion": "fake",
            "responseId": "r1",
        }

    def too_long(self) -> Body:
        message = (
            "The input token count (1062034) exceeds the maximum number of tokens allowed"
            " (1048576)."
        )
        return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


class _Interactions(Protocol):
    """Gemini Interactions; a signed thought precedes the calls of an answer."""

    path = re.compile(r"/v1(?:beta)?/interactions")

    def tools(self, body: Body) -> dict[str, Body]:
        return {tool["name"]: tool["parameters"] for tool in body.get("tools", [])}

    def judge(self, body: Body) -> list[str]:
        return refusals("gemini_interactions", body)

    def calling(self, calls: Sequence[Call], spent: Spent, body: Body) -> Body:
        made = [
            {"type": "function_call", "id": one.id, "name": one.name, "arguments": one.arguments}
            for one in calls
        ]
        thought = {"type": "thought", "signature": _REASONING}
        return self._interaction([thought, *made], "requires_action", spent)

    def saying(self, text: str, spent: Spent) -> Body:
        said = {"type": "model_output", "content": [{"type": "text", "text": text}]}
        return self._interaction([said], "completed", spent)

    def _interaction(self, steps: list[Body], status: str, spent: Spent) -> Body:
        usage = {
            "total_input_tokens": spent.sent,
            "total_cached_tokens": spent.cached,
            "total_output_tokens": _OUTPUT_TOKENS,
            "total_tokens": spent.total,
        }
        return {"id": "v1_1", "status": status, "steps": steps, "usage": usage}

    def too_long(self) -> Body:
        message = (
            "The input token count (1062034) exceeds the maximum number of tokens allowed"
            " (1048576)."
        )
        return {"error": {"message": message, "code": "invalid_request"}}


PROTOCOLS: tuple[Protocol, ...] = (
    *(_Chat(), _Responses(), _Anthropic(), _Gemini(), _Interactions()),
)


class FakeProviders(FakeLLM):
    """All five on one port; what is scripted comes before what the agent does."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}
        self.overflow_at: int | None = None
        self.overflows = 0
        self.refused: list[str] = []
        self.spent: list[Spent] = []
        self.tools_offered: list[list[str]] = []
        self.always(self._act)

    @property
    def root(self) -> str:
        """The address to give a client whose protocol has the version in its paths."""
        return self.api_base.removesuffix("/v1")

    def knows(self, path: str) -> bool:
        """Return whether one of the protocols has this path."""
        return any(protocol.path.fullmatch(path) for protocol in PROTOCOLS)

    def complaint(self, request: Request) -> str | None:
        """Return why the provider refuses the payload, None when it takes it."""
        found = _protocol_of(request).judge(request.body)
        self.refused += found
        return "; ".join(found) or None

    def _act(self, request: Request) -> Behaviour:
        protocol = _protocol_of(request)
        if self.overflow_at is not None and self.calls > self.overflow_at and not self.overflows:
            self.overflows += 1
            return Behaviour(status=400, body=protocol.too_long())
        tools = protocol.tools(request.body)
        spent = self._spend(request.body)
        step = len(self.tools_offered)
        self.tools_offered.append(list(tools))
        calls = self._next_calls(step, list(tools), json.dumps(request.body))
        if calls:
            return Behaviour(body=protocol.calling(calls, spent, request.body))
        found = FOUND.findall(json.dumps(request.body))
        return Behaviour(body=protocol.saying(found[-1] if found else NOTHING_FOUND, spent))

    def _next_calls(self, step: int, tools: list[str], text: str) -> list[Call]:
        own = [name for name in tools if name not in AGENT_TOOL_NAMES]
        if not own or step > 1:
            return []
        if step == 0:
            return [Call("call_a1", own[0], self.arguments)]
        calls = [Call("call_b2", own[1], self.arguments)]
        refs = _REF.findall(text)
        if GREP in tools and refs:
            calls.insert(0, Call("call_b1", GREP, {"ref_id": refs[-1], "pattern": "FAILED"}))
        return calls

    def _spend(self, body: Body) -> Spent:
        sent = len(json.dumps(body)) // _BYTES_PER_TOKEN
        earlier = self.spent[-1].sent if self.spent else 0
        self.spent.append(Spent(sent, earlier if earlier < sent else 0))
        return self.spent[-1]


def _protocol_of(request: Request) -> Protocol:
    return next(protocol for protocol in PROTOCOLS if protocol.path.fullmatch(request.path))


def _openai_error(message: str, param: str) -> Body:
    kind = {"type": "invalid_request_error", "code": "context_length_exceeded"}
    return {"message": message, "param": param, **kind}


def _without(body: Body, keys: set[str]) -> Body:
    return {key: value for key, value in body.items() if key not in keys}


def _within(content: Body, name: str) -> list[Body]:
    return [part[name] for part in content["parts"] if name in part]

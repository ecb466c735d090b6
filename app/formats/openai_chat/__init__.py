"""OpenAI Chat Completions.

1. One wire message is one neutral message. System text is refused. Audio is sent back by its id,
   to other formats as a label with the transcript.
2. Reasoning has no place in the format itself: providers and gateways add fields of their own
   (`reasoning_fields`). It is replayed as it came, to a model of the family that made it.
3. A tool message carries text only. Its media follow in a user message (`render_media`).
4. A label stands in the place of content that the format cannot carry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from app.formats.base import Original
from app.formats.json_fields import Fields
from app.formats.message import FormatName, Message, Role, Text, ToolCall
from app.formats.openai import system_messages
from app.formats.openai_chat.rendering import ChatRendering, wire_call
from app.formats.requests import REPLACED, AgentCall, Answer, RequestFields, System, SystemPrompt


class OpenAIChat(ChatRendering):
    """OpenAI Chat Completions, and the many providers that speak it."""

    name = FormatName.OPENAI_CHAT
    part_types = ("text", "image_url", "file", "input_audio", "refusal")
    max_output_key = "max_completion_tokens"
    system_breakpoints = 1  # its system prompt is one message
    litellm_call = "acompletion"
    litellm_providers = frozenset(
        (
            *("openai", "custom_openai", "openrouter", "deepseek", "xai", "mistral"),
            *("together_ai", "fireworks_ai", "hosted_vllm", "moonshot", "zai", "dashscope"),
            *("cerebras", "litellm_proxy"),
        )
    )
    names_family = True
    sends_apart_message = True

    def _extra_fields(self, part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
        is_reasoning = isinstance(part, Text | ToolCall)
        return {} if is_reasoning else dict(block)

    def signature_of(self, part: Text | ToolCall) -> Mapping[str, Any]:
        """Return the fields of a call that carry its signature."""
        return part.block or {} if isinstance(part, ToolCall) else {}

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a message for all static text, with a part where it has a breakpoint."""
        contents: list[Any] = prompt.texts
        if marked:
            contents[0] = [self.marked({"type": "text", "text": prompt.static})]
        return system_messages({"role": "system", "content": content} for content in contents)

    def body(self, fields: RequestFields) -> dict[str, Any]:
        """Return messages, tools and limit."""
        limit = {self.max_output_key: fields.max_output}
        return {self.items_key: fields.items, **fields.tools, **limit, **fields.cache_key}

    def litellm_arguments(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return arguments whose messages the body replaces."""
        return {"messages": [{"role": "user", "content": REPLACED}], "extra_body": body}

    def answer(self, response: Any) -> Answer:
        """Read an answer in LiteLLM's form, which has some fields of providers apart."""
        choice = response.choices[0]
        message, usage = choice.message, getattr(response, "usage", None)
        extra = getattr(message, "provider_specific_fields", None) or {}
        refusal = getattr(message, "refusal", None) or extra.get("refusal")
        extra = getattr(choice, "provider_specific_fields", None) or {}
        return Answer(
            str(message.content or ""),
            "content_filter" if refusal else str(choice.finish_reason or "stop"),
            bool(message.tool_calls),
            usage.model_dump() if usage is not None else None,
            extra.get("native_finish_reason"),  # LiteLLM maps unknown reasons to `stop`
        )

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List the calls and the message itself."""
        return [*((call, "id") for call in raw.get("tool_calls") or []), (raw, "tool_call_id")]

    def read_call(self, call: Fields) -> AgentCall:
        """Read an element of `tool_calls`."""
        call.expect_type("function", default="function")
        function = call.object("function")
        return AgentCall(call.filled_text("id"), function, "arguments")

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> dict[str, Any]:
        """Return a tool message."""
        return {
            "role": "tool",
            "tool_call_id": call_id,
            "content": f"Error: {text}" if is_error else text,
        }

    def emptied(self, message: Message, text: str) -> dict[str, Any]:
        """Return a message whose calls have no arguments."""
        raw: dict[str, Any] = {"role": message.role, "content": text}
        if message.role is Role.TOOL:
            raw["tool_call_id"] = message.tool_call_id
        bare = (replace(call, arguments="" if call.custom else "{}") for call in message.calls)
        if calls := list(map(wire_call, bare)):
            raw["tool_calls"] = calls
        return raw

"""Gemini contents.

1. Fields are read in camelCase and snake_case. Rendered fields are camelCase, except that parts
   which came from Gemini are replayed as they came.
2. A user content with k function responses is k tool messages and one user message with its other
   parts. `split` cuts the raw content in the same way.
3. A call without an id is identified by its name; the nth call of a name in one content has the id
   `name#n`. Responses without an id answer the open calls of their name in order. Such an id is
   never sent.
4. A response is an object: a text is sent as `output`, that of a failed tool as `error`. Media of
   results follow the responses of their content as parts, since not every model accepts them
   inside a response.
5. Signatures and signed thoughts are replayed verbatim or left out. Unsigned thoughts are always
   left out. The first call of a step gets the documented stand-in where it has no signature, in
   every turn and for every model, so that its bytes do not depend on what follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from app.common import json_text
from app.formats import json_fields
from app.formats.base import Original, without
from app.formats.gemini.fields import (
    RESULT_KEY,
    STAND_IN_SIGNATURE,
    field_in,
    key_in,
    response_name,
    response_of,
    signature_in,
    text_key,
)
from app.formats.gemini.rendering import GeminiRendering
from app.formats.json_fields import Fields
from app.formats.message import FormatName, Message, Role, Text, ToolCall
from app.formats.reasoning_families import GEMINI
from app.formats.requests import AgentCall, RequestFields, System, SystemPrompt

_CALLS = ("functionCall", "function_call")
_RESPONSES = ("functionResponse", "function_response")
_NOT_COUNTED = ("thoughtSignature", "thought_signature", "text", "thought", *_CALLS, *_RESPONSES)
_HELD_NOT_COUNTED = ("id", "name", "args", "response", "parts")


class Gemini(GeminiRendering):
    """Gemini."""

    name = FormatName.GEMINI
    family = GEMINI
    result_key = RESULT_KEY
    blocks_key = "parts"
    items_key = "contents"
    usage_shapes = ("gemini",)
    derives_ids = True
    results_are_objects = True

    def _extra_fields(self, part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a part, and those of its call or response."""
        held = (block[key] for key in (*_CALLS, *_RESPONSES) if isinstance(block.get(key), Mapping))
        fields = without(block, *_NOT_COUNTED)
        for item in held:
            fields |= without(item, *_HELD_NOT_COUNTED)
        return fields

    def signature_of(self, part: Text | ToolCall) -> Mapping[str, Any]:
        """Return the thought signature of a part, unless it is the stand-in."""
        signature = signature_in(part.block or {})
        is_own = signature not in ("", STAND_IN_SIGNATURE)
        return {"thoughtSignature": signature} if is_own else {}

    def result_texts(self, message: Message) -> tuple[str, ...]:
        """Return the response object as JSON, and its name."""
        return json_fields.compact(response_of(message)), response_name(message)

    def text_key(self, content: Any) -> str | None:
        """Return the field of a response's only text."""
        return text_key(content)

    def result_content(self, text: str) -> Any:
        """Return a response with a text."""
        return {"output": text}

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return an instruction with a part per text."""
        texts = prompt.texts
        instruction = {"parts": [{"text": text} for text in texts]} if texts else None
        return System((), instruction, json_text.dump_payload(instruction))

    def body(self, fields: RequestFields) -> dict[str, Any]:
        """Return contents, and a configuration that has the rest."""
        system = {"system_instruction": fields.system} if fields.system is not None else {}
        config = {"max_output_tokens": fields.max_output, **fields.tools, **system}
        return {self.items_key: fields.items, "config": config}

    def with_instruction(
        self, body: Mapping[str, Any], instruction: str, max_tokens: int
    ) -> dict[str, Any]:
        """Raise: no gateway sends payloads in Gemini's format."""
        raise ValueError("No gateway sends payloads in Gemini's format")

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List calls and responses."""
        return [(item, "id") for item in _held(raw["parts"], *_CALLS, *_RESPONSES)]

    def named_calls(self, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the ids that calls have; an id by position is not in the content."""
        return tuple(call["id"] for call in _held(raw["parts"], *_CALLS) if call.get("id"))

    def read_call(self, call: Fields) -> AgentCall:
        """Read a part with a `functionCall`."""
        key = "function_call" if "function_call" in call.raw else "functionCall"
        function = call.object(key)
        call_id = function.optional_text("id") or None
        return AgentCall(call_id, Fields({"args": {}, **function.raw}, function.at), "args")

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> dict[str, Any]:
        """Return a content with one function response."""
        response: dict[str, Any] = {} if call_id is None else {"id": call_id}
        response |= {"name": name, "response": {"error" if is_error else "output": text}}
        return {"role": "user", "parts": [{"functionResponse": response}]}

    def emptied(self, message: Message, text: str) -> dict[str, Any]:
        """Return a content; ids that are made from names are left out, so that they stay."""
        if message.role is Role.TOOL:
            first = message.parts[0] if message.parts else None
            block = first.block if isinstance(first, Text) else None
            return self.result(_own_id(block, "functionResponse"), message.name, text)
        parts: list[dict[str, Any]] = [{"text": text}]
        for call in message.calls:
            own_id = _own_id(call.block, "functionCall")
            identity = {} if own_id is None else {"id": own_id}
            parts.append({"functionCall": {**identity, "name": call.name, "args": {}}})
        return {"role": "user" if message.role is Role.USER else "model", "parts": parts}


def function_calls(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """List the function calls among rendered parts, in their order."""
    return [part[key] for part in parts if (key := key_in(part, "functionCall")) in part]


def _held(parts: Iterable[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [part[name] for part in parts for name in names if part.get(name) is not None]


def _own_id(block: Mapping[str, Any] | None, name: str) -> str | None:
    fields = field_in(block, name) if block is not None else None
    own_id = fields.get("id") if isinstance(fields, Mapping) else None
    return own_id if isinstance(own_id, str) and own_id else None

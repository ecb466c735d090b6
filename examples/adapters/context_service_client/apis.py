"""What `wrap` has to know of the three APIs of OpenAI and Anthropic.

1. A request has items, which are the messages of the log, and a system prompt.
2. An answer has messages for the log. Calls of the service's tools are hidden from the caller.
3. After an answer with hidden calls only, the model is called again, and the caller reads one
   stream: places of items go on counting, and what begins and ends a stream is passed on once.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

Json = dict[str, Any]


class Api(ABC):
    """One request of a caller, and the answers to it; `hidden` are the names of hidden tools."""

    path: ClassVar[str]
    format: ClassVar[str]
    items: ClassVar[str] = "messages"
    limits: ClassVar[tuple[str, ...]]

    def __init__(self, body: Json) -> None:
        self.body = body
        self.hidden: set[str] = set()
        self._count = self._shown = self._numbers = 0
        self._earlier: list[Json] = []
        self.begin()

    def begin(self) -> None:
        """Begin to read the next stream."""
        self.answer: Json | None = None
        """The streamed answer as if it came at once; None until it is complete."""
        self.ends: list[Json] = []
        """The events that end the stream."""
        self._count += 1
        self._so_far: Json = {}
        self._places: dict[int, int | None] = {}

    @abstractmethod
    def system(self) -> str:
        """Return the system prompt."""

    @abstractmethod
    def messages(self) -> list[Json]:
        """Return the items without the system prompt."""

    @abstractmethod
    def said(self, answer: Json) -> list[Json]:
        """Return the messages of an answer."""

    @abstractmethod
    def calls(self, said: Json) -> list[Json]:
        """Return the calls in a message of an answer."""

    @abstractmethod
    def visible(self, answer: Json) -> Json:
        """Return an answer without hidden calls."""

    @abstractmethod
    def read(self, event: Json) -> Iterator[Json]:
        """Read an event of a stream, and yield what the caller gets of it at once."""

    def is_answer(self, item: Json) -> bool:
        """Return whether the model said an item."""
        return bool(item.get("role") == "assistant")

    def is_hidden(self, call: Json) -> bool:
        """Return whether a call is of one of the service's tools."""
        return call.get("function", call).get("name") in self.hidden

    def _place(self, index: int, is_hidden: bool = False) -> int | None:
        """Return an item's place in the stream of the caller; None for a hidden one."""
        if index not in self._places:
            self._places[index] = None if is_hidden else self._shown
            self._shown += not is_hidden
        return self._places[index]


class _OpenAI(Api):
    def system(self) -> str:
        first = [_text(item["content"]) for item in self._given()[: self._leading()]]
        return "\n\n".join(filter(None, [self.body.get("instructions"), *first]))

    def messages(self) -> list[Json]:
        return self._given()[self._leading() :]

    def _given(self) -> list[Json]:
        given = self.body[self.items]
        return [{"role": "user", "content": given}] if isinstance(given, str) else list(given)

    def _leading(self) -> int:
        items = self._given()
        others = (
            place
            for place, item in enumerate(items)
            if item.get("role") not in ("system", "developer")
        )
        return next(others, len(items))


class Chat(_OpenAI):
    """OpenAI Chat Completions, with one choice."""

    path, format = "/chat/completions", "openai_chat"
    limits = ("max_completion_tokens", "max_tokens")

    def said(self, answer: Json) -> list[Json]:
        """Return the message."""
        return [_filled(answer["choices"][0]["message"])]

    def calls(self, said: Json) -> list[Json]:
        """Return its calls."""
        return said.get("tool_calls") or []

    def visible(self, answer: Json) -> Json:
        """Return the answer with the caller's calls."""
        message = answer["choices"][0]["message"]
        if calls := self.calls(message):
            message["tool_calls"] = [call for call in calls if not self.is_hidden(call)]
        return answer

    def read(self, event: Json) -> Iterator[Json]:
        """Put pieces together; the usage comes after the last choice."""
        if event.get("usage") and self.answer:
            self.answer["usage"] = event["usage"]
        if not event["choices"]:
            if (self.body.get("stream_options") or {}).get("include_usage"):
                self.ends.append(event)
            return
        choice = event["choices"][0]
        delta = choice["delta"]
        merge(self._so_far, delta)
        if delta.get("tool_calls"):
            placed = [(self._place(c["index"], self.is_hidden(c)), c) for c in delta["tool_calls"]]
            calls = [{**call, "index": place} for place, call in placed if place is not None]
            choice["delta"] = {**delta, "tool_calls": calls}
        if not choice.get("finish_reason"):
            yield event
            return
        calls = [{k: v for k, v in c.items() if k != "index"} for c in self.calls(self._so_far)]
        message = self._so_far | ({"tool_calls": calls} if calls else {})
        self.answer = {"choices": [{"message": message}], "usage": event.get("usage")}
        self.ends.append(event)


class Responses(_OpenAI):
    """OpenAI Responses: each item of the output is a message."""

    path, format, items = "/responses", "openai_responses", "input"
    limits = ("max_output_tokens",)

    def said(self, answer: Json) -> list[Json]:
        """Return the items."""
        return [_filled(item) for item in answer["output"]]

    def calls(self, said: Json) -> list[Json]:
        """Return the item if it is a call that the client answers."""
        kinds = ("function_call", "custom_tool_call", "tool_search_call")
        return [said] if said.get("type") in kinds else []

    def is_answer(self, item: Json) -> bool:
        """Return whether it is an item of an output."""
        if "role" in item:
            return super().is_answer(item)
        return not str(item.get("type")).endswith(("_output", "_response"))

    def is_hidden(self, call: Json) -> bool:
        """Return whether the service answers a call, which it does for searches of tools."""
        return call["type"] == "tool_search_call" or super().is_hidden(call)

    def visible(self, answer: Json) -> Json:
        """Return the answer with the caller's items."""
        output = [
            item for item in answer["output"] if not any(map(self.is_hidden, self.calls(item)))
        ]
        return {**answer, "output": output}

    def read(self, event: Json) -> Iterator[Json]:
        """The last event has the whole answer, to which the caller's items before are added."""
        if event["type"] in ("response.completed", "response.incomplete"):
            self.answer = event["response"]
            shown = self.visible(self.answer)
            self._earlier += shown["output"]
            self.ends = [self._numbered({**event, "response": {**shown, "output": self._earlier}})]
            return
        if "output_index" in event:
            calls = self.calls(event.get("item", {}))
            place = self._place(event["output_index"], any(map(self.is_hidden, calls)))
            if place is None:
                return
            event = {**event, "output_index": place}
        elif self._count > 1 and event["type"] in ("response.created", "response.in_progress"):
            return
        yield self._numbered(event)

    def _numbered(self, event: Json) -> Json:
        numbered = {**event, "sequence_number": self._numbers}
        self._numbers += event["type"] not in ("response.completed", "response.incomplete")
        return numbered


class Messages(Api):
    """Anthropic Messages."""

    path, format = "/messages", "anthropic"
    limits = ("max_tokens",)

    def system(self) -> str:
        """Return the text of `system`."""
        return _text(self.body.get("system") or "")

    def messages(self) -> list[Json]:
        """Return all messages."""
        return list(self.body["messages"])

    def said(self, answer: Json) -> list[Json]:
        """Return the message."""
        return [{"role": "assistant", "content": [_filled(one) for one in answer["content"]]}]

    def calls(self, said: Json) -> list[Json]:
        """Return its calls."""
        return [block for block in said["content"] if block["type"] == "tool_use"]

    def visible(self, answer: Json) -> Json:
        """Return the answer with the caller's calls."""
        hidden = [call["id"] for call in self.calls(answer) if self.is_hidden(call)]
        shown = [block for block in answer["content"] if block.get("id") not in hidden]
        return {**answer, "content": shown}

    def read(self, event: Json) -> Iterator[Json]:
        """Put pieces together."""
        match event["type"]:
            case "message_start":
                self._so_far = {**event["message"], "content": []}
                if self._count > 1:
                    return
            case "content_block_start":
                block = event["content_block"]
                self._so_far["content"].append({**block, "partial_json": ""})
                self._place(event["index"], block["type"] == "tool_use" and self.is_hidden(block))
            case "content_block_delta":
                delta = dict(event["delta"])
                if "citation" in delta:
                    delta["citations"] = [delta.pop("citation")]
                merge(self._so_far["content"][event["index"]], {**delta, "type": None})
            case "content_block_stop":
                block = self._so_far["content"][event["index"]]
                if written := block.pop("partial_json"):
                    block["input"] = json.loads(written)
            case "message_delta" | "message_stop":
                self._so_far |= event.get("delta", {})
                self._so_far["usage"] |= _filled(event.get("usage", {}))
                self.answer = self._so_far if event["type"] == "message_stop" else None
                self.ends.append(event)
                return
        if "index" in event:
            place = self._place(event["index"])
            if place is None:
                return
            event = {**event, "index": place}
        yield event


APIS: tuple[type[Api], ...] = (Chat, Responses, Messages)


def merge(whole: Json, piece: Json) -> None:
    """Add a piece of a stream: texts are joined, entries of lists by their `index`."""
    for name, value in piece.items():
        known = whole.get(name)
        if isinstance(value, list) and all("index" in entry for entry in value):
            entries = whole.setdefault(name, [])
            for entry in value:
                if entry["index"] >= len(entries):
                    entries.append({"index": entry["index"]})
                merge(entries[entry["index"]], {k: v for k, v in entry.items() if k != "index"})
        elif isinstance(value, dict) and isinstance(known, dict):
            merge(known, value)
        elif isinstance(known, str | list) and name not in ("id", "type", "role") and value:
            whole[name] = known + value
        elif value is not None:
            whole[name] = value


def _filled(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _text(content: Any) -> str:
    parts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return "\n\n".join(parts)

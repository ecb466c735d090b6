"""What the callers' messages are to a conversation's log: which are new, and what is stored.

1. The caller has all of its messages in each call. Those that no model said get ids, each made of
   all such messages up to it, by which the newest one is found in the log. What comes after it is
   new, but for an answer that the log has.
2. Nothing is kept between calls, so that any process can serve the next one.
3. An answer is stored only where the log is as it was when the payload was built.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, cast

from context_service_client.apis import Api, Json
from context_service_client.service import ContextServiceError, Steps, asked, opened, uuid_of

MAX_MESSAGES = 1000


class HistoryChanged(Exception):
    """The messages of a call do not continue those that the log has from earlier calls."""

    def __init__(self) -> None:
        super().__init__("The messages do not continue those of earlier calls.")


class Log:
    """The steps of calls in one conversation."""

    def __init__(self, conversation: str, settings: Json, request_id: str = "") -> None:
        self._given = conversation, settings
        self._request_id = request_id
        self.path = f"/conversations/{uuid_of(conversation)}"
        self._is_open = False
        self._tools: set[str] = set()

    def build(self, api: Api) -> Steps:
        """Append what is new, and return the build for a call."""
        if not self._is_open:
            yield from opened(*self._given)
            answer = yield from asked("GET", f"/tool-definitions?format={api.format}")
            self._tools, self._is_open = _names(answer), True
        api.hidden = self._tools - _names(api.body)
        while True:
            new, head = yield from self._new(api)
            try:
                return (yield from self._appended(api, new, head))
            except ContextServiceError as error:
                # The answer before may be stored while this call looks what is new.
                if error.problem.get("head_seq", head) == head:
                    raise

    def _appended(self, api: Api, new: list[Json], head: int) -> Steps:
        """Append messages after a seq, and return a build."""
        while len(new) > MAX_MESSAGES:
            batch = {"messages": new[:MAX_MESSAGES], "expected_seq": head}
            said = {"format": api.format, **batch}
            head = (yield from asked("POST", f"{self.path}/messages", said))["head_seq"]
            new = new[MAX_MESSAGES:]
        step = {"append": {"messages": new, "expected_seq": head}} if new else {}
        return (yield from asked("POST", f"{self.path}/context", ask_of(api) | step))

    def cut(self, api: Api, error: Any, status: int | None) -> Steps:
        """Return a build that fits where the provider says "too long"."""
        told = {**ask_of(api), "error": error, "error_status": status}
        answer = yield from asked("POST", f"{self.path}/overflow", told)
        return answer["context"]

    def store(self, api: Api, built: Json, answer: Json) -> Steps:
        """Append an answer with the results of hidden calls; return a build if it had no others."""
        said = api.said(answer)
        calls = [call for message in said for call in api.calls(message)]
        hidden = [call for call in calls if api.is_hidden(call)]
        results = []
        for call in hidden:
            told = {"tool_call": call, "format": api.format, "native": built["defers_natively"]}
            done = yield from asked("POST", f"{self.path}/tool-calls", told)
            results.append(done["message"])
        batch = {"messages": [*said, *results], "expected_seq": built["through_seq"]}
        usage = answer.get("usage")
        if hidden and len(hidden) == len(calls):
            report = {"report": {"usage": usage, "build_id": built["build_id"]}} if usage else {}
            step = {**ask_of(api), "append": batch, **report}
            return (yield from asked("POST", f"{self.path}/context", step))
        yield from asked("POST", f"{self.path}/messages", {"format": api.format, **batch})
        if usage:
            yield from self.report(api, built, usage)
        return None

    def report(self, api: Api, built: Json, usage: Json) -> Steps:
        """Report the usage of a call."""
        told = {"format": api.format, "usage": usage, "build_id": built["build_id"]}
        yield from asked("POST", f"{self.path}/usage", told)

    def _new(self, api: Api) -> Steps:
        """Return the messages that the log has not got (rule 1), and its newest seq."""
        items = [_plain(item) for item in api.messages()]
        ids = _ids(api, items, self._request_id)
        newest, is_answered, cursor, head = None, False, "", 0
        while newest is None and cursor is not None:
            query = f"order=desc&limit=20{cursor and f'&cursor={cursor}'}"
            page = yield from asked("GET", f"{self.path}/messages?{query}")
            for message in page["data"]:
                head = max(head, message["seq"])
                if _is_ours(message["id"]):
                    newest = message["id"].partition("#")[0]
                    break
                is_answered |= message["role"] == "assistant"
            cursor = page["next_cursor"]
        start = 0
        if newest in ids:
            start = ids.index(newest) + 1
            while is_answered and start < len(items) and ids[start] is None:
                start += 1
        elif newest is not None and not self._request_id:
            raise HistoryChanged
        named = [item | ({"id": id} if id else {}) for item, id in zip(items, ids, strict=True)]
        return named[start:], head


def ask_of(api: Api) -> Json:
    """Say what a call needs."""
    body = api.body
    ask = {"format": api.format, "model": body["model"], "tools": body.get("tools") or []}
    if limits := [body[name] for name in api.limits if body.get(name)]:
        ask["max_output_tokens"] = limits[0]
    if text := api.system():
        ask["sections"] = [{"name": "instructions", "content": text}]
    return ask


def _ids(api: Api, items: list[Json], request_id: str) -> list[str | None]:
    """Return an id for each item that the model did not say, made of all such items up to it."""
    ids: list[str | None] = []
    last = uuid.uuid5(uuid.NAMESPACE_URL, f"context-service:{request_id}")
    for item in items:
        if api.is_answer(item):
            ids.append(None)
        else:
            last = uuid.uuid5(last, json.dumps(item, sort_keys=True))
            ids.append(str(last))
    return ids


def _plain(item: Json) -> Json:
    """Return an item without the caller's marks for the cache, which move from call to call."""

    def bare(fields: Json) -> Json:
        return {name: value for name, value in fields.items() if name != "cache_control"}

    return cast(Json, json.loads(json.dumps(item), object_hook=bare))


def _names(body: Json) -> set[str]:
    tools = body.get("tools") or []
    return {name for tool in tools if (name := tool.get("function", tool).get("name"))}


def _is_ours(message_id: str) -> bool:
    """Return whether an id was made by `_ids`; those of the service are of another version."""
    try:
        return uuid.UUID(message_id.partition("#")[0]).version == 5
    except ValueError:
        return False

"""`wrap`: a client of OpenAI or Anthropic whose calls get their messages from the service.

    client = wrap(openai.OpenAI(), conversation="chat-17")
    client.chat.completions.create(model="gpt-4.1", messages=messages, tools=tools)

1. The caller's loop stays as it is, with all of its messages in each call. What is new of them is
   appended; the provider gets the build in their place, from this process and with its own key.
2. The answer is appended and its usage reported before the caller has all of it. If the call fails,
   nothing of an answer is stored, and the same call can be made again.
3. "Too long" is reported, and the call is made once more. Calls of the service's own tools are
   executed, and the model is called again: the caller sees neither.
4. What the service refuses is an `APIStatusError` of the SDK with its problem document as body.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar, cast

import httpx
import httpx2

from context_service_client.apis import APIS, Api, Json
from context_service_client.log import HistoryChanged, Log
from context_service_client.service import (
    AsyncContextClient,
    ContextClient,
    ContextServiceError,
    Steps,
)

C = TypeVar("C")
KEPT_HEADERS = ("content-type", "request-id", "x-request-id", "retry-after", "x-should-retry")


def wrap(
    client: C,
    conversation: str,
    service: ContextClient | AsyncContextClient | None = None,
    settings: Json | None = None,
    request_id: str = "",
) -> C:
    """Return a client of the same kind for one conversation.

    `service` blocks exactly if the client does. `settings` are those of a new conversation:
    `model`, `policy`, `agent_id`. With a `request_id`, calls have the messages of this request
    only, not those of the conversation from its beginning.
    """
    given, settings = cast(Any, client), settings or {}
    policy = {"sends_betas": True, **(settings.get("policy") or {})}  # `Send` does
    inner, log = given._client, Log(conversation, {**settings, "policy": policy}, request_id)
    outer: httpx2.Client | httpx2.AsyncClient
    if isinstance(inner, httpx2.AsyncClient):
        service = service or AsyncContextClient()
        assert isinstance(service, AsyncContextClient), "an async client needs an async service"
        outer = httpx2.AsyncClient(transport=_AsyncTransport(inner, service, log))
    else:
        service = service or ContextClient()
        assert isinstance(service, ContextClient), "a client that blocks needs such a service"
        outer = httpx2.Client(transport=_Transport(inner, service, log))
    return cast(C, given.with_options(http_client=outer))


def begun(log: Log, api: Api) -> Steps:
    """Call the model with a build, once more if that is too long; return build and response."""
    built = yield from log.build(api)
    response = yield Send(built, api)
    if response.status_code in (400, 413):
        try:
            built = yield from log.cut(api, response.text, response.status_code)
        except ContextServiceError as refused:
            if refused.code != "VALIDATION_ERROR":
                raise
            return built, response
        response = yield Send(built, api)
    return built, response


def whole(log: Log, api: Api, built: Json, response: Any) -> Steps:
    """Return the response that the caller gets; hidden calls lead to others."""
    while response.is_success:
        answer = response.json()
        again = yield from log.store(api, built, answer)
        if again is None:
            return httpx2.Response(200, headers=_kept(response), json=api.visible(answer))
        built, response = again, (yield Send(again, api))
    return response


def streamed(log: Log, api: Api, built: Json) -> Steps:
    """Pass on the events of all streams as one, the last when their answer is stored."""
    while True:
        while event := (yield NEXT):
            yield from api.read(event)
        if api.answer is None:
            return  # what there is of a stream that broke off is no answer
        again = yield from log.store(api, built, api.answer)
        if again is None:
            yield from api.ends
            return
        api.begin()
        built, response = again, (yield Send(again, api))
        if not response.is_success:
            yield {"type": "error", "error": {"message": response.text}}
            return


class Send:
    """Calls the provider with a build in the place of what the caller sent."""

    def __init__(self, built: Json, api: Api) -> None:
        payload, body = built["payload"], api.body
        taken = {api.items, "system", "instructions", "tools", *api.limits}
        kept = {name: value for name, value in body.items() if name not in taken}
        self.body = {**kept, **payload}
        if body.get("stream") and api.format == "openai_chat":
            options = body.get("stream_options") or {}
            self.body["stream_options"] = {**options, "include_usage": True}
        self.is_stream = bool(body.get("stream"))
        self._betas: list[str] = built["betas"]

    def request(self, given: httpx2.Request) -> httpx2.Request:
        """Return the request of the caller with the build."""
        headers = given.headers.copy()
        del headers["content-length"]
        if self._betas:
            known = filter(None, [headers.get("anthropic-beta"), *self._betas])
            headers["anthropic-beta"] = ",".join(known)
        return httpx2.Request(
            given.method, given.url, headers=headers, json=self.body, extensions=given.extensions
        )


NEXT = object()
"""Asks for the next event of the stream; None at its end."""


class _Transport(httpx2.BaseTransport):
    """Stands before the client that the SDK had."""

    def __init__(self, inner: httpx2.Client, service: ContextClient, log: Log) -> None:
        self._inner, self._service, self._log = inner, service, log

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass on a request, with a build if it calls a model."""
        api = _api_of(request, request.read())
        if api is None:
            return self._inner.send(request, stream=True)
        model = _Model(self._inner, request)
        try:
            built, response = self._service.run(begun(self._log, api), model.act)
            if response.is_success and api.body.get("stream"):
                events = self._events(streamed(self._log, api, built), model)
                return httpx2.Response(200, headers=_kept(response), content=events)
            steps = whole(self._log, api, built, response)
            return cast(httpx2.Response, self._service.run(steps, model.act))
        except (ContextServiceError, HistoryChanged, httpx.HTTPError) as error:
            return _refusal(error)

    def _events(self, steps: Steps, model: _Model) -> Iterator[bytes]:
        answer: Any = None
        failure: Exception | None = None
        try:
            while True:
                step = steps.throw(failure) if failure else steps.send(answer)
                answer = failure = None
                if isinstance(step, dict):
                    yield _line(step)
                    continue
                try:
                    answer = self._service.perform(step, model.act)
                except Exception as error:
                    failure = error
        except StopIteration:
            yield from model.last
        finally:
            model.response.close()

    def close(self) -> None:
        """Close the client that the SDK had."""
        self._inner.close()


class _AsyncTransport(httpx2.AsyncBaseTransport):
    """The same for code that does not block."""

    def __init__(self, inner: httpx2.AsyncClient, service: AsyncContextClient, log: Log) -> None:
        self._inner, self._service, self._log = inner, service, log

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass on a request, with a build if it calls a model."""
        api = _api_of(request, await request.aread())
        if api is None:
            return await self._inner.send(request, stream=True)
        model = _AsyncModel(self._inner, request)
        try:
            built, response = await self._service.run(begun(self._log, api), model.act)
            if response.is_success and api.body.get("stream"):
                events = self._events(streamed(self._log, api, built), model)
                return httpx2.Response(200, headers=_kept(response), content=events)
            steps = whole(self._log, api, built, response)
            return cast(httpx2.Response, await self._service.run(steps, model.act))
        except (ContextServiceError, HistoryChanged, httpx.HTTPError) as error:
            return _refusal(error)

    async def _events(self, steps: Steps, model: _AsyncModel) -> AsyncIterator[bytes]:
        answer: Any = None
        failure: Exception | None = None
        try:
            while True:
                try:
                    step = steps.throw(failure) if failure else steps.send(answer)
                except StopIteration:
                    break
                answer = failure = None
                if isinstance(step, dict):
                    yield _line(step)
                    continue
                try:
                    answer = await self._service.perform(step, model.act)
                except Exception as error:
                    failure = error
            for line in model.last:
                yield line
        finally:
            await model.response.aclose()

    async def aclose(self) -> None:
        """Close the client that the SDK had."""
        await self._inner.aclose()


class _Model:
    """The provider, as the client that the SDK had reaches it; `response` is its newest one."""

    def __init__(self, inner: Any, request: httpx2.Request) -> None:
        self._inner, self._request = inner, request
        self.response: Any = None
        self._lines: Any = None
        self.last: list[bytes] = []
        """What a stream ends with that is no event."""

    def act(self, step: Any) -> Any:
        """Call the model, or return the next event of its stream."""
        if step is NEXT:
            return next((event for line in self._lines if (event := self._event(line))), None)
        self.response = self._inner.send(step.request(self._request), stream=True)
        self._lines = self.response.iter_lines()
        if not (step.is_stream and self.response.is_success):
            self.response.read()
        return self.response

    def _event(self, line: str) -> Json | None:
        text = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if text == "[DONE]":
            self.last = [b"data: [DONE]\n\n"]
        return json.loads(text) if text.startswith("{") else None


class _AsyncModel(_Model):
    """The same for code that does not block."""

    async def act(self, step: Any) -> Any:
        """Call the model, or return the next event of its stream."""
        if step is NEXT:
            async for line in self._lines:
                if event := self._event(line):
                    return event
            return None
        self.response = await self._inner.send(step.request(self._request), stream=True)
        self._lines = self.response.aiter_lines()
        if not (step.is_stream and self.response.is_success):
            await self.response.aread()
        return self.response


def _api_of(request: httpx2.Request, content: bytes) -> Api | None:
    path = request.url.path.rstrip("/")
    found = next((api for api in APIS if path.endswith(api.path)), None)
    return found(json.loads(content)) if found and request.method == "POST" else None


def _line(event: Json) -> bytes:
    head = f"event: {event['type']}\n" if "type" in event else ""
    return f"{head}data: {json.dumps(event)}\n\n".encode()


def _kept(response: Any) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name in KEPT_HEADERS}


def _refusal(error: Exception) -> httpx2.Response:
    """Say an error of the service in the words of a provider: the SDK raises it, and once."""
    problem = getattr(error, "problem", {"code": type(error).__name__, "detail": str(error)})
    told = {**problem, "message": str(error)}
    unreachable = isinstance(error, httpx.HTTPError)
    status = getattr(error, "status", 502 if unreachable else 409)
    body = {"type": "error", "error": told}
    return httpx2.Response(status, headers={"x-should-retry": "false"}, json=body)

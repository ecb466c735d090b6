"""A callback of LiteLLM, for its proxy and its SDK: calls get their messages from the service.

    litellm.callbacks = [ContextCallback()]
    await litellm.acompletion(model=…, messages=messages, metadata={"conversation": "chat-17"})

1. Calls of `acompletion` whose `metadata` names a `conversation` get a build in the place of their
   messages; what is new of these is appended first. Other calls pass.
2. The answer is appended, and its usage reported, before the caller has it. LiteLLM tells of the
   answer of a stream at some time after its end; a call that comes earlier appends it from its
   messages.
3. "Too long" is reported, so that the next try fits.
4. The callback executes no tools. New conversations therefore have none of the service's, unless
   their settings say otherwise.
"""

from __future__ import annotations

from typing import Any

from litellm.integrations.custom_logger import CustomLogger
from litellm.types.utils import CallTypes

from context_service_client.apis import Chat, Json
from context_service_client.log import Log, ask_of
from context_service_client.service import AsyncContextClient, ContextServiceError, asked

STATE = "context_service"
"""Key of a call's metadata: the build that it was made with."""


class ContextCallback(CustomLogger):  # type: ignore[misc]  # mypy skips LiteLLM
    """All conversations of a proxy, the new ones with `settings`: `model`, `policy`, `agent_id`.

    `metadata` may have a `request_id`, too: then calls have the messages of this request only.
    """

    def __init__(self, service: AsyncContextClient | None = None, **settings: Any) -> None:
        super().__init__()
        self._service = service or AsyncContextClient()
        self._settings = {"policy": {"agent_tools": "none"}, **settings}

    async def async_pre_call_deployment_hook(
        self, kwargs: Json, call_type: CallTypes | None
    ) -> Json | None:
        """Put a build in the place of the messages."""
        metadata = kwargs.get("metadata") or {}
        if call_type is not CallTypes.acompletion or "conversation" not in metadata:
            return None
        log, api = self._log(metadata), Chat(kwargs)
        if state := metadata.get(STATE):  # tried again, with what the last try was made of
            steps = asked("POST", f"{log.path}/context", state["ask"])
        else:
            steps = log.build(api)
        built, ask = await self._service.run(steps), state["ask"] if state else ask_of(api)
        kept = {key: value for key, value in kwargs.items() if key not in (*api.limits, "tools")}
        told = {name: built[name] for name in ("build_id", "through_seq", "defers_natively")}
        metadata = {**metadata, STATE: {**told, "ask": ask}}
        return {**kept, **built["payload"], "model": kwargs["model"], "metadata": metadata}

    async def async_post_call_success_deployment_hook(
        self, request_data: Json, response: Any, call_type: CallTypes | None
    ) -> None:
        """Append an answer that came at once."""
        await self._store(request_data.get("metadata") or {}, response)

    async def async_log_success_event(
        self, kwargs: Json, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Append an answer that was streamed."""
        if kwargs.get("stream"):
            await self._store(kwargs["litellm_params"].get("metadata") or {}, response_obj)

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Any,
        exception: Exception,
        call_type: CallTypes | None,
        fallback_depth: int | None = None,
    ) -> None:
        """Report an error; the service acts on "too long" alone."""
        metadata = request_data.get("metadata") or {}
        if state := metadata.get(STATE):
            status = getattr(exception, "status_code", None)
            told = {**state["ask"], "error": str(exception), "error_status": status}
            path = f"{self._log(metadata).path}/overflow"
            try:
                await self._service.ask("POST", path, told)
            except ContextServiceError as refused:
                if refused.code != "VALIDATION_ERROR":
                    raise

    def _log(self, metadata: Json) -> Log:
        return Log(metadata["conversation"], self._settings, metadata.get("request_id", ""))

    async def _store(self, metadata: Json, response: Any) -> None:
        if (state := metadata.get(STATE)) and hasattr(response, "choices"):
            log, api = self._log(metadata), Chat({})
            answer = response.model_dump()
            try:
                await self._service.run(log.store(api, state, answer))
            except ContextServiceError as error:
                if error.code != "CONFLICT":
                    raise
                await self._service.run(log.report(api, state, answer["usage"]))

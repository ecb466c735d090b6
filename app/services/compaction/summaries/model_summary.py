"""Summaries by a model: chunks, calls, retries and fallback models.

1. What does not fit the model's context window is cut between messages. The summary of each chunk
   is carried into the next call. Only a message larger than a chunk is cut inside.
   [summary.bounded-input]
2. An answer that is not accepted is requested once more with a stricter prompt; then it is a
   failure. [summary.accepted-answers]
3. A call that is rate-limited or fails is retried after a pause; then the fallback models are
   called in order. Six failed calls or the deadline of the run end it. [summary.retries]
4. Counting and masking happen in a thread, so that the event loop is never blocked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential_jitter

from app.domain.common.errors import ServiceUnavailable
from app.domain.compaction.summaries.answer import SummaryResult, parse_answer
from app.domain.compaction.summaries.model_calls import Completion, ModelCall
from app.domain.compaction.summaries.prompt import SummaryRequest, prompt_hash, summary_messages
from app.domain.compaction.summaries.secret_masking import (
    SecretPatterns,
    compile_patterns,
    mask_secrets,
)
from app.domain.models.limits import INEXACT_MARGIN, ModelInfo, merged_entry
from app.services.compaction.summaries.chunking import take_chunk
from app.services.compaction.summaries.run import SummariserRun, SummariserSettings
from app.services.ports import Gateway, Models, Tokenizer

MAX_FAILED_CALLS = 6
MAX_PAUSE_SECONDS = 20.0
"""A provider that requests a longer pause before the next call is not waited for."""
MIN_CHUNK_TOKENS = 128
WORDS_PER_TOKEN = 0.6

_RETRIED = frozenset({"rate_limited", "provider_error"})
_MODEL_UNAVAILABLE = _RETRIED | {"timeout", "authentication", "circuit_open"}
_FINAL = frozenset({"bad_answer", "spend_guard"})
_NOT_CALLED = frozenset({"circuit_open", "spend_guard"})

FindEntry = Callable[[str, str], Awaitable[str | None]]
"""Returns a tenant's own registry entry for a model as JSON text, None without one."""


async def no_entry(_tenant_id: str, _model: str) -> str | None:
    """Return no registry entry: tenants have none of their own."""
    return None


@dataclass(slots=True)
class ModelAccess:
    """The ports and settings that calls of models need."""

    gateway: Gateway
    models: Models
    tokenizer: Tokenizer
    settings: SummariserSettings
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], float] = time.monotonic
    find_entry: FindEntry = no_entry
    secrets: SecretPatterns = field(init=False)

    def __post_init__(self) -> None:
        self.secrets = compile_patterns(self.settings.secret_patterns)


@dataclass(slots=True)
class ModelSummary:
    """Makes one summary by a model.

    `summary` and `retain` cover the texts before `remaining_texts`.
    """

    access: ModelAccess
    remaining_texts: Sequence[str]
    request: SummaryRequest
    model: str
    max_tokens: int
    run: SummariserRun
    summary: str | None = None
    retain: str | None = None
    has_verbatim: bool = False
    of_summaries: bool = False
    min_chars: int = 0
    max_chunk_tokens: int | None = None
    models: list[str] = field(init=False)

    async def make(self) -> SummaryResult:
        """Mask the texts and return their summary; raises ServiceUnavailable."""
        run = self.run
        models = [self.model]
        models += [name for name in self.access.settings.fallback_models if name != self.model]
        self.models = [name for name in models if name not in run.failed_models] or models[-1:]
        self.remaining_texts = await asyncio.to_thread(
            lambda: [mask_secrets(text, self.access.secrets) for text in self.remaining_texts]
        )
        run.prompt_hash = prompt_hash(self.request)
        for model in self.models:
            if model not in run.infos:
                bundled = self.access.models.find(model)
                tenant_entry = await self.access.find_entry(run.tenant_id, model)
                run.infos[model] = (
                    bundled if tenant_entry is None else merged_entry(model, bundled, tenant_entry)
                )
        while not await self._summarise_chunk():
            pass
        return SummaryResult(self.summary or "", self.retain if self.request.wants_retain else None)

    # --- chunk by chunk -------------------------------------------------------------------

    async def _summarise_chunk(self) -> bool:
        """Add the next chunk to the summary; return whether it was the last."""
        chunk = ""
        try:
            max_tokens = await asyncio.to_thread(self._chunk_tokens)
            chunk, rest = await asyncio.to_thread(
                take_chunk, self.remaining_texts, max_tokens, self.access.tokenizer
            )
            answer = await self._answer(chunk)
        except ServiceUnavailable as exc:
            await asyncio.to_thread(self._change_attempt, exc, chunk)
            return False
        # An answer that retains nothing new does not drop what was retained before.
        self.summary = answer.text
        self.retain = answer.retain or self.retain
        self.remaining_texts = rest
        return not rest

    def _change_attempt(self, exc: ServiceUnavailable, chunk: str) -> None:
        """Use smaller chunks or the next model for the next attempt; raises without either."""
        reason, run = exc.facts.get("reason"), self.run
        is_over = run.failures >= MAX_FAILED_CALLS or self.access.now() >= run.deadline
        if reason in _FINAL or is_over:
            raise exc
        half = self.access.tokenizer.count(chunk) // 2
        if reason in _MODEL_UNAVAILABLE:
            run.failed_models.add(self.models[0])
        if reason == "context_window" and half >= MIN_CHUNK_TOKENS:
            self.max_chunk_tokens = half
        elif len(self.models) > 1:
            self.models.pop(0)
            self.max_chunk_tokens = None
        else:
            raise exc

    async def _answer(self, chunk: str) -> SummaryResult:
        """Request the summary of one chunk, and once more with a stricter prompt."""
        source_size = len(chunk) + len(self.summary or "") + len(self.retain or "")
        source_size = max(source_size, self.min_chars, self.run.min_chars)
        rejected = ""
        for strict in (False, True):
            call = await asyncio.to_thread(self._call, chunk, strict)
            completion = await self._complete_with_retries(call)
            answer = parse_answer(completion, self.request.wants_retain, source_size)
            if isinstance(answer, SummaryResult):
                return answer
            rejected = answer
            self.run.failures += 1
            if self.run.failures >= MAX_FAILED_CALLS:
                break
        detail = "The model's answer cannot be used as a summary"
        raise self._unavailable(detail, "bad_answer", rejected=rejected)

    # --- calls ----------------------------------------------------------------------------

    async def _complete_with_retries(self, call: ModelCall) -> Completion:
        def is_last(state: RetryCallState) -> bool:
            is_late = self.access.now() + state.upcoming_sleep >= self.run.deadline
            return is_late or state.attempt_number >= self.access.settings.attempts

        retrying = AsyncRetrying(
            sleep=self.access.sleep,
            retry=retry_if_exception(self._is_retried),
            wait=self._pause,
            stop=is_last,
            reraise=True,
        )
        return await retrying(self._complete, call)

    async def _complete(self, call: ModelCall) -> Completion:
        run = self.run
        if run.failures >= MAX_FAILED_CALLS:
            detail = "Too many calls of the summariser failed"
            raise self._unavailable(detail, "too_many_failures")
        remaining_seconds = run.deadline - self.access.now()
        if remaining_seconds <= 0:
            raise self._unavailable("The summary was not ready in time", "timeout")
        call = replace(call, timeout_seconds=min(call.timeout_seconds, remaining_seconds))
        run.calls += 1
        try:
            completion = await self.access.gateway.complete(call)
        except ServiceUnavailable as exc:
            if exc.facts.get("reason") in _NOT_CALLED:
                run.calls -= 1
            else:
                run.failures += 1
            raise
        run.add_usage(call, completion)
        return completion

    def _unavailable(self, detail: str, reason: str, **facts: str) -> ServiceUnavailable:
        return ServiceUnavailable(detail, {"reason": reason, "model": self.models[0], **facts})

    def _is_retried(self, exc: BaseException) -> bool:
        return (
            isinstance(exc, ServiceUnavailable)
            and exc.facts.get("reason") in _RETRIED
            and _retry_after(exc) <= MAX_PAUSE_SECONDS
            and self.run.failures < MAX_FAILED_CALLS
        )

    def _pause(self, state: RetryCallState) -> float:
        first = self.access.settings.backoff_seconds
        backoff = wait_exponential_jitter(first, MAX_PAUSE_SECONDS, jitter=first)(state)
        exc = state.outcome.exception() if state.outcome else None
        return max(backoff, _retry_after(exc))

    def _call(self, chunk: str, strict: bool) -> ModelCall:
        max_tokens, secrets = self._answer_tokens(), self.access.secrets
        messages = summary_messages(
            chunk,
            self.request,
            previous=mask_secrets(self.summary or "", secrets),
            retained=mask_secrets(self.retain or "", secrets),
            has_verbatim=self.has_verbatim,
            of_summaries=self.of_summaries,
            strict=strict,
            max_words=int(max_tokens * WORDS_PER_TOKEN),
        )
        return ModelCall(
            self.models[0],
            messages,
            max_tokens,
            self.access.settings.timeout_seconds,
            self.run.tenant_id,
            self.run.infos.get(self.models[0]),
        )

    # --- limits ---------------------------------------------------------------------------

    def _context_window(self) -> tuple[int, ModelInfo | None]:
        info = self.run.infos.get(self.models[0])
        window = (info.context_window or info.max_input_tokens) if info else None
        return window or self.access.settings.context_window, info

    def _answer_tokens(self) -> int:
        """Return the answer's limit: the requested one, the model's, half its context window."""
        window, info = self._context_window()
        model_limit = info.max_output_tokens if info and info.max_output_tokens else window
        return max(1, min(self.max_tokens, model_limit, window // 2))

    def _chunk_tokens(self) -> int:
        """Return the tokens of a chunk that fit beside the instructions and the answer."""
        window, info = self._context_window()
        total = window - self._answer_tokens()
        if info and info.max_input_tokens:
            total = min(total, info.max_input_tokens)
        call = self._call("", strict=True)
        instructions = "".join(part["content"] for part in call.messages)
        margin = info.margin if info else INEXACT_MARGIN
        tokens = int(total / (1 + margin)) - self.access.tokenizer.count(instructions) - 16
        if self.max_chunk_tokens is not None:
            tokens = min(tokens, self.max_chunk_tokens)
        if tokens < MIN_CHUNK_TOKENS:
            detail = "The instructions alone fill the summariser's context window"
            raise self._unavailable(detail, "context_window")
        return tokens


def _retry_after(exc: BaseException | None) -> float:
    """Return the pause in seconds that a provider requests."""
    return float(exc.facts.get("retry_after", 0)) if isinstance(exc, ServiceUnavailable) else 0.0

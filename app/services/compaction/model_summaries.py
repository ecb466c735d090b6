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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential_jitter

from app.domain.common.errors import ServiceUnavailable
from app.domain.compaction.summaries.answer import RejectedAnswer, SummaryAnswer, parse_answer
from app.domain.compaction.summaries.model_calls import Completion, ModelCall
from app.domain.compaction.summaries.prompt import SummaryRequest, prompt_hash, summary_messages
from app.domain.compaction.summaries.secret_masking import compile_patterns, mask_secrets
from app.domain.models.limits import INEXACT_MARGIN, ModelInfo, merged_entry
from app.services.compaction.chunking import take_chunk
from app.services.compaction.summariser_run import (
    SummariserRun,
    SummariserSettings,
    SummaryResult,
)
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

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]
FindEntry = Callable[[str, str], Awaitable[str | None]]
"""Returns a tenant's own registry entry for a model as JSON text, None without one."""


@dataclass(slots=True)
class _Progress:
    """One summary in the making: the pieces that are left, and what it has so far."""

    request: SummaryRequest
    run: SummariserRun
    models: list[str]
    max_tokens: int
    pieces: list[str]
    summary: str | None = None
    retain: str | None = None
    has_kept: bool = False
    of_summaries: bool = False
    min_chars: int = 0
    max_chunk_tokens: int | None = None


class ModelSummaries:
    """Makes summaries by calls of models."""

    def __init__(
        self,
        gateway: Gateway,
        models: Models,
        tokenizer: Tokenizer,
        settings: SummariserSettings,
        sleep: Sleep,
        now: Clock,
        find_entry: FindEntry,
    ) -> None:
        self._gateway = gateway
        self._models = models
        self._tokenizer = tokenizer
        self._settings = settings
        self._sleep = sleep
        self._now = now
        self._find_entry = find_entry
        self._secrets = compile_patterns(settings.secret_patterns)

    async def summarise(
        self,
        texts: Sequence[str],
        request: SummaryRequest,
        model: str,
        max_tokens: int,
        run: SummariserRun,
        *,
        previous: str | None = None,
        retained: str | None = None,
        has_kept: bool = False,
        of_summaries: bool = False,
        min_chars: int = 0,
    ) -> SummaryResult:
        """Return one summary of texts, which are masked here; raises ServiceUnavailable."""
        progress = _Progress(
            request=request,
            run=run,
            models=self._candidates(model, run),
            max_tokens=max_tokens,
            pieces=await asyncio.to_thread(self._masked, texts),
            summary=previous,
            retain=retained,
            has_kept=has_kept,
            of_summaries=of_summaries,
            min_chars=min_chars,
        )
        run.prompt_hash = prompt_hash(request)
        await self._load_infos(progress)
        while not await self._summarise_chunk(progress):
            pass
        return SummaryResult(
            progress.summary or "", progress.retain if request.wants_retain else None
        )

    def _candidates(self, model: str, run: SummariserRun) -> list[str]:
        """Return the models to call, in order."""
        models = [model, *(name for name in self._settings.fallback_models if name != model)]
        return [name for name in models if name not in run.failed_models] or models[-1:]

    def _masked(self, texts: Sequence[str]) -> list[str]:
        return [mask_secrets(text, self._secrets) for text in texts]

    async def _load_infos(self, progress: _Progress) -> None:
        """Load the limits and prices of the models, once for each run."""
        run = progress.run
        for model in progress.models:
            if model not in run.infos:
                bundled = self._models.find(model)
                own = await self._find_entry(run.tenant_id, model)
                run.infos[model] = bundled if own is None else merged_entry(model, bundled, own)

    # --- chunk by chunk -------------------------------------------------------------------

    async def _summarise_chunk(self, progress: _Progress) -> bool:
        """Merge the next chunk into the summary so far; true when it was the last."""
        chunk = ""
        try:
            max_tokens = await asyncio.to_thread(self._chunk_tokens, progress)
            chunk, rest = await asyncio.to_thread(
                take_chunk, progress.pieces, max_tokens, self._tokenizer
            )
            answer = await self._answer(progress, chunk)
        except ServiceUnavailable as exc:
            await asyncio.to_thread(self._ease, progress, exc, chunk)
            return False
        # An answer that retains nothing new does not drop what was retained before.
        progress.summary = answer.summary
        progress.retain = answer.retain or progress.retain
        progress.pieces = rest
        return not rest

    def _ease(self, progress: _Progress, exc: ServiceUnavailable, chunk: str) -> None:
        """Use smaller chunks or the next model for the next attempt; raises without either."""
        reason, run = exc.facts.get("reason"), progress.run
        is_over = run.failures >= MAX_FAILED_CALLS or self._now() >= run.deadline
        if reason in _FINAL or is_over:
            raise exc
        half = self._tokenizer.count(chunk) // 2
        if reason in _MODEL_UNAVAILABLE:
            run.failed_models.add(progress.models[0])
        if reason == "context_window" and half >= MIN_CHUNK_TOKENS:
            progress.max_chunk_tokens = half
        elif len(progress.models) > 1:
            progress.models.pop(0)
            progress.max_chunk_tokens = None
        else:
            raise exc

    async def _answer(self, progress: _Progress, chunk: str) -> SummaryAnswer:
        """Request the summary of one chunk, and once more with a stricter prompt."""
        source_size = len(chunk) + len(progress.summary or "") + len(progress.retain or "")
        source_size = max(source_size, progress.min_chars)
        rejected = RejectedAnswer("")
        for strict in (False, True):
            call = await asyncio.to_thread(self._call, progress, chunk, strict)
            completion = await self._complete_with_retries(progress.run, call)
            answer = parse_answer(completion, progress.request.wants_retain, source_size)
            if isinstance(answer, SummaryAnswer):
                return answer
            rejected = answer
            progress.run.failures += 1
            if progress.run.failures >= MAX_FAILED_CALLS:
                break
        raise ServiceUnavailable(
            "The model's answer cannot be used as a summary",
            {"reason": "bad_answer", "model": progress.models[0], "rejected": rejected.reason},
        )

    # --- calls ----------------------------------------------------------------------------

    async def _complete_with_retries(self, run: SummariserRun, call: ModelCall) -> Completion:
        def is_last(state: RetryCallState) -> bool:
            is_late = self._now() + state.upcoming_sleep >= run.deadline
            return is_late or state.attempt_number >= self._settings.attempts

        retrying = AsyncRetrying(
            sleep=self._sleep,
            retry=retry_if_exception(lambda exc: _is_retried(exc, run)),
            wait=self._pause,
            stop=is_last,
            reraise=True,
        )
        return await retrying(self._complete, run, call)

    async def _complete(self, run: SummariserRun, call: ModelCall) -> Completion:
        if run.failures >= MAX_FAILED_CALLS:
            raise ServiceUnavailable(
                "Too many calls of the summariser failed",
                {"reason": "too_many_failures", "model": call.model},
            )
        left = run.deadline - self._now()
        if left <= 0:
            raise ServiceUnavailable(
                "The summary was not ready in time", {"reason": "timeout", "model": call.model}
            )
        call = replace(call, timeout_seconds=min(call.timeout_seconds, left))
        run.calls += 1
        try:
            completion = await self._gateway.complete(call)
        except ServiceUnavailable as exc:
            if exc.facts.get("reason") in _NOT_CALLED:
                run.calls -= 1
            else:
                run.failures += 1
            raise
        run.add_usage(call.model, completion, completion.cost(call.info))
        return completion

    def _pause(self, state: RetryCallState) -> float:
        first = self._settings.backoff_seconds
        backoff = wait_exponential_jitter(first, MAX_PAUSE_SECONDS, jitter=first)(state)
        exc = state.outcome.exception() if state.outcome else None
        return max(backoff, _retry_after(exc))

    def _call(self, progress: _Progress, chunk: str, strict: bool) -> ModelCall:
        max_tokens = self._answer_tokens(progress)
        summary, retain = progress.summary, progress.retain
        messages = summary_messages(
            chunk,
            progress.request,
            previous=mask_secrets(summary, self._secrets) if summary else None,
            retained=mask_secrets(retain, self._secrets) if retain else None,
            has_kept=progress.has_kept,
            of_summaries=progress.of_summaries,
            strict=strict,
            max_words=int(max_tokens * WORDS_PER_TOKEN),
        )
        return ModelCall(
            progress.models[0],
            messages,
            max_tokens,
            self._settings.timeout_seconds,
            progress.run.tenant_id,
            progress.run.infos.get(progress.models[0]),
        )

    # --- limits ---------------------------------------------------------------------------

    def _context_window(self, progress: _Progress) -> tuple[int, ModelInfo | None]:
        info = progress.run.infos.get(progress.models[0])
        window = (info.context_window or info.max_input_tokens) if info else None
        return window or self._settings.context_window, info

    def _answer_tokens(self, progress: _Progress) -> int:
        """Return the answer's limit: the requested one, the model's, half its context window."""
        window, info = self._context_window(progress)
        model_limit = info.max_output_tokens if info and info.max_output_tokens else window
        return max(1, min(progress.max_tokens, model_limit, window // 2))

    def _chunk_tokens(self, progress: _Progress) -> int:
        """Return the tokens of a chunk that fit beside the instructions and the answer."""
        window, info = self._context_window(progress)
        total = window - self._answer_tokens(progress)
        if info and info.max_input_tokens:
            total = min(total, info.max_input_tokens)
        call = self._call(progress, "", strict=True)
        instructions = "".join(part["content"] for part in call.messages)
        margin = info.margin if info else INEXACT_MARGIN
        tokens = int(total / (1 + margin)) - self._tokenizer.count(instructions) - 16
        if progress.max_chunk_tokens is not None:
            tokens = min(tokens, progress.max_chunk_tokens)
        if tokens < MIN_CHUNK_TOKENS:
            raise ServiceUnavailable(
                "The instructions alone fill the summariser's context window",
                {"reason": "context_window", "model": progress.models[0]},
            )
        return tokens


def _retry_after(exc: BaseException | None) -> float:
    """Return the pause in seconds that a provider requests."""
    return float(exc.facts.get("retry_after", 0)) if isinstance(exc, ServiceUnavailable) else 0.0


def _is_retried(exc: BaseException, run: SummariserRun) -> bool:
    return (
        isinstance(exc, ServiceUnavailable)
        and exc.facts.get("reason") in _RETRIED
        and _retry_after(exc) <= MAX_PAUSE_SECONDS
        and run.failures < MAX_FAILED_CALLS
    )

"""Summaries by a model: chunks, calls, retries and fallback models.

1. What does not fit the model's context window is cut between call groups. The summary of each
   chunk is carried into the next call. Only a group larger than a chunk is cut inside.
   [summary.bounded-input]
2. An answer that is not accepted is requested once more with a stricter prompt; then it is a
   failure. [summary.accepted-answers]
3. A call that is rate-limited or fails is retried after a pause; then the fallback models are
   called in order. Six failed calls or the deadline of the run end it. [summary.retries]
4. Counting and masking happen in a thread, so that the event loop is never blocked.
5. Texts are masked whole, then shortened to a share of what they are made from.
   [summary.capped-input]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential_jitter

from app.common.errors import ServiceUnavailable
from app.compaction.summaries.checklist import (
    KEPT_SHARE,
    Checklist,
    checklist_of,
    kept_text,
    split_kept,
    with_kept,
)
from app.compaction.summaries.digest import Digest
from app.compaction.summaries.prompt import (
    SummaryPrompt,
    SummaryRequest,
    SummaryResult,
    parse_answer,
    prompt_hash,
)
from app.compaction.summaries.run import SummariserRun, SummariserSettings
from app.compaction.summaries.secret_masking import SecretPatterns, compile_patterns, mask_secrets
from app.compaction.summaries.transcript import (
    PartGroup,
    SourceText,
    TextGroup,
    shortened_groups,
    take_chunk,
)
from app.compaction.summaries.writing import SummaryScope
from app.conversations.messages.row import LogRow
from app.conversations.view import Span
from app.models.budget import INEXACT_MARGIN, ModelInfo, Models, merged_entry
from app.models.tokens import Tokenizer
from app.models.usage import Completion, Gateway, ModelCall

MAX_FAILED_CALLS = 6
MAX_PAUSE_SECONDS = 20.0
"""A provider that requests a longer pause before the next call is not waited for."""
MIN_CHUNK_TOKENS = 128
WORDS_PER_TOKEN = 0.6
SENT_SHARE = 0.25
"""The share of its source that a model is sent, instructions and earlier summary included."""
TRANSCRIPT_SHARE = 0.08
"""The share that the transcript has at least, however much the rest takes."""
MIN_TRANSCRIPT_TOKENS = 384
CHECKLIST_SHARE = 0.04
"""The share of its source that statements which are not kept may take in a checklist."""
MIN_ANSWER_TOKENS = 32

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


@dataclass(frozen=True, slots=True)
class SummaryTask:
    """One summary to make, of `previous` and of messages: those in `spans`, or given beside it.

    Without a `model` the built-in summariser makes it. The messages at `verbatim_seqs` stay
    verbatim beside it. `retained` is the retain section of `previous`. A summary of up to
    `min_chars` is accepted even if its source is shorter.
    """

    request: SummaryRequest
    model: str | None
    max_tokens: int
    run: SummariserRun
    scope: SummaryScope
    conversation_id: str = ""
    spans: Sequence[Span] = ()
    previous: str | None = None
    retained: str | None = None
    verbatim_seqs: frozenset[int] = frozenset()
    min_chars: int = 0

    @property
    def earlier(self) -> list[str]:
        """The texts that the summary extends."""
        return [text for text in (self.retained, self.previous) if text]

    def verbatim_indices(self, rows: Sequence[LogRow]) -> frozenset[int]:
        """Return the indices of the rows that stay verbatim."""
        return frozenset(i for i, row in enumerate(rows) if row.seq in self.verbatim_seqs)


@dataclass(slots=True)
class ModelSummary:
    """Makes one summary by a model.

    `groups` are what it summarises, `digest` has its checklist. What is
    kept has the room of the scope's `kept_tokens`, by default half of `max_tokens`; the model's
    text has half of these in any case. `summary` and `retain` cover the texts before
    `remaining_texts`.
    """

    access: ModelAccess
    task: SummaryTask
    groups: Sequence[PartGroup]
    digest: Digest | None = None
    has_verbatim: bool = False
    of_summaries: bool = False
    max_chunk_tokens: int | None = None
    run: SummariserRun = field(init=False)
    summary: str = field(init=False)
    retain: str | None = field(init=False)
    max_tokens: int = field(init=False)
    checklist: Checklist = field(init=False, default_factory=Checklist)
    remaining_texts: Sequence[TextGroup] = field(init=False, default=())
    models: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        task = self.task
        self.run, self.max_tokens = task.run, task.max_tokens
        self.summary, self.retain = task.previous or "", task.retained

    async def make(self) -> SummaryResult:
        """Return the summary; raises ServiceUnavailable."""
        run, task, closing = self.run, self.task, self.task.scope.closing.text
        first, fallbacks = task.model or "", self.access.settings.fallback_models
        chosen = [first, *(name for name in fallbacks if name != first)]
        self.models = [name for name in chosen if name not in run.failed_models] or chosen[-1:]
        for model in self.models:
            if model not in run.infos:
                bundled = self.access.models.find(model)
                entry = await self.access.find_entry(run.tenant_id, model)
                run.infos[model] = bundled if entry is None else merged_entry(model, bundled, entry)
        await asyncio.to_thread(self._prepare_texts)
        run.prompt_hash = prompt_hash(task.request)
        while not await self._summarise_chunk():
            pass
        kept, limit = self.checklist.kept, self.max_tokens + self._count(closing)
        text = await asyncio.to_thread(
            with_kept, self.summary, kept, closing, limit if kept else None, self._count
        )
        return SummaryResult(text, self.retain if task.request.wants_retain else None)

    # --- what is sent ---------------------------------------------------------------------

    def _prepare_texts(self) -> None:
        """Mask the parts, choose the checklist, and shorten the parts to their share."""
        count, digest, scope = self._count, self.digest, self.task.scope
        _, self.summary = split_kept(self.summary)
        groups = [tuple(part.changed(self._mask) for part in group) for group in self.groups]
        source_tokens = sum(count(part.full_text) for group in groups for part in group)
        others_tokens = int(source_tokens * CHECKLIST_SHARE)
        self.max_tokens = max(MIN_ANSWER_TOKENS, self.max_tokens - count(scope.closing.text))
        if digest is not None:
            half = int(self.max_tokens * KEPT_SHARE)
            room = max(half, scope.kept_tokens or 0)
            self.checklist = checklist_of(digest, room, others_tokens, count)
            self.max_tokens += max(0, count(kept_text(self.checklist.kept)) - half)
        fixed_tokens = sum(count(part["content"]) for part in self._call("", False).messages)
        limit = max(
            MIN_TRANSCRIPT_TOKENS,
            int(source_tokens * TRANSCRIPT_SHARE),
            int(source_tokens * SENT_SHARE) - fixed_tokens,
        )
        self.remaining_texts = shortened_groups(groups, limit, count)

    def _count(self, text: str) -> int:
        return self.access.tokenizer.count(text)

    def _mask(self, text: str) -> str:
        return mask_secrets(text, self.access.secrets)

    def _prompt(self, strict: bool) -> SummaryPrompt:
        """Return what the model is asked.

        What is put above the answer takes room; an answer that repeats it is not cut off.
        """
        kept_tokens = self._count(kept_text(self.checklist.kept))
        own_tokens = max(MIN_ANSWER_TOKENS, self._answer_tokens() - kept_tokens)
        return SummaryPrompt(
            self.task.request,
            self._mask(self.summary),
            self._mask(self.retain or ""),
            self._mask(self.checklist.text),
            self.has_verbatim,
            self.of_summaries,
            strict,
            int(own_tokens * WORDS_PER_TOKEN),
        )

    def _call(self, chunk: str, strict: bool) -> ModelCall:
        return ModelCall(
            self.models[0],
            self._prompt(strict).messages(chunk),
            self._answer_tokens(),
            self.access.settings.timeout_seconds,
            self.run.tenant_id,
            self.run.infos.get(self.models[0]),
        )

    # --- chunk by chunk -------------------------------------------------------------------

    def _next_chunk(self) -> tuple[SourceText, list[TextGroup]]:
        tokens = self._room_beside_instructions()
        if self.max_chunk_tokens is not None:
            tokens = min(tokens, self.max_chunk_tokens)
        if tokens < MIN_CHUNK_TOKENS:
            detail = "The instructions alone fill the summariser's context window"
            raise self._unavailable(detail, "context_window")
        return take_chunk(self.remaining_texts, tokens, self._count)

    async def _summarise_chunk(self) -> bool:
        """Add the next chunk to the summary; return whether it was the last."""
        chunk = SourceText()
        try:
            chunk, rest = await asyncio.to_thread(self._next_chunk)
            answer = await self._answer(chunk)
        except ServiceUnavailable as exc:
            await asyncio.to_thread(self._change_attempt, exc, chunk.text)
            return False
        # An answer that retains nothing new does not drop what was retained before.
        self.summary, self.retain = answer.text, answer.retain or self.retain
        self.remaining_texts = rest
        return not rest

    def _change_attempt(self, exc: ServiceUnavailable, chunk: str) -> None:
        """Use smaller chunks or the next model for the next attempt; raises without either."""
        reason, run = exc.facts.get("reason"), self.run
        is_over = run.failures >= MAX_FAILED_CALLS or self.access.now() >= run.deadline
        if reason in _FINAL or is_over:
            raise exc
        half = self._count(chunk) // 2
        if reason in _MODEL_UNAVAILABLE:
            run.failed_models.add(self.models[0])
        if reason == "context_window" and half >= MIN_CHUNK_TOKENS:
            self.max_chunk_tokens = half
        elif len(self.models) > 1:
            self.models.pop(0)
            self.max_chunk_tokens = None
        else:
            raise exc

    async def _answer(self, chunk: SourceText) -> SummaryResult:
        """Request the summary of one chunk, and once more with a stricter prompt."""
        texts = (self.checklist.text, self.summary, self.retain or "")
        source_size = chunk.source_chars + sum(map(len, texts))
        source_size = max(source_size, self.task.min_chars)
        rejected = ""
        for strict in (False, True):
            call = await asyncio.to_thread(self._call, chunk.text, strict)
            completion = await self._complete_with_retries(call)
            answer = parse_answer(completion, self.task.request.wants_retain, source_size)
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
        first = self.access.settings.backoff_seconds
        backoff = wait_exponential_jitter(first, MAX_PAUSE_SECONDS, jitter=first)

        def is_retried(exc: BaseException) -> bool:
            return (
                isinstance(exc, ServiceUnavailable)
                and exc.facts.get("reason") in _RETRIED
                and _retry_after(exc) <= MAX_PAUSE_SECONDS
                and self.run.failures < MAX_FAILED_CALLS
            )

        def pause(state: RetryCallState) -> float:
            exc = state.outcome.exception() if state.outcome else None
            return max(backoff(state), _retry_after(exc))

        def is_last(state: RetryCallState) -> bool:
            is_late = self.access.now() + state.upcoming_sleep >= self.run.deadline
            return is_late or state.attempt_number >= self.access.settings.attempts

        retrying = AsyncRetrying(
            sleep=self.access.sleep,
            retry=retry_if_exception(is_retried),
            wait=pause,
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

    def _room_beside_instructions(self) -> int:
        """Return the tokens of input that fit beside the instructions and the answer."""
        window, info = self._context_window()
        total = window - self._answer_tokens()
        if info and info.max_input_tokens:
            total = min(total, info.max_input_tokens)
        call = self._call("", strict=True)
        instructions = "".join(part["content"] for part in call.messages)
        margin = info.margin if info else INEXACT_MARGIN
        return int(total / (1 + margin)) - self._count(instructions) - 16


def _retry_after(exc: BaseException | None) -> float:
    """Return the pause in seconds that a provider requests."""
    return float(exc.facts.get("retry_after", 0)) if isinstance(exc, ServiceUnavailable) else 0.0

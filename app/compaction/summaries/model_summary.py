"""Summaries by a model: chunks, attempts and fallback models.

1. What does not fit the model's context window is cut between call groups. The summary of each
   chunk is carried into the next call. Only a group larger than a chunk is cut inside.
   [summary.bounded-input]
2. One rule decides what follows a failed attempt (`_has_next`): an answer that is not accepted is
   requested once more with a stricter prompt and more room; a model that is limited or fails is
   called again after a pause; a chunk that is too large is halved; else the next model is called.
   Six failed calls or the deadline of the run end it. [summary.accepted-answers, summary.retries]
3. Counting and masking happen in a thread, so that the event loop is never blocked.
4. Texts are masked whole, then shortened to a share of what they are made from.
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
    own_text,
    with_kept,
)
from app.compaction.summaries.digest import Digest
from app.compaction.summaries.model_calls import SummariserRun, SummariserSettings
from app.compaction.summaries.prompt import (
    SummaryPrompt,
    SummaryRequest,
    SummaryResult,
    parse_answer,
    prompt_hash,
)
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
from app.models.model_info import INEXACT_MARGIN, Models, merged_info
from app.models.tokens import Tokenizer
from app.models.usage import Gateway, ModelCall

MAX_FAILED_CALLS = 6
MAX_PAUSE_SECONDS = 20.0
"""A provider that requests a longer pause before the next call is not waited for."""
MIN_CHUNK_TOKENS, CHUNK_MARGIN_TOKENS = 128, 16
WORDS_PER_TOKEN = 0.6
SENT_SHARE = 0.25
"""The share of its source that a model is sent, instructions and earlier summary included."""
TRANSCRIPT_SHARE = 0.08
"""The share that the transcript has at least, however much the rest takes."""
MIN_TRANSCRIPT_TOKENS = 384
CHECKLIST_SHARE = 0.04
"""The share of its source that statements which are not kept may take in a checklist."""
MIN_ANSWER_TOKENS = 32
THINKING_TOKENS = 2048
"""How much longer a second answer may be: some models think within their limit."""

_RETRIED = frozenset({"rate_limited", "provider_error"})
_MODEL_UNAVAILABLE = _RETRIED | {"timeout", "authentication", "circuit_open"}
_NOT_CALLED = frozenset({"circuit_open", "spend_guard"})

FindOwnInfo = Callable[[str, str], Awaitable[str | None]]
"""Returns a tenant's own limits and prices of a model as JSON text, None without any."""


async def no_own_info(_tenant_id: str, _model: str) -> str | None:
    """Return None: tenants have no limits and prices of their own."""
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
    find_own_info: FindOwnInfo = no_own_info
    secrets: SecretPatterns = field(init=False)

    def __post_init__(self) -> None:
        self.secrets = compile_patterns(self.settings.secret_patterns)


@dataclass(frozen=True, slots=True)
class SummaryTask:
    """One summary to make, of `previous` and of messages: those in `spans`, or given beside it.

    Without a `model` the `extractive` summariser makes it. The messages at `verbatim_seqs` stay
    verbatim beside it. `retained` is the retained text of `previous`. A summary of up to
    `min_chars` is accepted even if its source is shorter. `digest` is what the messages state,
    where they were read before: a model must not lose it.
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
    digest: Digest | None = None

    @property
    def earlier(self) -> list[str]:
        """The texts that the summary extends."""
        return [text for text in (self.retained, self.previous) if text]

    def verbatim_indices(self, rows: Sequence[LogRow]) -> frozenset[int]:
        """Return the indices of the rows that stay verbatim."""
        return frozenset(i for i, row in enumerate(rows) if row.seq in self.verbatim_seqs)


class ModelSummary:
    """Makes one summary by a model.

    `groups` are what it summarises. What is kept has the room of the
    scope's `kept_tokens`, by default half of `max_tokens`; the model's text has half of these in
    any case. `summary` and `retain` cover the texts before `remaining_texts`.
    """

    def __init__(self, access: ModelAccess, task: SummaryTask, groups: Sequence[PartGroup]) -> None:
        self.access, self.task, self.groups = access, task, groups
        self.run, self.max_tokens = task.run, task.max_tokens
        self.summary, self.retain = task.previous or "", task.retained
        self.checklist = Checklist()
        self.remaining_texts: Sequence[TextGroup] = ()
        self.models: list[str] = []
        self.is_strict, self.tries, self.chunk_tokens = False, 1, 0
        self.max_chunk_tokens: int | None = None
        self.pause_seconds: float | None = None

    async def make(self) -> SummaryResult:
        """Return the summary; raises ServiceUnavailable."""
        run, task, closing = self.run, self.task, self.task.scope.closing.text
        first, fallbacks = task.model or "", self.access.settings.fallback_models
        chosen = [first, *(name for name in fallbacks if name != first)]
        self.models = [name for name in chosen if name not in run.failed_models] or chosen[-1:]
        for model in self.models:
            if model not in run.infos:
                bundled = self.access.models.find(model)
                own = await self.access.find_own_info(run.tenant_id, model)
                run.infos[model] = bundled if own is None else merged_info(model, bundled, own)
        await asyncio.to_thread(self._prepare_texts)
        run.prompt_hash = prompt_hash(task.request)
        first_pause = self.access.settings.backoff_seconds
        backoff = wait_exponential_jitter(first_pause, MAX_PAUSE_SECONDS, jitter=first_pause)

        def pause(state: RetryCallState) -> float:
            asked = self.pause_seconds
            return 0.0 if asked is None else max(backoff(state), asked)

        is_first = True
        while is_first or self.remaining_texts:
            is_first, self.is_strict, self.tries = False, False, 1
            attempts = AsyncRetrying(
                sleep=self.access.sleep,
                retry=retry_if_exception(self._has_next),
                wait=pause,
                stop=lambda state: self.access.now() + state.upcoming_sleep >= run.deadline,
                reraise=True,
            )
            made: tuple[SummaryResult, list[TextGroup]] = await attempts(self._attempt)
            answer, self.remaining_texts = made
            # An answer that retains nothing new does not drop what was retained before.
            self.summary, self.retain = answer.text, answer.retain or self.retain
        limit = self.max_tokens + self._count(closing)
        text = await asyncio.to_thread(
            with_kept, self.summary, self.checklist, closing, limit, self._count
        )
        return SummaryResult(text, self.retain if task.request.wants_retain else None)

    # --- what is sent ---------------------------------------------------------------------

    def _prepare_texts(self) -> None:
        """Mask the parts, choose the checklist, and shorten the parts to their share."""
        count, digest, scope = self._count, self.task.digest, self.task.scope
        self.summary = own_text(self.summary)
        groups = [tuple(part.changed(self._mask) for part in group) for group in self.groups]
        source_tokens = sum(count(part.full_text) for group in groups for part in group)
        self.max_tokens = max(MIN_ANSWER_TOKENS, self.max_tokens - count(scope.closing.text))
        if digest is not None:
            half = int(self.max_tokens * KEPT_SHARE)
            others_tokens = int(source_tokens * CHECKLIST_SHARE)
            room = max(half, scope.kept_tokens or 0)
            self.checklist = checklist_of(digest, room, others_tokens, count)
            self.max_tokens += max(0, count(self.checklist.kept) - half)
        fixed_tokens = sum(count(part["content"]) for part in self._call("").messages)
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

    def _limits(self) -> tuple[int, int]:
        """Return the tokens of the answer and of the input, beside each other in the window.

        The answer takes the requested ones, at most the model's limit and half of its window.
        """
        info = self.run.infos.get(self.models[0])
        known = (info.context_window or info.max_input_tokens) if info else None
        window = known or self.access.settings.context_window
        most = (info.max_output_tokens if info else None) or window
        wanted = self.max_tokens + (THINKING_TOKENS if self.is_strict else 0)
        answer_tokens = max(1, min(wanted, most, window // 2))
        input_tokens = window - answer_tokens
        if info and info.max_input_tokens:
            input_tokens = min(input_tokens, info.max_input_tokens)
        return answer_tokens, int(input_tokens / (1 + (info.margin if info else INEXACT_MARGIN)))

    def _call(self, chunk: str) -> ModelCall:
        """Return the call for a chunk.

        What is put above the answer takes room; an answer that repeats it is not cut off.
        """
        answer_tokens, _ = self._limits()
        own_tokens = min(answer_tokens, self.max_tokens)
        own_tokens -= self._count(self.checklist.kept)
        prompt = SummaryPrompt(
            self.task.request,
            self._mask(self.summary),
            self._mask(self.retain or ""),
            self._mask(self.checklist.text),
            self.is_strict,
            int(max(MIN_ANSWER_TOKENS, own_tokens) * WORDS_PER_TOKEN),
        )
        return ModelCall(
            self.models[0],
            prompt.messages(chunk),
            answer_tokens,
            self.access.settings.timeout_seconds,
            self.run.tenant_id,
            self.run.infos.get(self.models[0]),
        )

    def _next_chunk(self) -> tuple[SourceText, list[TextGroup], ModelCall]:
        """Return the next chunk, the texts after it, and its call."""
        self.chunk_tokens = 0
        instructions = "".join(part["content"] for part in self._call("").messages)
        tokens = self._limits()[1] - self._count(instructions) - CHUNK_MARGIN_TOKENS
        tokens = min(tokens, self.max_chunk_tokens or tokens)
        if tokens < MIN_CHUNK_TOKENS:
            detail = "The instructions alone fill the summariser's context window"
            raise self._unavailable(detail, "context_window")
        chunk, rest = take_chunk(self.remaining_texts, tokens, self._count)
        self.chunk_tokens = self._count(chunk.text)
        return chunk, rest, self._call(chunk.text)

    # --- attempts -------------------------------------------------------------------------

    async def _attempt(self) -> tuple[SummaryResult, list[TextGroup]]:
        """Return the summary that includes the next chunk, and the texts after the chunk."""
        run, task = self.run, self.task
        remaining_seconds = run.deadline - self.access.now()
        if run.failures >= MAX_FAILED_CALLS:
            detail = "Too many calls of the summariser failed"
            raise self._unavailable(detail, "too_many_failures")
        if remaining_seconds <= 0:
            raise self._unavailable("The summary was not ready in time", "timeout")
        chunk, rest, call = await asyncio.to_thread(self._next_chunk)
        call = replace(call, timeout_seconds=min(call.timeout_seconds, remaining_seconds))
        run.calls += 1
        try:
            completion = await self.access.gateway.complete(call)
        except ServiceUnavailable as exc:
            was_called = exc.facts.get("reason") not in _NOT_CALLED
            run.calls, run.failures = run.calls - (not was_called), run.failures + was_called
            raise
        run.add_usage(call, completion)
        earlier = (self.checklist.text, self.summary, self.retain or "")
        source_size = max(chunk.source_chars + sum(map(len, earlier)), task.min_chars)
        retains = task.request.wants_retain
        answer = parse_answer(completion, retains, source_size, is_last=self.is_strict)
        if isinstance(answer, str):
            run.failures += 1
            detail = "The model's answer cannot be used as a summary"
            raise self._unavailable(detail, "bad_answer", rejected=answer)
        return answer, rest

    def _has_next(self, exc: BaseException) -> bool:
        """Set what the attempt after a failed one does; return whether there is one (rule 2)."""
        if not isinstance(exc, ServiceUnavailable):
            return False
        run, reason, left = self.run, exc.facts.get("reason"), self.run.deadline - self.access.now()
        if run.failures >= MAX_FAILED_CALLS or reason == "spend_guard" or left <= 0:
            return False
        self.pause_seconds = None
        retry_after = float(exc.facts.get("retry_after", 0))
        may_wait = reason in _RETRIED and retry_after <= min(MAX_PAUSE_SECONDS, left)
        if reason == "bad_answer" and not self.is_strict:
            self.is_strict = True
        elif may_wait and self.tries < self.access.settings.attempts:
            self.tries, self.pause_seconds = self.tries + 1, retry_after
        elif reason == "context_window" and self.chunk_tokens // 2 >= MIN_CHUNK_TOKENS:
            self.max_chunk_tokens = self.chunk_tokens // 2
        else:
            if reason in _MODEL_UNAVAILABLE:
                run.failed_models.add(self.models[0])
            if len(self.models) == 1:
                return False
            self.models.pop(0)
            self.is_strict, self.tries, self.max_chunk_tokens = False, 1, None
        return True

    def _unavailable(self, detail: str, reason: str, **facts: str) -> ServiceUnavailable:
        return ServiceUnavailable(detail, {"reason": reason, "model": self.models[0], **facts})

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
6. `prepare` and `next_call` return what would be sent, without calling a model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential_jitter

from app.common.errors import ServiceUnavailable
from app.compaction.summaries.answer import SummaryResult, parse_answer
from app.compaction.summaries.checklist import (
    KEPT_SHARE,
    Checklist,
    kept_statements,
    kept_text,
    other_statements,
    split_kept,
    with_kept,
)
from app.compaction.summaries.chunking import Chunk, TextGroup, take_chunk
from app.compaction.summaries.prompt import SummaryRequest, prompt_hash, summary_messages
from app.compaction.summaries.run import SummariserRun, SummariserSettings
from app.compaction.summaries.secret_masking import SecretPatterns, compile_patterns, mask_secrets
from app.compaction.summaries.statements.ledger import StatementLedger
from app.compaction.summaries.statements.summary_text import NO_CLOSING, Closing
from app.compaction.summaries.transcript_limits import shortened_groups
from app.compaction.summaries.transcript_text import PartGroup
from app.formats.message import FormatName
from app.models.limits import INEXACT_MARGIN, ModelInfo, Models, merged_entry
from app.models.model_calls import Completion, Gateway, ModelCall
from app.models.tokens import Tokenizer

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
TakesPayload = Callable[[str, FormatName], Awaitable[bool]]
"""Returns whether the gateway sends payloads of a format to a model unchanged."""


async def no_entry(_tenant_id: str, _model: str) -> str | None:
    """Return no registry entry: tenants have none of their own."""
    return None


async def takes_no_payload(_model: str, _format: FormatName) -> bool:
    """Return that the gateway sends no payloads."""
    return False


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
    takes_payload: TakesPayload = takes_no_payload
    secrets: SecretPatterns = field(init=False)

    def __post_init__(self) -> None:
        self.secrets = compile_patterns(self.settings.secret_patterns)


@dataclass(slots=True)
class ModelSummary:
    """Makes one summary by a model.

    `groups` are what it summarises, `ledger` has the statements for its checklist, `closing` is its
    last line. `kept_tokens` is the room for the statements that are kept, by default half of
    `max_tokens`; the model's text has half of these in any case. `summary` and `retain` cover the
    texts before `remaining_texts`.
    """

    access: ModelAccess
    groups: Sequence[PartGroup]
    request: SummaryRequest
    model: str
    max_tokens: int
    run: SummariserRun
    summary: str | None = None
    retain: str | None = None
    has_verbatim: bool = False
    of_summaries: bool = False
    min_chars: int = 0
    ledger: StatementLedger | None = None
    closing: Closing = NO_CLOSING
    kept_tokens: int | None = None
    max_chunk_tokens: int | None = None
    checklist: Checklist = field(init=False, default_factory=Checklist)
    remaining_texts: Sequence[TextGroup] = field(init=False, default=())
    models: list[str] = field(init=False, default_factory=list)

    async def prepare(self) -> None:
        """Choose the models; mask and shorten what is sent."""
        run = self.run
        self.models = self._chosen_models()
        for model in self.models:
            if model not in run.infos:
                bundled = self.access.models.find(model)
                tenant_entry = await self.access.find_entry(run.tenant_id, model)
                run.infos[model] = (
                    bundled if tenant_entry is None else merged_entry(model, bundled, tenant_entry)
                )
        await asyncio.to_thread(self._prepare_texts)

    async def next_call(self) -> ModelCall:
        """Return the request for the next chunk; raises ServiceUnavailable without room for one."""
        return self._call((await asyncio.to_thread(self._next_chunk))[0].text, strict=False)

    async def make(self) -> SummaryResult:
        """Return the summary; raises ServiceUnavailable."""
        await self.prepare()
        self.run.prompt_hash = self._prompt_hash()
        while not await self._summarise_chunk():
            pass
        text = await asyncio.to_thread(
            with_kept,
            self.summary or "",
            self.checklist.kept,
            self.closing.text,
            self.max_tokens + self.access.tokenizer.count(self.closing.text)
            if self.checklist.kept
            else None,
            self.access.tokenizer.count,
        )
        return SummaryResult(text, self.retain if self.request.wants_retain else None)

    # --- what is sent ---------------------------------------------------------------------

    def _chosen_models(self) -> list[str]:
        """Return the models to call, in order."""
        models = [self.model]
        models += [name for name in self.access.settings.fallback_models if name != self.model]
        return [name for name in models if name not in self.run.failed_models] or models[-1:]

    def _prompt_hash(self) -> str:
        return prompt_hash(self.request)

    def _prepare_texts(self) -> None:
        """Mask the parts, choose the checklist, and shorten the parts to their share."""
        count = self.access.tokenizer.count
        _, self.summary = split_kept(self.summary or "")
        groups = [tuple(part.changed(self._mask) for part in group) for group in self.groups]
        source_tokens = sum(count(part.full_text) for group in groups for part in group)
        others_tokens = int(source_tokens * CHECKLIST_SHARE)
        self.max_tokens = max(MIN_ANSWER_TOKENS, self.max_tokens - count(self.closing.text))
        if self.ledger is not None:
            half = int(self.max_tokens * KEPT_SHARE)
            kept = kept_statements(self.ledger, max(half, self.kept_tokens or 0), count)
            self.checklist = Checklist(kept)
            self.max_tokens += max(0, count(kept_text(kept)) - half)
        self.remaining_texts = self._texts_of(groups, source_tokens, others_tokens)
        if self.ledger is not None:
            texts = (item.text for group in self.remaining_texts for item in group)
            sent = "\n".join((self.summary, *texts))
            others = other_statements(self.ledger, sent, others_tokens, count)
            self.checklist = replace(self.checklist, others=others)

    def _texts_of(
        self, groups: Sequence[PartGroup], source_tokens: int, others_tokens: int
    ) -> list[TextGroup]:
        """Return the texts to summarise, shortened to their share."""
        count = self.access.tokenizer.count
        fixed_tokens = sum(count(part["content"]) for part in self._call("", False).messages)
        max_tokens = max(
            MIN_TRANSCRIPT_TOKENS,
            int(source_tokens * TRANSCRIPT_SHARE),
            int(source_tokens * SENT_SHARE) - fixed_tokens - others_tokens,
        )
        return shortened_groups(groups, max_tokens, count)

    def _mask(self, text: str) -> str:
        return mask_secrets(text, self.access.secrets)

    def _next_chunk(self) -> tuple[Chunk, list[TextGroup]]:
        return take_chunk(self.remaining_texts, self._chunk_tokens(), self.access.tokenizer)

    # --- chunk by chunk -------------------------------------------------------------------

    async def _summarise_chunk(self) -> bool:
        """Add the next chunk to the summary; return whether it was the last."""
        chunk = Chunk()
        try:
            chunk, rest = await asyncio.to_thread(self._next_chunk)
            answer = await self._answer(chunk)
        except ServiceUnavailable as exc:
            await asyncio.to_thread(self._change_attempt, exc, chunk.text)
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

    async def _answer(self, chunk: Chunk) -> SummaryResult:
        """Request the summary of one chunk, and once more with a stricter prompt."""
        source_size = chunk.source_chars + len(self.checklist.text)
        source_size += len(self.summary or "") + len(self.retain or "")
        source_size = max(source_size, self.min_chars, self.run.min_chars)
        rejected = ""
        for strict in (False, True):
            call = await asyncio.to_thread(self._call, chunk.text, strict)
            completion = await self._complete_with_retries(call)
            answer = parse_answer(completion, self.request.wants_retain, source_size)
            if isinstance(answer, SummaryResult):
                return await asyncio.to_thread(self._accepted, answer)
            rejected = answer
            self.run.failures += 1
            if self.run.failures >= MAX_FAILED_CALLS:
                break
        detail = "The model's answer cannot be used as a summary"
        raise self._unavailable(detail, "bad_answer", rejected=rejected)

    def _accepted(self, answer: SummaryResult) -> SummaryResult:
        """Return what of an accepted answer is used."""
        return answer

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

    def _max_words(self) -> int:
        """Return how many words the answer may have by the prompt.

        What is put above the answer takes room; an answer that repeats it is not cut off.
        """
        kept_tokens = self.access.tokenizer.count(kept_text(self.checklist.kept))
        own_tokens = max(MIN_ANSWER_TOKENS, self._answer_tokens() - kept_tokens)
        return int(own_tokens * WORDS_PER_TOKEN)

    def _call(self, chunk: str, strict: bool) -> ModelCall:
        messages = summary_messages(
            chunk,
            self.request,
            previous=self._mask(self.summary or ""),
            retained=self._mask(self.retain or ""),
            checklist=self._mask(self.checklist.text),
            has_verbatim=self.has_verbatim,
            of_summaries=self.of_summaries,
            strict=strict,
            max_words=self._max_words(),
        )
        return ModelCall(
            self.models[0],
            messages,
            self._answer_tokens(),
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

    def _room_beside_instructions(self) -> int:
        """Return the tokens of input that fit beside the instructions and the answer."""
        window, info = self._context_window()
        total = window - self._answer_tokens()
        if info and info.max_input_tokens:
            total = min(total, info.max_input_tokens)
        call = self._call("", strict=True)
        instructions = "".join(part["content"] for part in call.messages)
        margin = info.margin if info else INEXACT_MARGIN
        return int(total / (1 + margin)) - self.access.tokenizer.count(instructions) - 16

    def _chunk_tokens(self) -> int:
        """Return the tokens of a chunk."""
        tokens = self._room_beside_instructions()
        if self.max_chunk_tokens is not None:
            tokens = min(tokens, self.max_chunk_tokens)
        if tokens < MIN_CHUNK_TOKENS:
            detail = "The instructions alone fill the summariser's context window"
            raise self._unavailable(detail, "context_window")
        return tokens


def _retry_after(exc: BaseException | None) -> float:
    """Return the pause in seconds that a provider requests."""
    return float(exc.facts.get("retry_after", 0)) if isinstance(exc, ServiceUnavailable) else 0.0

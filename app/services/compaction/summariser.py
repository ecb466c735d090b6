"""Summaries: which model makes them, and how an answer worth keeping is got out of it (E3, E5, E9).

1. What does not fit the model's window is cut between messages and folded: the summary of each
   chunk is carried into the next one. Only a message larger than a chunk is cut inside.
2. An answer that is not accepted is asked for once more, more strictly; then it is a failure.
3. A provider that limits or fails is tried again after a pause, then the fallback models take
   over in order. `SummariserCalls` counts the calls of one compaction: six failing calls end it,
   and so does its deadline. A model that failed so is not called again.
4. Without a model the built-in extractive summariser answers, and says so.
5. Counting, masking and extracting large input happens in a thread (the loop never stalls).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    wait_exponential_jitter,
)

from app.domain.common.errors import ServiceUnavailable, ValidationError
from app.domain.common.messages import Message
from app.domain.compaction.extractive import DECISIONS, EARLIER, IDENTIFIERS, extract, read_digest
from app.domain.compaction.secret_masking import (
    DEFAULT_SECRET_PATTERNS,
    compile_patterns,
    mask_secrets,
)
from app.domain.compaction.summaries import (
    EXTRACTIVE,
    Answer,
    Completion,
    ModelCall,
    Rejected,
    SummaryRequest,
    format_messages,
    format_summaries,
    parse_answer,
    prompt_hash,
    summary_request,
    without_trailing_calls,
)
from app.domain.models.limits import INEXACT_MARGIN, ModelInfo, overlaid
from app.services.ports import Gateway, Models, Tokenizer

MAX_FAILING_CALLS = 6
MAX_PAUSE_SECONDS = 20.0
"""A provider that wants a longer pause before the next call is not waited for."""
MIN_CHUNK_TOKENS = 128
MAX_NAMED_MODELS = 10
"""So many of the allowed models are named where another was asked for."""
EXTRACT_CHARS_PER_TOKEN = 3
"""Characters of a digest per token allowed; prose has about four, identifiers fewer."""
RETAIN_SHARE = 0.25
"""The share of an extract that its retain may take."""
WORDS_PER_TOKEN = 0.6

_TRY_AGAIN = frozenset({"rate_limited", "provider_error"})
_PROVIDER_DOWN = _TRY_AGAIN | {"timeout", "authentication", "circuit_open"}
_FINAL = frozenset({"bad_answer", "spend_guard"})
_NOT_CALLED = frozenset({"circuit_open", "spend_guard"})

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]
FindEntry = Callable[[str, str], Awaitable[str | None]]
"""Returns a tenant's own registry entry for a model as JSON text, None without one (J5)."""


async def no_entry(_tenant_id: str, _model: str) -> str | None:
    """Return no entry, where tenants have none of their own."""
    return None


@dataclass(frozen=True, slots=True)
class SummariserSettings:
    """Which models may be called, and how patiently.

    `timeout_seconds` is the deadline of one call, `deadline_seconds` the one of a whole effort.
    `context_window` is assumed for a model whose window nobody knows. `attempts` counts the
    tries per model when its provider limits or fails; the pause between them starts at
    `backoff_seconds` and doubles.
    """

    model: str | None
    allowed_models: tuple[str, ...]
    fallback_models: tuple[str, ...]
    timeout_seconds: float
    context_window: int = 32_000
    attempts: int = 2
    backoff_seconds: float = 0.5
    secret_patterns: tuple[str, ...] = DEFAULT_SECRET_PATTERNS
    deadline_seconds: float = 300.0


@dataclass(slots=True)
class SummariserCalls:
    """The model calls of one compaction: what they may still take, and what they took (E8, E9).

    `deadline` is on the summariser's clock. `calls` counts failed calls too. `model` is the one
    that answered last, `extractive` for the built-in summariser; `cost_usd` is None where a
    price is unknown. `infos` holds what is known of each model asked, the tenant's own entry
    laid over the bundled one. A mutable companion of one compaction, never shared between two.
    """

    tenant_id: str
    deadline: float
    calls: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    model: str = EXTRACTIVE
    prompt_hash: str = EXTRACTIVE
    given_up: set[str] = field(default_factory=set)
    infos: dict[str, ModelInfo | None] = field(default_factory=dict)

    def spend(self, model: str, completion: Completion, price: float | None) -> None:
        """Add what an answered call took."""
        self.model = model
        self.input_tokens += completion.input_tokens
        self.output_tokens += completion.output_tokens
        both_known = self.cost_usd is not None and price is not None
        self.cost_usd = (self.cost_usd or 0.0) + (price or 0.0) if both_known else None

    def extracted(self) -> None:
        """Note that the built-in summariser answered last."""
        self.model = self.prompt_hash = EXTRACTIVE


@dataclass(frozen=True, slots=True)
class SummaryResult:
    """A summary, and what was asked to be retained beside it (E4)."""

    text: str
    retain: str | None


@dataclass(slots=True)
class _Run:
    """One summary in the making: what is left of the text, and what it is made with."""

    ask: SummaryRequest
    effort: SummariserCalls
    models: list[str]
    max_tokens: int
    pieces: list[str]
    summary: str | None = None
    retain: str | None = None
    has_kept: bool = False
    of_summaries: bool = False
    most_chunk_tokens: int | None = None
    least_chars: int = 0


class Summariser:
    """Summarises messages by a model or, without one, by extraction."""

    def __init__(
        self,
        gateway: Gateway,
        models: Models,
        tokenizer: Tokenizer,
        settings: SummariserSettings,
        sleep: Sleep = asyncio.sleep,
        now: Clock = time.monotonic,
        find_entry: FindEntry = no_entry,
    ) -> None:
        self._gateway = gateway
        self._models = models
        self._tokenizer = tokenizer
        self._settings = settings
        self._sleep = sleep
        self._now = now
        self._find_entry = find_entry
        self._secrets = compile_patterns(settings.secret_patterns)
        configured = (settings.model, *settings.fallback_models, *settings.allowed_models)
        self._allowed = frozenset(model for model in configured if model)

    def choose_model(
        self, call_model: str | None, policy_model: str | None, conversation_model: str | None
    ) -> str | None:
        """Return the model that summarises, None for the built-in summariser (E5).

        Raises ValidationError when the call or the policy asks for one that is not allowed.
        """
        for asked, pointer in ((call_model, "/model"), (policy_model, "/policy/compaction/model")):
            if asked == EXTRACTIVE:
                return None
            if asked is not None:
                self.check_model(asked, pointer)
                return asked
        if self._settings.model is not None:
            return self._settings.model
        return conversation_model if conversation_model in self._allowed else None

    def check_model(self, model: str, pointer: str) -> None:
        """Raise ValidationError at this place for a model that may not summarise (E5)."""
        if model == EXTRACTIVE or model in self._allowed:
            return
        names = [repr(name) for name in sorted(self._allowed)[:MAX_NAMED_MODELS]]
        more = len(self._allowed) - len(names)
        allowed = ", ".join((*names, *([f"{more} more"] * (more > 0)), repr(EXTRACTIVE)))
        raise ValidationError.at(
            pointer, f"The model {model!r} may not summarise; these may: {allowed}"
        )

    def effort(self, tenant_id: str) -> SummariserCalls:
        """Return a fresh effort, whose deadline begins to run now."""
        return SummariserCalls(tenant_id, self._now() + self._settings.deadline_seconds)

    async def summarise(
        self,
        messages: Sequence[Message],
        previous: str | None,
        ask: SummaryRequest,
        model: str | None,
        max_tokens: int,
        effort: SummariserCalls,
        *,
        is_end: bool = True,
        kept: frozenset[int] = frozenset(),
        retained: str | None = None,
        least_chars: int = 0,
    ) -> SummaryResult:
        """Return a summary of `previous` and the messages together.

        `is_end` tells that nothing follows the messages: then calls at their end are left out.
        `kept` are the places of messages that stay word for word beside the summary (D8);
        `retained` is what the retain of `previous` says so far. A summary of `least_chars` is
        accepted even if what it is made of is shorter.

        Raises ServiceUnavailable with `facts["reason"]` when no model gives a usable answer;
        nothing partial is returned (E9). Raises ValidationError without anything to summarise.
        """
        if len(kept) >= len(messages) and not previous and not retained:
            raise ValidationError.at("/messages", "Conversation has no messages")
        if model is None:
            fresh = [message for place, message in enumerate(messages) if place not in kept]
            effort.extracted()
            return await asyncio.to_thread(
                self._extract, fresh, previous, retained, ask, max_tokens
            )
        run = _Run(
            ask=ask,
            effort=effort,
            models=self._line_up(model, effort),
            max_tokens=max_tokens,
            pieces=await asyncio.to_thread(self._pieces, messages, is_end, kept),
            summary=previous,
            retain=retained,
            has_kept=bool(kept),
            least_chars=least_chars,
        )
        return await self._through(run)

    async def fold(
        self,
        texts: Sequence[str],
        ask: SummaryRequest,
        model: str | None,
        max_tokens: int,
        effort: SummariserCalls,
    ) -> str:
        """Return one summary of several, which are given oldest first (D3); raises likewise."""
        if model is None:
            effort.extracted()
            return await asyncio.to_thread(self._digest, (), "\n\n".join(texts), max_tokens)
        plain = SummaryRequest(ask.prompt, ask.directives, instructions=ask.instructions)
        run = _Run(
            ask=plain,
            effort=effort,
            models=self._line_up(model, effort),
            max_tokens=max_tokens,
            pieces=await asyncio.to_thread(self._masked, format_summaries(texts)),
            of_summaries=True,
        )
        return (await self._through(run)).text

    # --- without a model ------------------------------------------------------------------

    def _extract(
        self,
        messages: Sequence[Message],
        previous: str | None,
        retained: str | None,
        ask: SummaryRequest,
        max_tokens: int,
    ) -> SummaryResult:
        if not ask.wants_retain:
            before = "\n\n".join(filter(None, (previous, _quoted(retained))))
            return SummaryResult(self._digest(messages, before, max_tokens), None)
        room = int(max_tokens * RETAIN_SHARE)
        text = self._digest(messages, previous, max_tokens - room)
        return SummaryResult(text, _retain_of(text, retained, room * EXTRACT_CHARS_PER_TOKEN))

    def _digest(self, messages: Sequence[Message], previous: str | None, max_tokens: int) -> str:
        most_chars = max_tokens * EXTRACT_CHARS_PER_TOKEN
        while True:
            text = extract(messages, previous, most_chars)
            tokens = self._tokenizer.count(text)
            if tokens <= max_tokens:
                return text
            most_chars = int(min(most_chars, len(text)) * max_tokens / tokens * 0.95)

    # --- by a model -----------------------------------------------------------------------

    def _line_up(self, model: str, effort: SummariserCalls) -> list[str]:
        """Return the models to ask, in order (rule 3)."""
        fallbacks = (name for name in self._settings.fallback_models if name != model)
        models = [model, *fallbacks]
        return [name for name in models if name not in effort.given_up] or models[-1:]

    def _pieces(self, messages: Sequence[Message], is_end: bool, kept: frozenset[int]) -> list[str]:
        shown = (is_end and without_trailing_calls(messages)) or messages
        return self._masked(format_messages(shown, kept))

    def _masked(self, texts: Sequence[str]) -> list[str]:
        return [mask_secrets(text, self._secrets) for text in texts]

    async def _through(self, run: _Run) -> SummaryResult:
        """Fold chunk after chunk until all is summarised."""
        run.effort.prompt_hash = prompt_hash(run.ask)
        await self._look_up(run)
        while not await self._fold_chunk(run):
            pass
        return SummaryResult(run.summary or "", run.retain if run.ask.wants_retain else None)

    async def _look_up(self, run: _Run) -> None:
        """Learn the limits and prices of the models to ask, once for each effort."""
        effort = run.effort
        for model in run.models:
            if model not in effort.infos:
                bundled = self._models.find(model)
                own = await self._find_entry(effort.tenant_id, model)
                effort.infos[model] = bundled if own is None else overlaid(model, bundled, own)

    async def _fold_chunk(self, run: _Run) -> bool:
        """Summarise the next chunk into the summary so far; true when it was the last."""
        chunk = ""
        try:
            room = await asyncio.to_thread(self._room, run)
            chunk, rest = await asyncio.to_thread(take_chunk, run.pieces, room, self._tokenizer)
            answer = await self._answer(run, chunk)
        except ServiceUnavailable as exc:
            await asyncio.to_thread(self._step_down, run, exc, chunk)
            return False
        # Retaining nothing new is no reason to forget what was to be kept.
        run.summary, run.retain, run.pieces = answer.summary, answer.retain or run.retain, rest
        return not rest

    def _step_down(self, run: _Run, exc: ServiceUnavailable, chunk: str) -> None:
        """Make the next attempt easier, or give up: smaller chunks first, then other models."""
        reason = exc.facts.get("reason")
        if reason in _FINAL or run.effort.failures >= MAX_FAILING_CALLS or self._is_late(run):
            raise exc
        half = self._tokenizer.count(chunk) // 2
        if reason in _PROVIDER_DOWN:
            run.effort.given_up.add(run.models[0])
        if reason == "context_window" and half >= MIN_CHUNK_TOKENS:
            run.most_chunk_tokens = half
        elif len(run.models) > 1:
            run.models.pop(0)
            run.most_chunk_tokens = None
        else:
            raise exc

    async def _answer(self, run: _Run, chunk: str) -> Answer:
        """Ask for one chunk's summary, and once more strictly (rule 2)."""
        source_size = len(chunk) + len(run.summary or "") + len(run.retain or "")
        source_size = max(source_size, run.least_chars)
        rejected = Rejected("")
        for strict in (False, True):
            call = await asyncio.to_thread(self._call, run, chunk, strict)
            parsed = parse_answer(
                await self._completion(run, call), run.ask.wants_retain, source_size
            )
            if isinstance(parsed, Answer):
                return parsed
            rejected = parsed
            run.effort.failures += 1
            if run.effort.failures >= MAX_FAILING_CALLS:
                break
        raise ServiceUnavailable(
            "The model's answer cannot be used as a summary",
            {"reason": "bad_answer", "model": run.models[0], "rejected": rejected.reason},
        )

    async def _completion(self, run: _Run, call: ModelCall) -> Completion:
        """Call the model, again after a pause when its provider limits or fails."""
        effort, attempts = run.effort, self._settings.attempts

        def is_enough(state: RetryCallState) -> bool:
            late = self._now() + state.upcoming_sleep >= effort.deadline
            return late or state.attempt_number >= attempts

        retrying = AsyncRetrying(
            sleep=self._sleep,
            retry=retry_if_exception(lambda exc: _is_passing(exc, effort)),
            wait=self._pause,
            stop=is_enough,
            reraise=True,
        )
        return await retrying(self._complete, run, call)

    async def _complete(self, run: _Run, call: ModelCall) -> Completion:
        effort = run.effort
        call = self._in_time(effort, call)
        effort.calls += 1
        try:
            completion = await self._gateway.complete(call)
        except ServiceUnavailable as exc:
            if exc.facts.get("reason") in _NOT_CALLED:
                effort.calls -= 1
            else:
                effort.failures += 1
            raise
        effort.spend(call.model, completion, completion.cost(call.info))
        return completion

    def _in_time(self, effort: SummariserCalls, call: ModelCall) -> ModelCall:
        """Return the call with no more time than is left; raises when nothing is left (rule 3)."""
        if effort.failures >= MAX_FAILING_CALLS:
            raise ServiceUnavailable(
                "Too many calls of the summariser failed",
                {"reason": "too_many_failures", "model": call.model},
            )
        left = effort.deadline - self._now()
        if left <= 0:
            raise ServiceUnavailable(
                "The summary was not ready in time", {"reason": "timeout", "model": call.model}
            )
        return replace(call, timeout_seconds=min(call.timeout_seconds, left))

    def _pause(self, state: RetryCallState) -> float:
        first = self._settings.backoff_seconds
        backoff = wait_exponential_jitter(first, MAX_PAUSE_SECONDS, jitter=first)(state)
        exc = state.outcome.exception() if state.outcome else None
        return max(backoff, _wanted_pause(exc))

    def _is_late(self, run: _Run) -> bool:
        return self._now() >= run.effort.deadline

    def _call(self, run: _Run, chunk: str, strict: bool) -> ModelCall:
        max_tokens = self._max_tokens(run)
        messages = summary_request(
            chunk,
            run.ask,
            previous=mask_secrets(run.summary, self._secrets) if run.summary else None,
            retained=mask_secrets(run.retain, self._secrets) if run.retain else None,
            has_kept=run.has_kept,
            of_summaries=run.of_summaries,
            strict=strict,
            max_words=int(max_tokens * WORDS_PER_TOKEN),
        )
        return ModelCall(
            run.models[0],
            messages,
            max_tokens,
            self._settings.timeout_seconds,
            run.effort.tenant_id,
            run.effort.infos.get(run.models[0]),
        )

    def _window(self, run: _Run) -> tuple[int, ModelInfo | None]:
        info = run.effort.infos.get(run.models[0])
        known = (info.context_window or info.max_input_tokens) if info else None
        return known or self._settings.context_window, info

    def _max_tokens(self, run: _Run) -> int:
        """Return the answer's limit: what is asked for, what the model can, half its window."""
        window, info = self._window(run)
        able = info.max_output_tokens if info and info.max_output_tokens else window
        return max(1, min(run.max_tokens, able, window // 2))

    def _room(self, run: _Run) -> int:
        """Return the tokens of a chunk that fit beside the instructions and the answer."""
        window, info = self._window(run)
        total = window - self._max_tokens(run)
        if info and info.max_input_tokens:
            total = min(total, info.max_input_tokens)
        bare = "".join(part["content"] for part in self._call(run, "", strict=True).messages)
        margin = info.margin if info else INEXACT_MARGIN
        room = int(total / (1 + margin)) - self._tokenizer.count(bare) - 16
        if run.most_chunk_tokens is not None:
            room = min(room, run.most_chunk_tokens)
        if room < MIN_CHUNK_TOKENS:
            raise ServiceUnavailable(
                "The instructions alone fill the summariser's window",
                {"reason": "context_window", "model": run.models[0]},
            )
        return room


def _wanted_pause(exc: BaseException | None) -> float:
    """Return for how many seconds a provider asks to be left alone."""
    return float(exc.facts.get("retry_after", 0)) if isinstance(exc, ServiceUnavailable) else 0.0


def _is_passing(exc: BaseException, effort: SummariserCalls) -> bool:
    return (
        isinstance(exc, ServiceUnavailable)
        and exc.facts.get("reason") in _TRY_AGAIN
        and _wanted_pause(exc) <= MAX_PAUSE_SECONDS
        and effort.failures < MAX_FAILING_CALLS
    )


def _quoted(retained: str | None) -> str:
    """Return an earlier retain as a digest's section, so that a digest takes it up."""
    if not retained:
        return ""
    items = "\n".join(f"- {line.removeprefix('- ')}" for line in retained.splitlines())
    return f"## {EARLIER}\n{items}"


def _retain_of(digest: str, retained: str | None, most_chars: int) -> str | None:
    """Return what was retained with the decisions and identifiers of a digest, newest last."""
    sections = read_digest(digest).items
    found = [f"- {item}" for name in (DECISIONS, IDENTIFIERS) for item in sections[name]]
    lines = list(dict.fromkeys((*(retained or "").splitlines(), *found)))
    while lines and sum(len(line) + 1 for line in lines) > most_chars:
        del lines[0]
    return "\n".join(lines) or None


def take_chunk(pieces: Sequence[str], room: int, tokenizer: Tokenizer) -> tuple[str, list[str]]:
    """Return the first pieces that fit into `room` tokens as one text, and the other pieces.

    A first piece that is too large alone is cut in the middle.
    """
    taken: list[str] = []
    left = room
    for piece in pieces:
        tokens = tokenizer.count(piece) + 2
        if tokens > left:
            break
        taken.append(piece)
        left -= tokens
    if not taken and pieces:
        taken = [cut_middle(pieces[0], room, tokenizer)]
    return "\n\n".join(taken), list(pieces[len(taken) :])


def cut_middle(text: str, room: int, tokenizer: Tokenizer) -> str:
    """Return the text with its middle left out, and a note of how much, within `room` tokens."""
    keep = min(len(text), room * 8)
    while True:
        tokens = tokenizer.count(text[: keep // 2]) + tokenizer.count(text[-(keep // 2) :])
        if tokens + 24 <= room or keep < 2:
            break
        keep = min(keep - 1, int(keep * room / (tokens + 24) * 0.95))
    head, tail = text[: keep // 2], text[len(text) - keep // 2 :]
    return f"{head}\n[… {len(text) - len(head) - len(tail):,} characters left out …]\n{tail}"

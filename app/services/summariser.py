"""Summaries: which model makes them, and how an answer worth keeping is got out of it (E3, E5, E9).

1. What does not fit the model's window is cut between messages and folded: the summary of each
   chunk is carried into the next one. Only a message larger than a chunk is cut inside.
2. An answer that is not accepted is asked for once more, more strictly; then it is a failure.
3. A provider that limits or fails is tried again after a pause, then the fallback models take
   over in order. Six failing calls end a summary, whatever comes.
4. Without a model the built-in extractive summariser answers, and says so.
5. Counting, masking and extracting large input happens in a thread (the loop never stalls).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from app.domain.errors import ServiceUnavailable, ValidationError
from app.domain.extractive import extract
from app.domain.limits import INEXACT_MARGIN, ModelInfo
from app.domain.messages import Message
from app.domain.summaries import (
    DEFAULT_SECRET_PATTERNS,
    EXTRACTIVE,
    Answer,
    Completion,
    ModelCall,
    Rejected,
    SummaryAsk,
    compile_patterns,
    format_messages,
    mask_secrets,
    parse_answer,
    prompt_hash,
    summary_request,
    without_trailing_calls,
)
from app.services.ports import Gateway, Models, Tokenizer

MOST_FAILING_CALLS = 6
LEAST_CHUNK_TOKENS = 128
EXTRACT_CHARS_PER_TOKEN = 3
"""Characters of a digest per token allowed; prose has about four, identifiers fewer."""
WORDS_PER_TOKEN = 0.6

_TRY_AGAIN = frozenset({"rate_limited", "provider_error"})

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SummariserSettings:
    """Which models may be called, and how patiently.

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


@dataclass(frozen=True, slots=True)
class SummaryResult:
    """A summary with what it cost; `calls` counts every call made, failed ones too.

    `model` is the one that answered last, `extractive` for the built-in summariser;
    `cost_usd` is None where a price is unknown.
    """

    text: str
    retain: str | None
    model: str
    input_tokens: int
    output_tokens: int
    calls: int
    prompt_hash: str
    cost_usd: float | None


@dataclass(slots=True)
class _Run:
    """One summary in the making: what is left of the text, and what was spent."""

    ask: SummaryAsk
    models: list[str]
    max_tokens: int
    pieces: list[str]
    summary: str | None
    retain: str | None = None
    most_chunk_tokens: int | None = None
    calls: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    costs: list[float | None] = field(default_factory=list)

    @property
    def previous(self) -> str | None:
        """What the next chunk continues: the summary so far, and what was retained."""
        if self.retain is None:
            return self.summary
        return f"{self.summary}\n\nRetained so far:\n{self.retain}"


class Summariser:
    """Summarises messages by a model or, without one, by extraction."""

    def __init__(
        self,
        gateway: Gateway,
        models: Models,
        tokenizer: Tokenizer,
        settings: SummariserSettings,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._gateway = gateway
        self._models = models
        self._tokenizer = tokenizer
        self._settings = settings
        self._sleep = sleep
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
                if asked not in self._allowed:
                    raise ValidationError.at(pointer, f"The model {asked!r} may not summarise")
                return asked
        if self._settings.model is not None:
            return self._settings.model
        return conversation_model if conversation_model in self._allowed else None

    async def summarise(
        self,
        messages: Sequence[Message],
        previous: str | None,
        ask: SummaryAsk,
        model: str | None,
        max_summary_tokens: int,
        *,
        is_end: bool = True,
    ) -> SummaryResult:
        """Return a summary of `previous` and the messages together.

        `is_end` tells that nothing follows the messages: then calls at their end are left out.

        Raises ServiceUnavailable with `facts["reason"]` when no model gives a usable answer;
        nothing partial is returned (E9). Raises ValidationError without anything to summarise.
        """
        if not messages and not previous:
            raise ValidationError.at("/messages", "Conversation has no messages")
        if model is None:
            return await self._extract(messages, previous, max_summary_tokens)
        run = _Run(
            ask=ask,
            models=[model, *(name for name in self._settings.fallback_models if name != model)],
            max_tokens=max_summary_tokens,
            pieces=await asyncio.to_thread(self._pieces, messages, is_end),
            summary=previous,
        )
        while not await self._fold(run):
            pass
        return SummaryResult(
            text=run.summary or "",
            retain=run.retain,
            model=run.models[0],
            input_tokens=run.input_tokens,
            output_tokens=run.output_tokens,
            calls=run.calls,
            prompt_hash=prompt_hash(ask),
            cost_usd=_sum(run.costs),
        )

    async def _extract(
        self, messages: Sequence[Message], previous: str | None, max_tokens: int
    ) -> SummaryResult:
        text = await asyncio.to_thread(self._digest, messages, previous, max_tokens)
        return SummaryResult(text, None, EXTRACTIVE, 0, 0, 0, EXTRACTIVE, 0.0)

    def _digest(self, messages: Sequence[Message], previous: str | None, max_tokens: int) -> str:
        most_chars = max_tokens * EXTRACT_CHARS_PER_TOKEN
        while True:
            text = extract(messages, previous, most_chars)
            tokens = self._tokenizer.count(text)
            if tokens <= max_tokens:
                return text
            most_chars = int(min(most_chars, len(text)) * max_tokens / tokens * 0.95)

    def _pieces(self, messages: Sequence[Message], is_end: bool) -> list[str]:
        texts = format_messages((is_end and without_trailing_calls(messages)) or messages)
        return [mask_secrets(text, self._secrets) for text in texts]

    async def _fold(self, run: _Run) -> bool:
        """Summarise the next chunk into the summary so far; true when it was the last."""
        chunk = ""
        try:
            room = await asyncio.to_thread(self._room, run)
            chunk, rest = await asyncio.to_thread(take_chunk, run.pieces, room, self._tokenizer)
            answer = await self._answer(run, chunk)
        except ServiceUnavailable as exc:
            await asyncio.to_thread(self._step_down, run, exc, chunk)
            return False
        run.summary, run.retain, run.pieces = answer.summary, answer.retain, rest
        return not rest

    def _step_down(self, run: _Run, exc: ServiceUnavailable, chunk: str) -> None:
        """Make the next attempt easier, or give up: smaller chunks first, then other models."""
        reason = exc.facts.get("reason")
        if run.failures >= MOST_FAILING_CALLS or reason == "bad_answer":
            raise exc
        half = self._tokenizer.count(chunk) // 2
        if reason == "context_window" and half >= LEAST_CHUNK_TOKENS:
            run.most_chunk_tokens = half
        elif len(run.models) > 1:
            run.models.pop(0)
            run.most_chunk_tokens = None
        else:
            raise exc

    async def _answer(self, run: _Run, chunk: str) -> Answer:
        """Ask for one chunk's summary, and once more strictly (rule 2)."""
        source_size = len(chunk) + len(run.previous or "")
        rejected = Rejected("")
        for strict in (False, True):
            parsed = parse_answer(
                await self._completion(run, chunk, strict), run.ask.wants_retain, source_size
            )
            if isinstance(parsed, Answer):
                return parsed
            rejected = parsed
            run.failures += 1
            if run.failures >= MOST_FAILING_CALLS:
                break
        raise ServiceUnavailable(
            "The model's answer cannot be used as a summary",
            {"reason": "bad_answer", "model": run.models[0], "rejected": rejected.reason},
        )

    async def _completion(self, run: _Run, chunk: str, strict: bool) -> Completion:
        call = self._call(run, chunk, strict)
        pause = self._settings.backoff_seconds
        tries = 1
        while True:
            run.calls += 1
            try:
                completion = await self._gateway.complete(call)
            except ServiceUnavailable as exc:
                run.failures += 1
                again = exc.facts.get("reason") in _TRY_AGAIN and tries < self._settings.attempts
                if not again or run.failures >= MOST_FAILING_CALLS:
                    raise
                await self._sleep(pause)
                tries, pause = tries + 1, pause * 2
            else:
                self._spend(run, completion)
                return completion

    def _call(self, run: _Run, chunk: str, strict: bool) -> ModelCall:
        ask = run.ask
        max_tokens = self._max_tokens(run)
        messages = summary_request(
            chunk,
            mask_secrets(run.previous, self._secrets) if run.previous else None,
            ask.prompt,
            ask.directives,
            ask.retain_prompt,
            ask.retain_directives,
            ask.instructions,
            strict,
            max_words=int(max_tokens * WORDS_PER_TOKEN),
        )
        return ModelCall(run.models[0], messages, max_tokens, self._settings.timeout_seconds)

    def _spend(self, run: _Run, completion: Completion) -> None:
        run.input_tokens += completion.input_tokens
        run.output_tokens += completion.output_tokens
        info = self._models.find(run.models[0])
        cost = info.cost(completion.input_tokens, completion.output_tokens) if info else None
        run.costs.append(cost)

    def _window(self, run: _Run) -> tuple[int, ModelInfo | None]:
        info = self._models.find(run.models[0])
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
        if room < LEAST_CHUNK_TOKENS:
            raise ServiceUnavailable(
                "The instructions alone fill the summariser's window",
                {"reason": "context_window", "model": run.models[0]},
            )
        return room


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


def _sum(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None

"""Builds: from a conversation to the payload of its next model call.

Each stage is a function from a value to the next:

    read      conversation, last epoch, and what a cached payload of it lacks, in one select; none
              of it after an append in the same request, if nothing else happened since
    settings  of the conversation, its agent and this request
    view      the last epoch's view while it holds, else a new one: `choose_view.py`
    fit       clear tool results, compact, or reduce without a model; continue the last epoch or
              begin a new one, and render, until the payload fits: `fit.py`, `epoch_reasons.py`
    record    the start of a new epoch
    answer    items to the provider's request: `build_answer.py`

A stage that changes the conversation, or finds it changed, returns `Retry`: then the build begins
again with the read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from app.common import json_text
from app.common.errors import Conflict, NotFound, ValidationError
from app.context.build_answer import RecordedBuild, respond, with_shown
from app.context.choose_view import choose_view
from app.context.epoch_reasons import EpochChoice, with_changes_as_items
from app.context.fit import Fitted, fit
from app.context.overflow import (
    context_overflow,
    leave_out_media,
    leave_out_reasoning,
    reduce_after_overflow,
    refusal,
)
from app.context.repository import BuildInput
from app.context.schemas import Known
from app.context.state import (
    Attempt,
    BuildDependencies,
    BuildState,
    CachedPayload,
    Overflow,
    PayloadCache,
    Retry,
)
from app.conversations.epoch import BuildId, Epoch, payload_stream_of, requested_context_window
from app.conversations.from_rows import epoch_start_from
from app.conversations.messages.service import StoredBatch
from app.conversations.pressure import BudgetStatus, read_budget, stored_tokens_of
from app.conversations.receipt import UNOBSERVED, CompactResult, is_shown_with, unchanged
from app.formats import PROVIDERS
from app.models.error_verdicts import Verdict, VerdictKind
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import RequestSettings, check_tools, digest

_MAX_ROUNDS = 12
_INPUT_TOO_LONG = Verdict(VerdictKind.INPUT_TOO_LONG)
MAX_FACTOR_DRIFT = 0.05
"""An epoch keeps its factor while the model's present factor differs by at most this share."""
MIN_EXTRA_CHANGE = 64
"""A smaller change inside an epoch is not stored: a build seldom writes anything."""
_Result = TypeVar("_Result")
_Reduction = Callable[[BuildDependencies, BuildState], Awaitable[CompactResult | Retry | Overflow]]


class ContextService:
    """Builds payloads and reads budgets.

    A build raises NotFound, ValidationError (no messages, no model), ContextLimitUnknown, or
    ContextOverflow with the budget when no valid payload fits.
    """

    def __init__(self, dependencies: BuildDependencies) -> None:
        self._deps = dependencies

    async def budget(self, tenant_id: str, conversation_id: str) -> BudgetStatus | None:
        """Return the budget of the stored settings, None while no context window is known."""
        resolver, database = self._deps.resolver, self._deps.database
        async with database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
        conversation = await self._deps.active.updated(tenant_id, conversation)
        async with database.session() as session:
            return await read_budget(session, resolver, conversation)

    async def build(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        known: Known | None = None,
        appended: StoredBatch | None = None,
    ) -> dict[str, Any]:
        """Return the payload of the next model call, or a delta to the known payload.

        With the batch that was just appended it need not be read.
        """
        return await self._answer(Attempt(tenant_id, conversation_id, settings, known, appended))

    async def dry_run(
        self, tenant_id: str, conversation_id: str, settings: RequestSettings
    ) -> dict[str, Any]:
        """Return the payload that a build would return, and what it shows, without its effects.

        No model is called and nothing is stored: a view that is too long is reduced as for this
        build alone.
        """
        attempt = Attempt(tenant_id, conversation_id, settings, may_compact=False, is_dry_run=True)
        # A cache of its own, because builds extend the payloads in theirs.
        apart = replace(self._deps, cache=PayloadCache(0), observer=UNOBSERVED)
        return await ContextService(apart)._answer(attempt)

    async def overflow(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        verdict: Verdict = _INPUT_TOO_LONG,
    ) -> tuple[CompactResult, dict[str, Any]]:
        """Reduce the payload that a provider refused, and build again, without a model.

        Each call makes the newest payload of this stream smaller. Where the provider refused media
        or reasoning, only these are left out. Where only the requested output is too large, the
        output limit is lowered instead [compaction.large-output]. Raises ContextOverflow when
        nothing can be left out.
        """
        kind = verdict.kind
        is_reasoning = kind is VerdictKind.REASONING_REFUSED
        attempt = Attempt(tenant_id, conversation_id, settings, drops_reasoning=is_reasoning)
        if kind is VerdictKind.OUTPUT_TOO_LARGE:
            loaded = await self._until_unchanged(partial(load, self._deps), attempt)
            lowered = verdict.lowered_output(loaded.limits.max_output_tokens)
            settings = replace(settings, max_output_tokens=lowered)
            body = await self._answer(replace(attempt, settings=settings, may_compact=False))
            return unchanged(kind, body["tokens_used"], loaded.stored.shown_messages), body
        reduce: _Reduction = reduce_after_overflow
        if is_reasoning:
            reduce = leave_out_reasoning
        elif kind is VerdictKind.MEDIA_REFUSED:
            reduce = leave_out_media
        reduction = await self._until_unchanged(partial(self._reduce, reduce), attempt)
        body = await self._answer(replace(attempt, may_compact=False))
        if is_reasoning:
            reduction = replace(reduction, after_tokens=body["tokens_used"])
        return reduction, body

    async def _answer(self, attempt: Attempt) -> dict[str, Any]:
        return await self._until_unchanged(self._build, attempt)

    async def _until_unchanged(
        self, once: Callable[[Attempt], Awaitable[_Result | Retry | Overflow]], attempt: Attempt
    ) -> _Result:
        """Repeat until the conversation stays as it was read; raise what does not fit."""
        for _ in range(_MAX_ROUNDS):
            result = await once(attempt)
            if isinstance(result, Overflow):
                raise refusal(result)
            if not isinstance(result, Retry):
                return result
            attempt = replace(result.attempt, appended=None)
        raise Conflict("The conversation changes too fast to build on; try again")

    async def _build(self, attempt: Attempt) -> dict[str, Any] | Retry | Overflow:
        deps, state = self._deps, await _viewed(self._deps, attempt)
        if isinstance(state, Retry):
            return state
        fitted = await fit(deps, state)
        if not isinstance(fitted, Fitted):
            return fitted
        recorded = await _record(deps, fitted.state, fitted.epoch)
        if isinstance(recorded, Retry):
            return recorded
        body = await recorded.rendered.call(respond, deps.observer, recorded)
        return with_shown(recorded, body) if attempt.is_dry_run else body

    async def _reduce(
        self, reduce: _Reduction, attempt: Attempt
    ) -> CompactResult | Retry | Overflow:
        state = await _viewed(self._deps, attempt)
        return state if isinstance(state, Retry) else await reduce(self._deps, state)


async def _viewed(deps: BuildDependencies, attempt: Attempt) -> BuildState | Retry:
    loaded = await load(deps, attempt)
    return loaded if isinstance(loaded, Retry) else await choose_view(deps, loaded)


# --- read and settings ----------------------------------------------------------------------------


async def load(deps: BuildDependencies, attempt: Attempt) -> BuildState | Retry:
    """Read the conversation and resolve its settings; its active window is moved if it has to."""
    cached, build_input = await _read(deps, attempt)
    if build_input.conversation.is_outdated(deps.active.now()):
        await deps.active.updated(attempt.tenant_id, build_input.conversation)
        cached, build_input = await _read(deps, attempt)
    conversation, settings = build_input.conversation, attempt.settings
    stored = conversation.state
    if not stored.shown_messages:
        where = " in its active window" if stored.head_seq else ""
        raise ValidationError(f"Conversation has no messages{where}")
    last_epoch, factor = build_input.request_epoch or build_input.epoch, None
    requested = requested_context_window(settings)
    if last_epoch is not None and last_epoch.requested_context_window != requested:
        last_epoch = None
    if last_epoch is not None:
        # The epoch's factor stays while it is close to the model's.
        factor = epoch_start_from(last_epoch.start_json).factor
        present = deps.resolver.calibration_of(conversation, settings).factor
        factor = factor if abs(present / factor - 1) <= MAX_FACTOR_DRIFT else present
    # Only a payload of the same view is extended by the rows that were read.
    if last_epoch is None or last_epoch.view_version != stored.view_version:
        cached = None
    resolved = await deps.resolver.of(conversation, settings, factor)
    if resolved.model is None:
        raise ValidationError.at(
            "/model", "No model: name one in the request, the conversation or its agent"
        )
    if resolved.derives_status(settings):
        # The status is that of the agent's other conversations.
        status = await deps.statuses.of(attempt.tenant_id, conversation)
        attempt = replace(attempt, settings=replace(settings, status=status))
    limits = resolved.required_limits()
    check_tools(resolved, settings.format)
    prompt = resolved.tokens(0, 0, added_system_tokens=-resolved.raw_dynamic)
    if prompt.total >= limits.capacity:
        raise context_overflow(limits, prompt)
    made_by, strategy = build_input.compaction_strategy, resolved.policy.strategy
    if not attempt.is_dry_run and not is_shown_with(made_by, strategy):
        # Another strategy made the active summary.
        async with deps.database.session() as session:
            await session.contexts.show_whole_log(attempt.conversation_id, stored.view_version)
        return Retry(attempt)
    removed = build_input.epoch.reasoning_removed if build_input.epoch is not None else 0
    floor = stored.head_seq if attempt.drops_reasoning else min(removed, stored.head_seq)
    state = BuildState(
        attempt, build_input, resolved, limits, last_epoch, cached, floor, attempt.degraded
    )
    return await with_changes_as_items(deps, state)


async def _read(
    deps: BuildDependencies, attempt: Attempt
) -> tuple[CachedPayload | None, BuildInput]:
    """Read the conversation with the rows that the cached payload of its last epoch lacks.

    The build has to use this cached payload and this epoch, because the rows that they cover are
    not read, whatever other builds do to the cache meanwhile.
    """
    cached = deps.cache.find(attempt.cache_key)
    if cached is not None and (known := _known_input(attempt, cached)) is not None:
        return cached, known
    epoch_id = cached.epoch_id if cached is not None else None
    async with deps.database.session() as session:
        build_input = await session.contexts.read_build_input(
            attempt.tenant_id,
            attempt.conversation_id,
            attempt.settings,
            deps.resolver.default_model,
            cached_epoch_id=epoch_id,
            cached_start=cached.start_json if cached else None,
            cached_through=cached.assembler.rendered_through if cached else 0,
        )
    if build_input is None:
        deps.cache.drop(attempt.cache_key)
        raise NotFound.conversation(attempt.conversation_id)
    last_epoch = build_input.request_epoch or build_input.epoch
    is_of_it = last_epoch is not None and last_epoch.epoch_id == epoch_id
    return cached if is_of_it else None, build_input


def _known_input(attempt: Attempt, cached: CachedPayload) -> BuildInput | None:
    """Return what a read would, from the last one and the batch that was appended; None if it may
    be different.
    """
    appended, known = attempt.appended, cached.input
    if known is None or appended is None or appended.conversation is None or not appended.drafts:
        return None
    before, conversation = known.conversation.state, appended.conversation
    state, model = conversation.state, attempt.settings.model
    is_same = (state.view_version, state.input_version) == (
        before.view_version,
        before.input_version,
    )
    is_next = appended.new[0].seq == cached.assembler.rendered_through + 1
    if not (is_same and is_next and model in (None, conversation.model)):
        return None
    rows = appended.rows(as_chat=PROVIDERS[attempt.settings.format].stores_items)
    return replace(known, conversation=conversation, rows=rows)


# --- record ---------------------------------------------------------------------------------------


async def _record(
    deps: BuildDependencies, state: BuildState, choice: EpochChoice
) -> RecordedBuild | Retry:
    """Write the epoch unless it is the last one; another build may have been first.

    A dry run stores nothing and has no id.
    """
    rendered, items, attempt = state.rendered, state.items, state.attempt
    assert rendered is not None and items is not None
    last_epoch, key, reason = state.input.epoch, state.conversation_id, choice.break_reason
    is_new = last_epoch is None or reason is not None
    epoch = _new_epoch(deps, state, choice) if is_new or last_epoch is None else last_epoch
    through_seq = max(items.rendered_through, state.stored.head_seq)
    build = RecordedBuild(state, rendered, items, epoch, is_new, reason, through_seq, build_id="")
    if attempt.is_dry_run:
        return build
    after: BuildInput | None = replace(state.input, view=None, rows=[])
    if is_new or state.has_new_change:
        texts, before, extra = dict(state.resolved.texts), None, None
        if is_new:
            if state.texts_before_history:
                texts[state.dynamic_hash] = json_text.dumps(state.texts_before_history)
            extra = await _extra_tokens(deps, state, 0)
        elif state.continued_epoch is not None:
            epoch, before = state.continued_epoch, epoch.changes
        async with deps.database.session() as session:
            version = await session.contexts.add_epoch(key, epoch, texts, extra, before)
        if version is None:
            return state.retry()
        after = _input_after(state.input, epoch, version)
    rendered.epoch_id, rendered.start_json = epoch.epoch_id, epoch.start_json
    rendered.input = after
    deps.cache.put(attempt.cache_key, rendered)
    tail_hash = None
    if state.tail.texts:
        body = json_text.dumps(state.tail.texts)
        tail_hash = digest(body)
        if rendered.tail_hash != tail_hash:  # a text is stored once
            async with deps.database.session() as session:
                await session.contexts.add_text(key, tail_hash, body)
            rendered.tail_hash = tail_hash
    if not is_new and (tokens := await _extra_tokens(deps, state, MIN_EXTRA_CHANGE)) is not None:
        async with deps.database.session() as session:
            await session.contexts.set_extra_tokens(key, state.stored.view_version, tokens)
    count = sum(change.after_seq == through_seq for change in state.changes)
    build_id = BuildId(epoch.epoch_id, through_seq, tail_hash, count)
    return replace(build, build_id=str(build_id))


def _input_after(read: BuildInput, added: Epoch, version: int) -> BuildInput | None:
    """Return what the next build would read after this epoch; None if more has changed."""
    conversation = read.conversation
    if version != conversation.state.input_version + 1:
        return None
    state = replace(conversation.state, input_version=version)
    after = replace(read, epoch=added, request_epoch=None, view=None, other_streams=(), rows=[])
    return replace(after, conversation=replace(conversation, state=state))


def _new_epoch(deps: BuildDependencies, state: BuildState, choice: EpochChoice) -> Epoch:
    resolved, settings, last_epoch = state.resolved, state.attempt.settings, state.input.epoch
    return Epoch(
        epoch=last_epoch.epoch + 1 if last_epoch is not None else 1,
        epoch_id=deps.new_id(),
        payload_stream=payload_stream_of(settings, resolved.model or ""),
        format=settings.format,
        requested_context_window=requested_context_window(settings),
        reason=choice.break_reason,
        start_seq=state.stored.head_seq,
        view_version=state.stored.view_version,
        start_json=choice.start.as_json(),
        sections_hash=resolved.sections_hash,
        tools_hash=resolved.tools_hash,
        policy_hash=resolved.policy_hash,
        changes=state.continued_epoch.changes if state.continued_epoch is not None else "[]",
    )


async def _extra_tokens(deps: BuildDependencies, state: BuildState, min_change: int) -> int | None:
    """Return what the payload has beyond the state's sums, None where nothing is to be stored.

    Inside an epoch a hundredth of the effective window is not much. Other payloads than those of
    the stored settings do not count.
    """
    conversation, stored = state.input.conversation, state.stored
    model = conversation.model or deps.resolver.default_model
    slides = state.resolved.policy.strategy is StrategyName.SLIDING_WINDOW
    if requested_context_window(state.attempt.settings) or state.resolved.model != model or slides:
        return None
    resolved = await deps.resolver.of(conversation)
    extra = state.tokens.total
    extra -= stored_tokens_of(resolved, conversation, stored.shown_tokens).total
    if min_change:
        min_change = max(min_change, state.limits.effective_window // 100)
    return extra if abs(extra - stored.extra_tokens) > min_change else None

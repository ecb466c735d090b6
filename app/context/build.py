"""Builds: from a conversation to the payload of its next model call.

Each step is a function from a value to the next:

    read      conversation, last epoch, and what a cached payload of it lacks, in one select
    settings  of the conversation, its agent and this request
    view      the last epoch's view while it holds, else a new one
    fit       clear tool results, compact, or reduce without a model; continue the last epoch or
              begin a new one, and render, until the payload fits
    record    the start of a new epoch
    answer    items to the provider's request

A step that changes the conversation, or finds it changed, returns `Changed`: then the build reads
it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from app.common.errors import Conflict, NotFound, ValidationError
from app.context.answer import respond, shown
from app.context.epoch import record
from app.context.fit import Fitted, fit
from app.context.overflow import (
    context_overflow,
    largest_parts,
    leave_out_media,
    leave_out_reasoning,
    reduce_after_overflow,
    refusal,
)
from app.context.payload_cache import CachedPayload, PayloadCache
from app.context.state import (
    Attempt,
    BuildDependencies,
    BuildState,
    Changed,
    KnownPayload,
    Overflow,
)
from app.context.view import choose_view
from app.conversations.budget_status import BudgetStatus, read_budget
from app.conversations.compaction_receipt import is_shown_with
from app.conversations.compaction_results import CompactResult, unchanged
from app.conversations.conversation import Conversation
from app.conversations.epochs import BuildInput, epoch_factor, epoch_start_from, requested_window
from app.conversations.observers import UNOBSERVED
from app.models.overflow_errors import Verdict, VerdictKind
from app.prompt.resolved_settings import (
    PayloadTools,
    RequestSettings,
    ResolvedSettings,
    check_tools,
)

_MAX_ROUNDS = 12
_Result = TypeVar("_Result")
_Reduction = Callable[
    [BuildDependencies, BuildState], Awaitable[CompactResult | Changed | Overflow]
]


class ContextService:
    """Builds payloads and reads budgets."""

    def __init__(self, dependencies: BuildDependencies) -> None:
        self._deps = dependencies

    async def budget(self, tenant_id: str, conversation_id: str) -> BudgetStatus | None:
        """Return the budget of the stored settings, None while no context window is known."""
        resolver, database = self._deps.resolver, self._deps.database
        async with database.session() as session:
            conversation = await resolver.find_conversation(session, tenant_id, conversation_id)
        conversation = await self._deps.active.updated(tenant_id, conversation)
        return await read_budget(resolver, database.session, conversation)

    async def build(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        known: KnownPayload | None = None,
    ) -> dict[str, Any]:
        """Return the payload of the next model call, or a delta to the known payload.

        Raises NotFound, ValidationError (no messages, no model), ContextLimitUnknown, or
        ContextOverflow with the budget when no valid payload fits.
        """
        return await self._answer(Attempt(tenant_id, conversation_id, settings, known))

    async def preview(
        self, tenant_id: str, conversation_id: str, settings: RequestSettings
    ) -> dict[str, Any]:
        """Return the payload that a build would return, and what it shows, without its effects.

        No model is called and nothing is stored: a view that is too long is reduced as for this
        build alone. Raises as `build` does.
        """
        attempt = Attempt(tenant_id, conversation_id, settings, may_compact=False, is_preview=True)
        # A cache of its own, because builds extend the payloads in theirs.
        apart = replace(self._deps, cache=PayloadCache(0), observer=UNOBSERVED)
        return await ContextService(apart)._answer(attempt)

    async def overflow(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        verdict: Verdict | None = None,
    ) -> tuple[CompactResult, dict[str, Any]]:
        """Reduce the payload that a provider refused as too long, and build again, without a model.

        Each call makes the newest payload of this stream smaller. Where the provider refused media
        or reasoning, only these are left out. Raises as `build` does, and ContextOverflow when
        nothing can be left out.
        """
        kind = verdict.kind if verdict is not None else VerdictKind.INPUT_TOO_LONG
        is_reasoning = kind is VerdictKind.REASONING_REFUSED
        attempt = Attempt(tenant_id, conversation_id, settings, drops_reasoning=is_reasoning)
        reduce: _Reduction = reduce_after_overflow
        if is_reasoning:
            reduce = leave_out_reasoning
        elif verdict is not None and kind is VerdictKind.MEDIA_REFUSED:
            reduce = partial(leave_out_media, verdict=verdict)
        reduction = await self._until_unchanged(partial(self._reduce, reduce), attempt)
        body = await self._answer(replace(attempt, may_compact=False))
        if is_reasoning:
            reduction = replace(reduction, after_tokens=body["tokens_used"])
        return reduction, body

    async def lower_output(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        lowered: Callable[[int], int],
        reason: str,
    ) -> tuple[CompactResult, dict[str, Any]]:
        """Build again with a lower output limit, without a compaction. [compaction.large-output]

        `lowered` returns the limit to use instead of the present one, in tokens. Raises as `build`
        does.
        """
        attempt = Attempt(tenant_id, conversation_id, settings, may_compact=False)
        loaded = await self._until_unchanged(partial(load, self._deps), attempt)
        max_output_tokens = lowered(loaded.limits.max_output_tokens)
        settings = replace(settings, max_output_tokens=max_output_tokens)
        body = await self._answer(replace(attempt, settings=settings))
        messages = loaded.stored.shown_messages
        return unchanged(reason, body["tokens_used"], messages), body

    async def _answer(self, attempt: Attempt) -> dict[str, Any]:
        return await self._until_unchanged(self._build, attempt)

    async def _until_unchanged(
        self, once: Callable[[Attempt], Awaitable[_Result | Changed | Overflow]], attempt: Attempt
    ) -> _Result:
        """Repeat until the conversation stays as it was read; raise what does not fit."""
        for _ in range(_MAX_ROUNDS):
            result = await once(attempt)
            if isinstance(result, Overflow):
                raise await refusal(self._deps, result)
            if not isinstance(result, Changed):
                return result
            attempt = result.attempt
        raise Conflict("The conversation changes too fast to build on; try again")

    async def _build(self, attempt: Attempt) -> dict[str, Any] | Changed | Overflow:
        deps = self._deps.for_one_build()
        async with deps.long_build:
            state = await _viewed(deps, attempt)
            if isinstance(state, Changed):
                return state
            fitted = await fit(deps, state)
            if not isinstance(fitted, Fitted):
                return fitted
            recorded = await record(deps, fitted.state, fitted.epoch)
            if isinstance(recorded, Changed):
                return recorded
            body = await recorded.rendered.call(respond, deps, recorded)
            return body | shown(recorded, body) if attempt.is_preview else body

    async def _reduce(
        self, reduce: _Reduction, attempt: Attempt
    ) -> CompactResult | Changed | Overflow:
        deps = self._deps.for_one_build()
        async with deps.long_build:
            state = await _viewed(deps, attempt)
            return state if isinstance(state, Changed) else await reduce(deps, state)


async def _viewed(deps: BuildDependencies, attempt: Attempt) -> BuildState | Changed:
    loaded = await load(deps, attempt)
    return loaded if isinstance(loaded, Changed) else await choose_view(deps, loaded)


# --- read and settings ----------------------------------------------------------------------------
async def load(deps: BuildDependencies, attempt: Attempt) -> BuildState | Changed:
    """Read the conversation and resolve its settings; its active window is moved if it has to.

    Raises NotFound, ValidationError (no messages, no model, too many tools), ContextLimitUnknown,
    and ContextOverflow where the prompt alone is too long.
    """
    cached, cached_epoch_id, build_input = await _read(deps, attempt)
    if build_input.conversation.is_outdated(deps.active.now()):
        await deps.active.updated(attempt.tenant_id, build_input.conversation)
        cached, cached_epoch_id, build_input = await _read(deps, attempt)
    conversation = build_input.conversation
    if not conversation.state.shown_messages:
        where = " in its active window" if conversation.state.head_seq else ""
        raise ValidationError(f"Conversation has no messages{where}")
    settings = attempt.settings
    last_epoch, factor = build_input.window_epoch or build_input.epoch, None
    if last_epoch is not None and last_epoch.window != requested_window(settings):
        last_epoch = None
    if last_epoch is not None:
        # The epoch's factor stays while it is close to the model's.
        start = epoch_start_from(last_epoch.start_json)
        factor = epoch_factor(start, deps.resolver.calibration_of(conversation, settings).factor)
    resolved = await deps.resolver.of(conversation, settings, factor)
    if resolved.model is None:
        raise ValidationError.at(
            "/model", "No model: name one in the request, the conversation or its agent"
        )
    attempt = await _with_status(deps, attempt, resolved, conversation)
    limits = resolved.required_limits()
    check_tools(resolved, settings.format)
    prompt = resolved.usage(0, 0, added_system_tokens=-resolved.raw_dynamic)
    if prompt.total >= limits.capacity:
        tools = PayloadTools((), resolved.deferral(settings.format))
        raise context_overflow(limits, prompt, largest_parts(resolved, tools, prompt, ()), {})
    if not attempt.is_preview and not is_shown_with(
        build_input.compaction_strategy, resolved.policy.strategy
    ):
        # Another strategy made the active summary.
        async with deps.database.session() as session:
            await session.contexts.hide_compaction(
                conversation.conversation_id, conversation.state.view_version
            )
        return Changed(attempt)
    return BuildState(
        attempt,
        build_input,
        resolved,
        limits,
        degraded=attempt.degraded,
        reasoning_floor=conversation.state.head_seq if attempt.drops_reasoning else 0,
        last_epoch=last_epoch,
        cached=cached,
        cached_epoch_id=cached_epoch_id,
    )


async def _with_status(
    deps: BuildDependencies,
    attempt: Attempt,
    resolved: ResolvedSettings,
    conversation: Conversation,
) -> Attempt:
    """Return the attempt with the status of the agent's other conversations, where it has one."""
    if not resolved.derives_status(attempt.settings):
        return attempt
    status = await deps.statuses.of(attempt.tenant_id, conversation)
    if status is None:
        return attempt
    return replace(attempt, settings=replace(attempt.settings, status=status))


async def _read(
    deps: BuildDependencies, attempt: Attempt
) -> tuple[CachedPayload | None, str, BuildInput]:
    """Read the conversation with the rows that the cached payload lacks.

    The build has to use this cached payload and this epoch, because the rows that they cover are
    not read, whatever other builds do to the cache meanwhile.
    """
    cached = deps.cache.find(attempt.cache_key)
    cached_epoch_id = cached.epoch_id if cached else ""
    async with deps.database.session() as session:
        build_input = await session.contexts.read_build_input(
            attempt.tenant_id,
            attempt.conversation_id,
            attempt.settings,
            deps.resolver.default_model,
            cached_epoch_id=cached.epoch_id if cached else None,
            cached_start=cached.start_json if cached else None,
            cached_through=cached.assembler.rendered_through if cached else 0,
        )
    if build_input is None:
        deps.cache.drop(attempt.cache_key)
        raise NotFound.conversation(attempt.conversation_id)
    return cached, cached_epoch_id, build_input

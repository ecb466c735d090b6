"""Builds: from a conversation to the payload of its next model call.

A build is a pipeline of steps. Each step returns a new immutable value:

    load         conversation, last epoch and messages in one select; resolved settings
    choose_view  the last epoch's view while it holds, else a new one
    reduce       clear tool results, compact, or reduce without a model until the view fits
    choose_epoch continue the last epoch, or begin a new one
    render       messages to payload items
    record       the start of a new epoch
    respond      items to the provider's request
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from app.common.errors import Conflict
from app.context.payload_cache import PayloadCache
from app.context.pipeline.epoch import EpochChoice, RecordedBuild, choose_epoch, record, unrecorded
from app.context.pipeline.loading import LoadedConversation, load
from app.context.pipeline.overflow import (
    leave_out_media,
    leave_out_reasoning,
    reduce_after_overflow,
    refusal,
)
from app.context.pipeline.reduction import reduce, reduce_rendered
from app.context.pipeline.rendering import render
from app.context.pipeline.response import respond, shown
from app.context.pipeline.state import Attempt, BuildDependencies, BuildState, KnownPayload, Restart
from app.context.pipeline.view import choose_view
from app.conversations.budget_status import BudgetStatus, read_budget
from app.conversations.compaction_results import CompactResult, unchanged
from app.conversations.observers import UNOBSERVED
from app.models.overflow_errors import Verdict, VerdictKind
from app.prompt.resolved_settings import RequestSettings

_MAX_ROUNDS = 12
LONG_BUILD_BYTES = 8 * 2**20
_Reduction = Callable[[BuildDependencies, BuildState], Awaitable[CompactResult]]


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
        first = Attempt(tenant_id, conversation_id, settings, known)
        _, _, body = await self._answer(first)
        return body

    async def preview(
        self, tenant_id: str, conversation_id: str, settings: RequestSettings
    ) -> dict[str, Any]:
        """Return the payload that a build would return, and what it shows, without its effects.

        No model is called and nothing is stored: a view that is too long is reduced as for this
        build alone. Raises as `build` does.
        """
        first = Attempt(tenant_id, conversation_id, settings, may_compact=False, is_preview=True)
        # A cache of its own, because builds extend the payloads in theirs.
        apart = replace(self._deps, cache=PayloadCache(0), observer=UNOBSERVED)
        _, recorded, body = await ContextService(apart)._answer(first)
        return body | shown(recorded, body)

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
        first = Attempt(tenant_id, conversation_id, settings, drops_reasoning=is_reasoning)
        reduce_first: _Reduction = reduce_after_overflow
        if is_reasoning:
            reduce_first = leave_out_reasoning
        elif verdict is not None and kind is VerdictKind.MEDIA_REFUSED:
            reduce_first = partial(leave_out_media, verdict=verdict)
        reduction, _, body = await self._answer(first, reduce_first)
        assert reduction is not None
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
        loaded = await self._load(attempt)
        max_output_tokens = lowered(loaded.limits.max_output_tokens)
        settings = replace(settings, max_output_tokens=max_output_tokens)
        _, _, body = await self._answer(replace(attempt, settings=settings))
        messages = loaded.input.conversation.state.shown_messages
        return unchanged(reason, body["tokens_used"], messages), body

    async def _load(self, attempt: Attempt) -> LoadedConversation:
        for _ in range(_MAX_ROUNDS):
            try:
                return await load(self._deps, attempt)
            except Restart as restart:
                attempt = restart.attempt
        raise Conflict("The conversation changes too fast to build on; try again")

    async def _answer(
        self, first: Attempt, reduce_first: _Reduction | None = None
    ) -> tuple[CompactResult | None, RecordedBuild, dict[str, Any]]:
        """Run the pipeline, and return its answer too; few at once that have read long messages."""
        async with AsyncExitStack() as held:
            reduction, recorded = await self._run(first, held, reduce_first)
            answer = await recorded.rendered.call(respond, self._deps, recorded)
            return reduction, recorded, answer

    async def _run(
        self, first: Attempt, held: AsyncExitStack, reduce_first: _Reduction | None
    ) -> tuple[CompactResult | None, RecordedBuild]:
        """Run the pipeline until a payload fits and is recorded, unless it is a preview.

        A state that only has to be rendered or reduced again is used again. After a Restart the
        conversation is loaded again.
        """
        deps, attempt = self._deps, first
        state: BuildState | None = None
        epoch: EpochChoice | None = None
        reduction: CompactResult | None = None
        is_held = False
        for _ in range(_MAX_ROUNDS):
            try:
                if state is None:
                    epoch = None
                    loaded = await load(deps, attempt)
                    size = sum(len(row.text) for row in loaded.input.rows)
                    if size > LONG_BUILD_BYTES and not is_held:
                        await held.enter_async_context(deps.long_builds)
                        is_held = True
                    state = await choose_view(deps, loaded)
                    if reduce_first is not None and reduction is None:
                        reduction = await reduce_first(deps, state)
                        attempt, state = replace(first, may_compact=False), None
                        continue
                    state = await reduce(deps, state)
                epoch = choose_epoch(state, epoch)
                state = await render(deps, state, epoch.start.view, epoch.kept_tools)
                if not epoch.matches(state):
                    continue  # the rendered text mentions other tools
                if (cut := state.media_cut()) is not None:
                    state = state.with_media_cut(cut)
                    continue
                if not state.fits:
                    state = await reduce_rendered(deps, state)
                    continue
                if first.is_preview:
                    return reduction, unrecorded(deps, state, epoch)
                return reduction, await record(deps, state, epoch)
            except Restart as restart:
                attempt, state = restart.attempt, None
        if state is not None:
            raise await refusal(deps, state, state.view_entries)
        raise Conflict("The conversation changes too fast to build on; try again")

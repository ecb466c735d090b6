"""Reported usage: stored, added to totals, used for calibration, judged for compaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

from app.common import json_text
from app.common.errors import Conflict, ContextError, NotFound, ServiceUnavailable, ValidationError
from app.common.pages import Page
from app.context.answer import find_build
from app.context.state import CachedPayload, PayloadCache
from app.context.usage.schemas import UsageAnswer, UsageRequest
from app.conversations.budget_status import (
    LastReport,
    judge,
    read_reported,
    read_visible_tokens,
    usage_of,
    within,
)
from app.conversations.compactions import make_compaction_due
from app.conversations.conversation import Conversation
from app.conversations.epochs import (
    BuildId,
    Epoch,
    EpochStart,
    PastEpoch,
    epoch_start_from,
    model_in,
    payload_stream_of,
)
from app.conversations.lookup import get_conversation, lock_conversation
from app.conversations.reported_usage import (
    UsageReport,
    incomparable_reason,
    raw_payload_usage,
    settings_difference,
)
from app.conversations.settings_resolver import SettingsResolver, applied_calibration
from app.conversations.windows.service import ActiveWindows
from app.formats import PROVIDERS
from app.formats.message import LOG_FORMAT, FormatName
from app.models.budget import Usage, measure, pressure_status
from app.models.calibration import Lesson, estimate_of, lesson_of
from app.models.limits import INEXACT_MARGIN
from app.models.usage_objects import CallUsage, TokenUsage, read_usage, usage_shape
from app.models.usage_totals import UsageEntry, UsageQuery, UsageRow, call_totals, reported_entry
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import RequestSettings, ResolvedSettings, digest
from app.repositories import Database, Repositories

_log = logging.getLogger("app.usage")

MAX_USAGE_BYTES = 65_536
"""Bytes of JSON that a usage object may have; those of providers have a few hundred."""
_NO_MODEL = "No model: name one in the request, the conversation or its agent"


@dataclass(frozen=True, slots=True)
class _PayloadCount:
    """The count of a report's payload, and why it is unknown or does not calibrate the model."""

    regions: Usage | None = None
    uncalibrated_reason: str | None = None
    lesson: Lesson | None = None


@dataclass(eq=False, repr=False)
class UsageService:
    """Stores reported usage, calibrates its model, and decides whether to compact.

    Methods of a conversation raise NotFound for an unknown one. Totals include those of agents and
    conversations that were deleted; their cost depends on the number of days and models alone.
    """

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows
    _new_id: Callable[[], str]
    _cache: PayloadCache
    now: Callable[[], datetime]

    # --- totals and lists ---------------------------------------------------------------------

    async def of_conversation(
        self, tenant_id: str, conversation_id: str, query: UsageQuery
    ) -> tuple[UsageRow, Page[UsageRow]]:
        """Return the totals of a conversation, and a page of their rows."""
        async with self._database.session() as session:
            await get_conversation(session, tenant_id, conversation_id, None)
            return await session.usage.of_conversation(conversation_id, query)

    async def of_tenant(
        self, tenant_id: str, agent_id: str | None, query: UsageQuery
    ) -> tuple[UsageRow, Page[UsageRow]]:
        """Return the totals of a tenant or of one of its agents, and a page of their rows."""
        async with self._database.session() as session:
            return await session.usage.of_tenant(tenant_id, agent_id, query)

    async def epochs(
        self, tenant_id: str, conversation_id: str, limit: int, before: str | None
    ) -> Page[PastEpoch]:
        """Return epochs, the newest first, starting after the one with the id `before`."""
        async with self._database.session() as session:
            await get_conversation(session, tenant_id, conversation_id, None)
            return await session.usage.epochs(conversation_id, limit, before)

    async def reports(
        self, tenant_id: str, conversation_id: str, limit: int, before: str | None
    ) -> Page[UsageReport]:
        """Return reports, the newest first, starting after the one with the id `before`."""
        async with self._database.session() as session:
            await get_conversation(session, tenant_id, conversation_id, None)
            return await session.usage.page(conversation_id, limit, before)

    # --- reports ------------------------------------------------------------------------------

    async def report(
        self,
        tenant_id: str,
        conversation_id: str,
        report: UsageRequest,
        idempotency_key: str | None = None,
        head_seq: int | None = None,
    ) -> UsageAnswer:
        """Store a report, calibrate its model, and decide whether to compact.

        `head_seq` is the newest message that the call can have seen, by default that of the log. A
        repeated key stores nothing and judges the last report again. A compaction that is due is
        enqueued, where the policy lets it run in the background. Raises NotFound, or
        ValidationError for impossible usage or an unknown build.
        """
        usage_json = _usage_json(report.usage) if report.usage is not None else ""
        async with self._database.transaction() as session:
            build, dynamic_texts = None, None
            if report.build_id is not None:
                build = await find_build(session, conversation_id, report.build_id)
            model = model_in(build[1].payload_stream) if build is not None else report.model
            conversation = await self._find_conversation(session, tenant_id, conversation_id, model)
            _check_through_seq(report, conversation)
            if report.build_id is not None:
                if build is None:
                    raise ValidationError.at(
                        "/build_id", "No build of this conversation has this id"
                    )
                report, dynamic_texts = await _with_build(session, conversation_id, report, *build)
                _check_through_seq(report, conversation)
            if report.usage is not None and await _is_repeated(
                session, conversation_id, idempotency_key, usage_json
            ):
                report = report.model_copy(update={"usage": None})
            format = await _format(session, conversation_id, report)
            settings = RequestSettings(format, report.model)
            resolved = await self._resolved(conversation, settings)
            entry, count, reported, visible_tokens = None, _PayloadCount(), None, 0
            if report.usage is None:
                stored = await session.usage.newest(conversation_id)
            else:
                call = read_usage(report.usage, format)
                stored, newest_epoch = await self._new_report(
                    session, conversation, report, format, call.usage, head_seq
                )
                if report.through_seq is None:
                    count = _PayloadCount(None, "unknown_build")
                else:
                    cached = None
                    if newest_epoch is not None:
                        cached = self._cache.of_epoch(tenant_id, conversation_id, newest_epoch)
                    count = await _count_payload(
                        session,
                        conversation,
                        resolved,
                        newest_epoch,
                        stored,
                        call,
                        dynamic_texts,
                        cached,
                    )
                estimated = count.regions.total if count.regions is not None else None
                stored = replace(
                    stored,
                    usage_json=usage_json,
                    estimated_tokens=estimated,
                    regions=count.regions,
                )
                if not await session.usage.add(conversation_id, stored):
                    raise NotFound.conversation(conversation_id)
                entry = await self._entry(session, conversation, stored, call.billed)
            if stored is not None:
                reported = await read_reported(session, conversation, stored)
            if resolved is not None:
                known = [(conversation, resolved)]
                visible_tokens = (await read_visible_tokens(within(session), known))[
                    conversation_id
                ]
            if entry is not None:
                await session.usage.add_to_conversation(conversation_id, [entry])
            # Other reports of the model, and of the tenant, wait for the end of this transaction
            # from here on.
            if stored is not None and count.lesson is not None:
                calibration = await session.usage.calibrate(
                    tenant_id, stored.model, conversation.counter, count.lesson
                )
                conversation = replace(conversation, calibration=calibration)
                resolved = await self._resolved(conversation, settings)
            if entry is not None:
                await session.usage.add_to_tenant(tenant_id, conversation.agent_id, [entry])
        answer = _answer(conversation, resolved, visible_tokens, reported, count)
        if resolved is not None and answer.should_compact:
            await self._enqueue_compaction(conversation_id, resolved)
        return answer

    async def _find_conversation(
        self, session: Repositories, tenant_id: str, conversation_id: str, model: str | None
    ) -> Conversation:
        """Return a conversation with its settings for a model, its active window up to date."""
        conversation = await self._resolver.find_conversation(
            session, tenant_id, conversation_id, model
        )
        if conversation.is_outdated(self._active.now()):
            locked = await lock_conversation(session, tenant_id, conversation_id, None)
            updated = await self._active.update_locked(session, locked)
            return replace(conversation, state=updated.state)
        return conversation

    async def _resolved(
        self, conversation: Conversation, settings: RequestSettings
    ) -> ResolvedSettings | None:
        try:
            return await self._resolver.of(conversation, settings)
        except ContextError:  # the settings no longer work together
            return None

    async def _new_report(
        self,
        session: Repositories,
        conversation: Conversation,
        report: UsageRequest,
        format: FormatName,
        usage: TokenUsage,
        head_seq: int | None,
    ) -> tuple[UsageReport, Epoch | None]:
        """Return a report to store, and the newest epoch of its stream."""
        model = report.model or conversation.model or self._resolver.default_model
        if model is None:
            raise ValidationError.at("/model", _NO_MODEL)
        stream = payload_stream_of(RequestSettings(format), model)
        newest_epoch = await session.usage.newest_epoch(conversation.conversation_id, stream)
        epoch = newest_epoch.epoch if newest_epoch is not None else None
        if report.epoch is not None:
            if report.epoch > (epoch or 0):
                raise ValidationError.at("/epoch", f"The newest epoch of {format} is {epoch or 0}")
            epoch = report.epoch
        through_seq = report.through_seq
        if through_seq is None:
            through_seq = conversation.state.head_seq if head_seq is None else head_seq
        new = UsageReport(self._new_id(), model, format, epoch, through_seq, usage, "")
        return new, newest_epoch

    async def _entry(
        self,
        session: Repositories,
        conversation: Conversation,
        report: UsageReport,
        billed: TokenUsage,
    ) -> UsageEntry:
        """Return what a new report adds to the usage totals, by what its provider bills."""
        info = self._resolver.model_info(conversation, report.model)
        log_tokens = await session.log.total_at(conversation.conversation_id, report.through_seq)
        calls = call_totals(
            info,
            billed.input_tokens,
            billed.output_tokens,
            billed.cache_creation_tokens,
            billed.cache_read_tokens,
        )
        return reported_entry(report.model, info, calls, log_tokens)

    async def _enqueue_compaction(self, conversation_id: str, resolved: ResolvedSettings) -> None:
        """Make a compaction due; workers that are not notified find it when they poll."""
        if resolved.policy.compaction.mode != "background":
            return
        try:
            async with self._database.session() as session:
                await make_compaction_due(session, conversation_id)
        except ServiceUnavailable:
            _log.warning("workers_not_notified")


async def _format(session: Repositories, conversation_id: str, report: UsageRequest) -> FormatName:
    """Return the format of the call: the reported one, else by the shape of the usage object.

    Of several formats with this shape, the one built last counts. Where none was built, a gateway
    reported another provider's object for the stream built last.
    """
    if report.usage is None or report.format is not None:
        return report.format or LOG_FORMAT
    provider_formats = usage_shape(report.usage).formats
    for formats in (provider_formats, tuple(FormatName)):
        epoch = await session.usage.last_epoch(conversation_id, formats)
        if epoch is not None:
            return FormatName(epoch.format)
    return provider_formats[0]


async def _is_repeated(
    session: Repositories, conversation_id: str, idempotency_key: str | None, usage_json: str
) -> bool:
    """Whether the report was stored under its key; claims the key if it is new.

    Raises Conflict when the key was used with another usage.
    """
    if idempotency_key is None:
        return False
    # An append may have the same key; a blank is in no key of a request.
    key, request_hash = f"usage {idempotency_key}", digest(usage_json)
    if await session.log.claim_key(conversation_id, key, request_hash):
        return False
    stored = await session.log.find_stored_answer(conversation_id, key)
    if stored is not None and stored[0] != request_hash:
        raise Conflict("The Idempotency-Key was used with another usage")
    return True


def _usage_json(usage: Mapping[str, Any]) -> str:
    text = json_text.dumps(usage)
    if len(text.encode()) > MAX_USAGE_BYTES:
        raise ValidationError.at("/usage", f"At most {MAX_USAGE_BYTES:,} bytes of JSON")
    return text


def _check_through_seq(report: UsageRequest, conversation: Conversation) -> None:
    head_seq = conversation.state.head_seq
    if report.through_seq is not None and report.through_seq > head_seq:
        raise ValidationError.at("/through_seq", f"The log's head is {head_seq}")


async def _with_build(
    session: Repositories,
    conversation_id: str,
    report: UsageRequest,
    build_id: BuildId,
    epoch: Epoch,
) -> tuple[UsageRequest, tuple[str, ...]]:
    """Return the report with the fields that its build id stands for, and its dynamic texts."""
    start = epoch_start_from(epoch.start_json)
    hashes = [hash for hash in (build_id.tail_hash, start.dynamic_hash) if hash]
    texts = await session.contexts.texts(conversation_id, hashes)
    lists = [json_text.loads(texts[hash]) for hash in hashes if hash in texts]
    fields = {
        "format": FormatName(epoch.format),
        "model": model_in(epoch.payload_stream),
        "epoch": epoch.epoch,
        "through_seq": build_id.through_seq,
    }
    return report.model_copy(update=fields), tuple(map(str, chain.from_iterable(lists)))


async def _count_payload(
    session: Repositories,
    conversation: Conversation,
    resolved: ResolvedSettings | None,
    newest_epoch: Epoch | None,
    report: UsageReport,
    call: CallUsage,
    dynamic_texts: tuple[str, ...] | None,
    cached: CachedPayload | None,
) -> _PayloadCount:
    """Return the count of a report's payload before the factor.

    It is that of the build where this process still has its payload, else from running sums.
    Only a build id identifies dynamic text; without one, the stored text is counted.
    """
    conversation_id, through_seq = conversation.conversation_id, report.through_seq
    start = epoch_start_from(newest_epoch.start_json) if newest_epoch is not None else None
    reason = incomparable_reason(newest_epoch, start, report.epoch, through_seq, conversation.state)
    if reason == "reduced" and cached is not None:
        reason = None
    if reason is not None or resolved is None or newest_epoch is None or start is None:
        return _PayloadCount(None, reason or "unknown_settings")
    reason = settings_difference(newest_epoch, start, resolved)
    if reason is not None and not (reason == "reduced" and cached is not None):
        return _PayloadCount(None, reason)
    if start.view.sent_item is not None:
        return _PayloadCount(None, "provider_compaction")
    if cached is not None:
        tokens, sealed = cached.assembler.tokens_at(through_seq)
        summary = cached.assembler.summary_tokens
    else:
        # The running sums have no reasoning.
        replays = not PROVIDERS[report.format].names_family or bool(start.view.reasoning_of)
        if replays and await session.usage.has_reasoning(
            conversation_id, start.view.spans, start.view.reasoning_after, through_seq
        ):
            return _PayloadCount(None, "replayed_reasoning")
        shown = await _shown_tokens(session, conversation, resolved, start, through_seq)
        tokens, sealed, summary = shown, 0, conversation.state.summary_tokens
    usage = raw_payload_usage(resolved, start, summary, tokens)
    if dynamic_texts is not None:
        dynamic = resolved.system_tokens(dynamic_texts) - resolved.raw_dynamic
        usage = replace(usage, system_prompt=usage.system_prompt + dynamic)
    if call.has_steps:
        return _PayloadCount(usage, "server_steps")
    counter = conversation.counter
    applied = applied_calibration(conversation.calibration, counter, resolved.model, resolved.info)
    lesson = lesson_of(call.usage.sent_tokens, usage.total, sealed, counter, applied)
    if isinstance(lesson, str):
        return _PayloadCount(usage, lesson)
    if not lesson.is_sealed and any(tool.hosted is not None for tool in resolved.tools):
        return _PayloadCount(usage, "hosted_tools")  # only their provider knows their cost
    return _PayloadCount(usage, None, lesson)


async def _shown_tokens(
    session: Repositories,
    conversation: Conversation,
    resolved: ResolvedSettings,
    start: EpochStart,
    through_seq: int,
) -> int:
    """Return the tokens of the log that a payload of this epoch showed up to a seq."""
    state, log = conversation.state, session.log
    total = await log.total_at(conversation.conversation_id, through_seq)
    if resolved.policy.strategy is StrategyName.SLIDING_WINDOW:
        first = start.view.spans[0].start
        return total - await log.total_at(conversation.conversation_id, first - 1)
    return state.shown_tokens - (state.tokens - total)


def _answer(
    conversation: Conversation,
    resolved: ResolvedSettings | None,
    visible_tokens: int,
    reported: LastReport | None,
    count: _PayloadCount,
) -> UsageAnswer:
    """Return the answer; budget and pressure are null while no context window is known."""
    found: dict[str, Any] = dict.fromkeys(UsageAnswer.model_fields)
    found |= {
        "is_current": reported is not None and reported.is_current,
        "should_compact": False,
        "is_calibrated": count.regions is not None and count.uncalibrated_reason is None,
        "uncalibrated_reason": count.uncalibrated_reason,
    }
    if reported is not None:
        found |= {"report_id": reported.report.report_id, "token_usage": reported.report.usage}
    if resolved is not None:
        usage, limits = usage_of(resolved, conversation, visible_tokens), resolved.limits
        used, is_due = judge(resolved, conversation, usage.total, reported)
        margin = limits.margin if limits is not None else INEXACT_MARGIN
        estimate = estimate_of(
            usage.total, conversation.counter, resolved.factor, margin, conversation.calibration
        )
        found |= {"should_compact": is_due, "judged_tokens": used, "estimate": estimate}
        if limits is not None:
            found |= asdict(pressure_status(used, limits)) | {"budget": measure(usage, limits)}
    return UsageAnswer(**found)

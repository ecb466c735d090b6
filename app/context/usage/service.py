"""Reported usage: stored, added to totals, used for calibration, judged for compaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from app.common import json_text
from app.common.errors import Conflict, ContextError, NotFound, ServiceUnavailable, ValidationError
from app.context.build_replay import find_build
from app.context.payload_cache import CachedPayload, PayloadCache
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
from app.conversations.epoch import Epoch
from app.conversations.epochs import (
    BuildId,
    EpochStart,
    epoch_start_from,
    model_in,
    payload_stream_of,
)
from app.conversations.lookup import lock_conversation
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
from app.models.budget import ContextBudget, Pressure, Usage, measure, pressure_status
from app.models.calibration import Estimate, Lesson, estimate_of, lesson_of
from app.models.limits import INEXACT_MARGIN
from app.models.usage_objects import CallUsage, TokenUsage, read_usage, usage_shape
from app.models.usage_totals import UsageEntry, call_totals, reported_entry
from app.policy.policy import CompactionMode, StrategyName
from app.prompt.resolved_settings import RequestSettings, ResolvedSettings, digest
from app.repositories import Database, Repositories

_log = logging.getLogger("app.usage")

MAX_USAGE_BYTES = 65_536
"""Bytes of JSON that a usage object may have; those of providers have a few hundred."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a call's usage; without `usage` the last report is judged again.

    `epoch` and `through_seq` are those of the build that was sent, by default of the newest one.
    `build_id` stands for them and for format, model and `dynamic_texts`. `head_seq` is the newest
    message that the call can have seen, by default that of the log. A repeated `idempotency_key`
    stores nothing and judges the last report again.
    """

    usage: Mapping[str, Any] | None = None
    format: FormatName | None = None
    model: str | None = None
    epoch: int | None = None
    through_seq: int | None = None
    build_id: str | None = None
    dynamic_texts: tuple[str, ...] | None = None
    head_seq: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The result of a report.

    `token_usage` is None where nothing was ever reported. `is_current` says whether it is of the
    current epoch. Budget and pressure are None while no context window is known; the budget has
    the service's estimate, the pressure is that of `judged_tokens`. `uncalibrated_reason` says why
    a new report did not change the model's factor.
    """

    report_id: str | None = None
    token_usage: TokenUsage | None = None
    is_current: bool = False
    should_compact: bool = False
    judged_tokens: int | None = None
    estimate: Estimate | None = None
    is_calibrated: bool = False
    uncalibrated_reason: str | None = None
    pressure: Pressure | None = None
    notice: bool | None = None
    next_threshold: str | None = None
    tokens_to_next: int | None = None
    budget: ContextBudget | None = None


@dataclass(frozen=True, slots=True)
class _PayloadCount:
    """The count of a report's payload, and why it is unknown or does not calibrate the model."""

    regions: Usage | None
    uncalibrated_reason: str | None
    lesson: Lesson | None = None

    @property
    def tokens(self) -> int | None:
        """The tokens of all regions."""
        return self.regions.total if self.regions is not None else None


@dataclass(frozen=True, slots=True)
class _Stored:
    """A new report as stored, what its provider bills, and its count."""

    report: UsageReport
    billed: TokenUsage
    payload_count: _PayloadCount


@dataclass(eq=False, repr=False)
class UsageService:
    """Stores reported usage, calibrates its model, and decides whether to compact."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows
    _new_id: Callable[[], str]
    _cache: PayloadCache

    async def report(self, tenant_id: str, conversation_id: str, report: Report) -> ReportResult:
        """Store a report, calibrate its model, and decide whether to compact.

        A compaction that is due is enqueued, where the policy lets it run in the background.
        Raises NotFound, or ValidationError for impossible usage or an unknown build.
        """
        usage_json = _usage_json(report.usage) if report.usage is not None else ""
        async with self._database.transaction() as session:
            build = None
            if report.build_id is not None:
                build = await find_build(session, conversation_id, report.build_id)
            model = model_in(build[1].payload_stream) if build is not None else report.model
            conversation = await self._find_conversation(session, tenant_id, conversation_id, model)
            _check_through_seq(report, conversation)
            if report.build_id is not None:
                report = await _with_build(session, conversation_id, report, build)
                _check_through_seq(report, conversation)
            if report.usage is not None and await _is_repeated(
                session, conversation_id, report, usage_json
            ):
                report = replace(report, usage=None)
            settings = RequestSettings(
                await self._format(session, conversation_id, report), report.model
            )
            resolved = await self._resolved(conversation, settings)
            new, entry, payload_count = None, None, _PayloadCount(None, None)
            if report.usage is None:
                stored = await session.usage.newest(conversation_id)
            else:
                cached_of = partial(self._cache.of_epoch, tenant_id, conversation_id)
                new = await self._store(
                    session, conversation, resolved, report, settings.format, usage_json, cached_of
                )
                stored, payload_count = new.report, new.payload_count
            reported, visible_tokens = None, 0
            if stored is not None:
                reported = await read_reported(session, conversation, stored)
            if resolved is not None:
                known = [(conversation, resolved)]
                visible_tokens = (await read_visible_tokens(within(session), known))[
                    conversation_id
                ]
            if new is not None:
                entry = await self._entry(session, conversation, new)
                await session.usage_totals.add_to_conversation(conversation_id, [entry])
            # Other reports of the model, and of the tenant, wait for the end of this transaction
            # from here on.
            if stored is not None and payload_count.lesson is not None:
                calibration = await session.usage.calibrate(
                    tenant_id, stored.model, conversation.counter, payload_count.lesson
                )
                conversation = replace(conversation, calibration=calibration)
                resolved = await self._resolved(conversation, settings)
            if entry is not None:
                await session.usage_totals.add_to_tenant(tenant_id, conversation.agent_id, [entry])
        result = _result(conversation, resolved, visible_tokens, reported, payload_count)
        if resolved is not None and result.should_compact:
            await self._enqueue_compaction(conversation_id, resolved)
        return result

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

    async def _format(
        self, session: Repositories, conversation_id: str, report: Report
    ) -> FormatName:
        """Return the format of the call: the reported one, else by the shape of the usage object.

        Of several formats with this shape, the one built last counts. Where none was built, a
        gateway reported another provider's object for the stream built last.
        """
        if report.usage is None or report.format is not None:
            return report.format or LOG_FORMAT
        provider_formats = usage_shape(report.usage).formats
        for formats in (provider_formats, tuple(FormatName)):
            epoch = await session.usage.last_epoch(conversation_id, formats)
            if epoch is not None:
                return FormatName(epoch.format)
        return provider_formats[0]

    async def _resolved(
        self, conversation: Conversation, settings: RequestSettings
    ) -> ResolvedSettings | None:
        try:
            return await self._resolver.of(conversation, settings)
        except ContextError:  # the settings no longer work together
            return None

    async def _store(
        self,
        session: Repositories,
        conversation: Conversation,
        resolved: ResolvedSettings | None,
        report: Report,
        format: FormatName,
        usage_json: str,
        cached_of: Callable[[Epoch], CachedPayload | None],
    ) -> _Stored:
        """Store a report with the count of its payload."""
        call = read_usage(report.usage or {}, format)
        model = report.model or conversation.model or self._resolver.default_model
        if model is None:
            raise ValidationError.at(
                "/model", "No model: name one in the request, the conversation or its agent"
            )
        conversation_id, state = conversation.conversation_id, conversation.state
        newest_epoch = await session.usage.newest_epoch(
            conversation_id, payload_stream_of(RequestSettings(format), model)
        )
        epoch = newest_epoch.epoch if newest_epoch is not None else None
        if report.epoch is not None:
            if report.epoch > (epoch or 0):
                raise ValidationError.at("/epoch", f"The newest epoch of {format} is {epoch or 0}")
            epoch = report.epoch
        head_seq = state.head_seq if report.head_seq is None else report.head_seq
        through_seq = head_seq if report.through_seq is None else report.through_seq
        new_report = UsageReport(
            self._new_id(), model, format, epoch, through_seq, call.usage, usage_json
        )
        if report.through_seq is None:
            payload_count = _PayloadCount(None, "unknown_build")
        else:
            payload_count = await _count_payload(
                session,
                conversation,
                resolved,
                newest_epoch,
                new_report,
                call,
                report.dynamic_texts,
                cached_of(newest_epoch) if newest_epoch is not None else None,
            )
        new_report = replace(
            new_report, estimated_tokens=payload_count.tokens, regions=payload_count.regions
        )
        if not await session.usage.add(conversation_id, new_report):
            raise NotFound.conversation(conversation_id)
        return _Stored(new_report, call.billed, payload_count)

    async def _entry(
        self, session: Repositories, conversation: Conversation, new: _Stored
    ) -> UsageEntry:
        """Return what a new report adds to the usage totals."""
        report, billed = new.report, new.billed
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
        if resolved.policy.compaction.mode is not CompactionMode.BACKGROUND:
            return
        try:
            async with self._database.session() as session:
                await make_compaction_due(session, conversation_id)
        except ServiceUnavailable:
            _log.warning("workers_not_notified")


async def _is_repeated(
    session: Repositories, conversation_id: str, report: Report, usage_json: str
) -> bool:
    """Whether the report was stored under its key; claims the key if it is new.

    Raises Conflict when the key was used with another usage.
    """
    if report.idempotency_key is None:
        return False
    # An append may have the same key; a blank is in no key of a request.
    key, request_hash = f"usage {report.idempotency_key}", digest(usage_json)
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


def _check_through_seq(report: Report, conversation: Conversation) -> None:
    head_seq = conversation.state.head_seq
    if report.through_seq is not None and report.through_seq > head_seq:
        raise ValidationError.at("/through_seq", f"The log's head is {head_seq}")


async def _with_build(
    session: Repositories,
    conversation_id: str,
    report: Report,
    build: tuple[BuildId, Epoch] | None,
) -> Report:
    """Return the report with the fields that its build id stands for."""
    if build is None:
        raise ValidationError.at("/build_id", "No build of this conversation has this id")
    build_id, epoch = build
    start = epoch_start_from(epoch.start_json)
    hashes = [hash for hash in (build_id.tail_hash, start.dynamic_hash) if hash]
    texts = await session.contexts.texts(conversation_id, hashes)
    lists = [json_text.loads(texts[hash]) for hash in hashes if hash in texts]
    return replace(
        report,
        format=FormatName(epoch.format),
        model=model_in(epoch.payload_stream),
        epoch=epoch.epoch,
        through_seq=build_id.through_seq,
        dynamic_texts=tuple(map(str, chain.from_iterable(lists))),
    )


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

    It is that of the build where this process still has its payload, else from running sums. Only a
    build id identifies dynamic text; without one, the stored text is counted.
    """
    start = epoch_start_from(newest_epoch.start_json) if newest_epoch is not None else None
    reason = incomparable_reason(
        newest_epoch, start, report.epoch, report.through_seq, conversation.state
    )
    if reason == "reduced" and cached is not None:
        reason = None
    if reason is not None or resolved is None or newest_epoch is None or start is None:
        return _PayloadCount(None, reason or "unknown_settings")
    reason = settings_difference(newest_epoch, start, resolved)
    if reason is not None and not (reason == "reduced" and cached is not None):
        return _PayloadCount(None, reason)
    conversation_id, through_seq = conversation.conversation_id, report.through_seq
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
        tokens, sealed = (
            await _shown_tokens_through(session, conversation, resolved, start, through_seq),
            0,
        )
        summary = conversation.state.summary_tokens
    usage = raw_payload_usage(resolved, start, summary, tokens)
    if dynamic_texts is not None:
        dynamic = resolved.system_tokens(dynamic_texts) - resolved.raw_dynamic
        usage = replace(usage, system_prompt=usage.system_prompt + dynamic)
    if call.has_steps:
        return _PayloadCount(usage, "server_steps")
    sent, counter = call.usage.sent_tokens, conversation.counter
    applied = applied_calibration(conversation.calibration, counter, resolved.model, resolved.info)
    lesson = lesson_of(sent, usage.total, sealed, counter, applied)
    if isinstance(lesson, str):
        return _PayloadCount(usage, lesson)
    if not lesson.is_sealed and any(tool.hosted is not None for tool in resolved.tools):
        return _PayloadCount(usage, "hosted_tools")  # their cost is known to their provider only
    return _PayloadCount(usage, None, lesson)


async def _shown_tokens_through(
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


def _result(
    conversation: Conversation,
    resolved: ResolvedSettings | None,
    visible_tokens: int,
    reported: LastReport | None,
    payload_count: _PayloadCount,
) -> ReportResult:
    result = ReportResult(
        is_calibrated=payload_count.tokens is not None
        and payload_count.uncalibrated_reason is None,
        uncalibrated_reason=payload_count.uncalibrated_reason,
    )
    if reported is not None:
        result = replace(
            result,
            report_id=reported.report.report_id,
            token_usage=reported.report.usage,
            is_current=reported.is_current,
        )
    if resolved is None:
        return result
    usage, limits = usage_of(resolved, conversation, visible_tokens), resolved.limits
    used, is_due = judge(resolved, conversation, usage.total, reported)
    margin = limits.margin if limits is not None else INEXACT_MARGIN
    result = replace(
        result,
        should_compact=is_due,
        judged_tokens=used,
        estimate=estimate_of(
            usage.total, conversation.counter, resolved.factor, margin, conversation.calibration
        ),
    )
    if limits is None:
        return result
    return replace(result, **asdict(pressure_status(used, limits)), budget=measure(usage, limits))

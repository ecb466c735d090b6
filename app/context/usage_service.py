"""Reported usage: stored, added to totals, used for calibration, judged for compaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

from app.common import json_text
from app.common.errors import (
    Conflict,
    ContextError,
    Gone,
    NotFound,
    ServiceUnavailable,
    ValidationError,
)
from app.common.pages import Page
from app.context.build_answer import BuildReplayService, changes_at, find_build
from app.context.schemas import UsageAnswer, UsageRequest
from app.context.state import CachedPayload, PayloadCache
from app.context.usage_repository import WHOLE_TENANT, Listed
from app.conversations.conversation import Conversation
from app.conversations.epoch import BuildId, Epoch, model_in, payload_stream_of
from app.conversations.from_rows import changes_from, current_hashes, epoch_start_from
from app.conversations.moving_window import ActiveWindows
from app.conversations.pressure import (
    LastReport,
    judge,
    make_compaction_due,
    next_tokens_of,
    read_reported,
    read_visible_tokens,
)
from app.conversations.settings_resolver import SettingsResolver
from app.formats.message import LOG_FORMAT, FormatName
from app.models.budget import PayloadTokens, measure, pressure_status
from app.models.calibration import estimate_of, may_correct
from app.models.model_info import INEXACT_MARGIN
from app.models.prefix_reports import (
    Removal,
    RemovedReasoning,
    read_cache_miss,
    read_removals,
    removed_through,
)
from app.models.usage import (
    Purpose,
    ReportItem,
    TokenUsage,
    UsageFigures,
    UsageQuery,
    UsageRow,
    added_usage,
    read_usage,
)
from app.prompt.resolved_settings import RequestSettings, ResolvedSettings, digest
from app.repositories import Database, Repositories

MAX_USAGE_BYTES = 65_536
"""Bytes of JSON that a usage object may have; those of providers have a few hundred."""


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

    async def totals(
        self,
        tenant_id: str,
        query: UsageQuery,
        conversation_id: str | None = None,
        agent_id: str | None = None,
    ) -> tuple[UsageFigures, Page[UsageRow]]:
        """Return the totals of a conversation, an agent or the tenant, and a page of their rows."""
        async with self._database.session() as session:
            if conversation_id is None:
                owner = {"tenant_id": tenant_id, "agent_id": agent_id or WHOLE_TENANT}
                return await session.usage.totals("tenant_usage", query, **owner)
            await session.conversations.get(tenant_id, conversation_id)
            owner = {"conversation_id": conversation_id}
            return await session.usage.totals("conversation_usage", query, **owner)

    async def page(
        self, table: Listed, tenant_id: str, conversation_id: str, limit: int, before: str | None
    ) -> Page[Any]:
        """Return reports or epochs, the newest first, starting after the one with this id."""
        async with self._database.session() as session:
            await session.conversations.get(tenant_id, conversation_id)
            return await session.usage.page(table, conversation_id, limit, before)

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
        usage_json = json_text.dumps(report.usage) if report.usage is not None else ""
        if len(usage_json.encode()) > MAX_USAGE_BYTES:
            raise ValidationError.at("/usage", f"At most {MAX_USAGE_BYTES:,} bytes of JSON")
        removals = read_removals(report.input_transformations)
        miss = read_cache_miss(report.cache_diagnostics) if report.cache_diagnostics else None
        if report.usage is None and (removals or miss):
            raise ValidationError.at("/usage", "The usage of the same call is required")
        places = await self._places(tenant_id, conversation_id, report.build_id, removals)
        async with self._database.transaction() as session:
            build, sent = None, None
            if report.build_id is not None:
                build = await find_build(session, conversation_id, report.build_id)
            model = model_in(build[1].payload_stream) if build is not None else report.model
            conversation = await self._find_conversation(session, tenant_id, conversation_id, model)
            if build is not None:
                report, sent = await _with_build(session, conversation_id, report, *build)
            elif report.build_id is not None:
                raise ValidationError.at("/build_id", "No build of this conversation has this id")
            known_head = conversation.state.head_seq
            if report.through_seq is not None and report.through_seq > known_head:
                raise ValidationError.at("/through_seq", f"The log's head is {known_head}")
            is_new = report.usage is not None and not await _is_repeated(
                session, conversation_id, idempotency_key, usage_json
            )
            format = report.format
            if is_new and format is None:
                last = await session.usage.last_epoch(conversation_id, tuple(FormatName))
                format = FormatName(last.format) if last is not None else None
            settings = RequestSettings(format or LOG_FORMAT, report.model)
            resolved = await self._resolved(conversation, settings)
            row, reported, visible_tokens, corrects = None, None, 0, False
            if not is_new or report.usage is None:
                stored = await session.usage.newest(conversation_id)
            else:
                call = read_usage(report.usage, settings.format)
                through_seq = known_head if head_seq is None else head_seq
                stored, epoch = await self._new_report(
                    session, conversation, report, settings.format, through_seq
                )
                removed = await _placed(session, conversation_id, removals, places)
                stored = replace(
                    stored, token_usage=call.usage, removed_reasoning=removed, cache_miss=miss
                )
                if report.through_seq is not None and resolved is not None and epoch is not None:
                    cached = self._cache.of_epoch(tenant_id, conversation_id, epoch)
                    begun = await self._with_prompt_of(session, conversation_id, resolved, epoch)
                    counted = _count(cached, conversation, begun, epoch, stored, sent)
                    if counted is not None:
                        regions, sealed = counted
                        stored = replace(stored, estimated_tokens=regions.total, regions=regions)
                        # Only their provider knows what hosted tools cost.
                        is_known = all(tool.hosted is None for tool in resolved.tools)
                        counts = call.usage.sent_tokens, regions.total, sealed
                        corrects = is_known and may_correct(*counts, conversation.counter)
                        corrects = corrects and not (call.has_steps or removed)
                if not await session.usage.add(conversation_id, stored, usage_json):
                    raise NotFound.conversation(conversation_id)
                if removed and epoch is not None and stored.epoch == epoch.epoch:
                    through = removed_through(removed)
                    await session.usage.set_removed(conversation_id, epoch.epoch_id, through)
                info = self._resolver.model_info(conversation, stored.model)
                log_tokens = await session.log.total_at(conversation_id, stored.through_seq)
                row = added_usage(stored.model, Purpose.REPORTED, info, call.billed, log_tokens)
            if stored is not None:
                reported = await read_reported(session, conversation, stored)
            if resolved is not None:
                known = [(conversation, resolved)]
                visible = await read_visible_tokens(session, known)
                visible_tokens = visible[conversation_id]
            if row is not None:
                await session.usage.add_to_conversation(conversation_id, [row])
            # Other reports of the model, and of the tenant, wait for the end of this transaction
            # from here on.
            if stored is not None and corrects:
                calibration = await session.usage.calibrate(
                    tenant_id,
                    stored.model,
                    conversation.counter,
                    stored.token_usage.sent_tokens,
                    stored.estimated_tokens or 0,
                )
                conversation = replace(conversation, calibration=calibration)
                resolved = await self._resolved(conversation, settings)
            if row is not None:
                await session.usage.add_to_tenant(tenant_id, conversation.agent_id, [row])
        answer = _answer(conversation, resolved, visible_tokens, reported, corrects)
        if (
            answer.should_compact
            and resolved is not None
            and resolved.policy.compaction.mode == "background"
        ):
            with suppress(ServiceUnavailable):  # workers find it when they poll
                async with self._database.session() as session:
                    await make_compaction_due(session, conversation_id)
        return answer

    async def _places(
        self, tenant_id: str, conversation_id: str, build_id: str | None, removals: list[Removal]
    ) -> list[int | None]:
        """Return the newest message of each item of a build, if a removal names one by its index.

        Empty for an unknown build, and for one that can no longer be rendered.
        """
        if build_id is None or all(removal.index is None for removal in removals):
            return []
        replay = BuildReplayService(self._database, self._resolver)
        with suppress(NotFound, Gone):
            build = await replay.get(tenant_id, conversation_id, build_id)
            return list(build["diagnostics"]["item_seqs"])
        return []

    async def _find_conversation(
        self, session: Repositories, tenant_id: str, conversation_id: str, model: str | None
    ) -> Conversation:
        """Return a conversation with its settings for a model, its active window up to date."""
        conversation = await session.conversations.get(tenant_id, conversation_id, model)
        if conversation.is_outdated(self._active.now()):
            locked = await session.conversations.get(tenant_id, conversation_id, lock=True)
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

    async def _with_prompt_of(
        self, session: Repositories, conversation_id: str, resolved: ResolvedSettings, epoch: Epoch
    ) -> ResolvedSettings | None:
        """Return settings as an epoch began with; None where it does not end with these."""
        if current_hashes(epoch) != (resolved.sections_hash, resolved.tools_hash):
            return None
        if not changes_from(epoch.changes):
            return resolved
        return await self._resolver.with_prompt_of(session, conversation_id, resolved, epoch)

    async def _new_report(
        self,
        session: Repositories,
        conversation: Conversation,
        report: UsageRequest,
        format: FormatName,
        head_seq: int,
    ) -> tuple[ReportItem, Epoch | None]:
        """Return a report to store, without its tokens, and the newest epoch of its stream."""
        model = report.model or conversation.model or self._resolver.default_model
        if model is None:
            detail = "No model: name one in the request, the conversation or its agent"
            raise ValidationError.at("/model", detail)
        stream = payload_stream_of(RequestSettings(format), model)
        newest = await session.usage.newest_epoch(conversation.conversation_id, stream)
        epoch = newest.epoch if newest is not None else None
        if report.epoch is not None:
            if report.epoch > (epoch or 0):
                raise ValidationError.at("/epoch", f"The newest epoch of {format} is {epoch or 0}")
            epoch = report.epoch
        through_seq = head_seq if report.through_seq is None else report.through_seq
        return ReportItem(self._new_id(), format, model, epoch, through_seq, TokenUsage()), newest


def _count(
    cached: CachedPayload | None,
    conversation: Conversation,
    resolved: ResolvedSettings | None,
    epoch: Epoch,
    report: ReportItem,
    sent: tuple[int, tuple[str, ...]] | None,
) -> tuple[PayloadTokens, int] | None:
    """Return the count of a report's payload before the factor, and the sealed part of it.

    `resolved` has the sections and tools of the epoch's start, None where those at its end are not
    the present ones. Only a build id identifies dynamic text, and changes after the last message;
    without one, the stored text and all changes are counted. None where this process no longer has
    the payload, where the settings or the view are other ones by now, and where the payload begins
    with a provider's compaction item.
    """
    start = epoch_start_from(epoch.start_json)
    if (
        cached is None
        or report.epoch != epoch.epoch
        or report.through_seq < epoch.start_seq
        or epoch.view_version != conversation.state.view_version
        or resolved is None
        or start.view.sent_item is not None
    ):
        return None
    count, dynamic_texts = sent or (None, None)
    changes = changes_at(epoch, report.through_seq, count) or ()
    tokens, sealed = cached.assembler.tokens_at(report.through_seq)
    system_prompt = resolved.raw_fixed.system_prompt
    system_prompt += sum(change.tokens for change in changes)
    if dynamic_texts is not None:
        system_prompt += resolved.system_tokens(dynamic_texts) - resolved.raw_dynamic
    counted = replace(
        resolved.raw_fixed,
        system_prompt=system_prompt,
        tool_descriptions=resolved.tool_tokens(start.tools),
        summary=cached.assembler.summary_tokens,
        conversation=tokens,
    )
    return counted, sealed


async def _placed(
    session: Repositories,
    conversation_id: str,
    removals: Sequence[Removal],
    places: Sequence[int | None],
) -> tuple[RemovedReasoning, ...]:
    """Return removed reasoning with the messages that it belongs to."""
    ids = [removal.item_id for removal in removals if removal.item_id is not None]
    seqs = await session.usage.seqs_of_items(conversation_id, ids) if ids else {}

    def seq_of(removal: Removal) -> int | None:
        if removal.index is None:
            return seqs.get(removal.item_id or "")
        return places[removal.index] if removal.index < len(places) else None

    return tuple(RemovedReasoning(seq_of(removal), removal.reason) for removal in removals)


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


async def _with_build(
    session: Repositories,
    conversation_id: str,
    report: UsageRequest,
    build_id: BuildId,
    epoch: Epoch,
) -> tuple[UsageRequest, tuple[int, tuple[str, ...]]]:
    """Return the report with the fields that its build id stands for, and what only that names.

    The latter are the number of changes after the newest message, and the dynamic texts.
    """
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
    sent = build_id.changes, tuple(map(str, chain.from_iterable(lists)))
    return report.model_copy(update=fields), sent


def _answer(
    conversation: Conversation,
    resolved: ResolvedSettings | None,
    visible_tokens: int,
    reported: LastReport | None,
    is_calibrated: bool,
) -> UsageAnswer:
    """Return the answer; budget and pressure are null while no context window is known."""
    found: dict[str, Any] = dict.fromkeys(UsageAnswer.model_fields) | {"removed_reasoning": []}
    found |= {"current": False, "should_compact": False, "calibrated": is_calibrated}
    if reported is not None:
        report = reported.report
        found |= {"current": reported.is_current, "report_id": report.report_id}
        found |= {"token_usage": report.token_usage, "cache_miss": report.cache_miss}
        found["removed_reasoning"] = list(report.removed_reasoning)
    if resolved is not None:
        tokens, limits = next_tokens_of(resolved, conversation, visible_tokens), resolved.limits
        used, is_due = judge(resolved, conversation, tokens.total, reported)
        margin = limits.margin if limits is not None else INEXACT_MARGIN
        counter, calibration = conversation.counter, conversation.calibration
        estimate = estimate_of(counter, resolved.factor, margin, calibration)
        found |= {"should_compact": is_due, "judged_tokens": used, "estimate": estimate}
        if limits is not None:
            found |= asdict(pressure_status(used, limits)) | {"budget": measure(tokens, limits)}
    return UsageAnswer(**found)

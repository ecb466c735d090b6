"""Reported usage, the calibrations computed from it, and totals by day and model.

1. A report adds to the totals of its day and model, so that a read never sums over reports.
2. The totals of a tenant are few rows that all of its reports update. A transaction updates them
   last, so that others wait for its commit alone. One statement locks them in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.common.pages import Page
from app.conversations.epochs import Epoch, PastEpoch
from app.conversations.reported_usage import UsageReport
from app.conversations.rows import epoch_from
from app.conversations.view import Span
from app.database.connections import Repository, Statement
from app.database.sql import arrays, equal, fields_of, placeholders, read
from app.database.tables import TABLES
from app.formats.message import FormatName
from app.models.budget import Usage
from app.models.calibration import (
    DECAY,
    ENOUGH_REPORTS,
    MIN_MARGIN,
    SEALED_PRIOR,
    Calibration,
    Lesson,
)
from app.models.limits import INEXACT_MARGIN
from app.models.usage_objects import TokenUsage
from app.models.usage_totals import CallTotals, GroupBy, UsageEntry, UsageQuery, UsageRow

# The lock orders it with a deletion, so that no row stays for a later conversation with this id.
_REPORT_COLUMNS = ", ".join(TABLES["usage_reports"].without("created_at"))
ADD_REPORT = Statement(
    f"""
        WITH alive AS (
            SELECT FROM heads
            WHERE conversation_id = :conversation_id FOR KEY SHARE
        )
        INSERT INTO usage_reports ({_REPORT_COLUMNS})
        SELECT {placeholders(_REPORT_COLUMNS)} FROM alive
        """
)
# Ids of reports sort by time.
NEWEST_REPORT = Statement(
    """
        SELECT * FROM usage_reports
        WHERE conversation_id = :conversation_id
        ORDER BY report_id DESC LIMIT 1
        """
)
LIST_REPORTS = Statement(
    f"""
        SELECT {", ".join(TABLES["usage_reports"].without("conversation_id", "usage"))}, '' AS usage
        FROM usage_reports
        WHERE conversation_id = :conversation_id
            AND (CAST(:before AS uuid) IS NULL OR report_id < CAST(:before AS uuid))
        ORDER BY report_id DESC LIMIT :limit
        """
)
# So do those of epochs; `epochs_by_id` is in this order.
LIST_EPOCHS = Statement(
    """
        SELECT epoch, epoch_id, lane, format, "window", reason, start_seq, created_at FROM epochs
        WHERE conversation_id = :conversation_id
            AND (CAST(:before AS uuid) IS NULL OR epoch_id < CAST(:before AS uuid))
        ORDER BY epoch_id DESC LIMIT :limit
        """
)
NEWEST_EPOCH = Statement(
    """
        SELECT * FROM epochs
        WHERE conversation_id = :conversation_id AND lane = :lane
        ORDER BY epoch DESC LIMIT 1
        """
)
LAST_EPOCH = Statement(
    """
        SELECT * FROM epochs
        WHERE conversation_id = :conversation_id AND format = ANY (CAST(:formats AS text[]))
        ORDER BY created_at DESC LIMIT 1
        """
)
# Each span is a range of the index.
HAS_REASONING = Statement(
    """
        SELECT EXISTS (
            SELECT FROM unnest(:starts, :ends)
                AS span (first, past)
            CROSS JOIN LATERAL (
                SELECT m.seq FROM messages m
                WHERE m.conversation_id = :conversation_id AND m.seq >= span.first
                    AND m.seq < least(span.past, :through_seq + 1)
                    AND m.reasoning_tokens > 0
                ORDER BY m.seq LIMIT 1
            ) found
        ) AS found
        """
)
_REPORTED_SUM = "(CAST(:decay AS double precision) * old.reported_sum + excluded.reported_sum)"
_COUNTED_SUM = "(CAST(:decay AS double precision) * old.counted_sum + excluded.counted_sum)"
_DEVIATION_SUM = """(CAST(:decay AS double precision) * old.deviation_sum
                + abs(excluded.reported_sum - old.factor * excluded.counted_sum))"""
# `Tally.with_report` in SQL, one statement, so that reports at once wait for one another's sums.
CALIBRATE = Statement(
    f"""
        INSERT INTO calibrations AS old (
            tenant_id, model, counter, factor, margin, reports, reported_sum, counted_sum,
            deviation_sum, updated_at
        ) VALUES (
            :tenant_id, :model, :counter,
            CAST(:reported AS double precision) / CAST(:counted AS double precision),
            CAST(:max_margin AS double precision), 1,
            CAST(:reported AS double precision), CAST(:counted AS double precision),
            abs(CAST(:reported AS double precision) - CAST(:counted AS double precision)),
            statement_timestamp()
        )
        ON CONFLICT (tenant_id, model, counter) DO UPDATE
        SET factor = {_REPORTED_SUM} / {_COUNTED_SUM},
            margin = CASE WHEN old.reports + 1 < CAST(:enough AS bigint)
                THEN CAST(:max_margin AS double precision)
                ELSE least(
                    greatest(
                        {_DEVIATION_SUM} / {_REPORTED_SUM},
                        CAST(:min_margin AS double precision)
                    ),
                    CAST(:max_margin AS double precision)
                )
            END,
            reports = old.reports + 1, reported_sum = {_REPORTED_SUM},
            counted_sum = {_COUNTED_SUM}, deviation_sum = {_DEVIATION_SUM},
            updated_at = excluded.updated_at
        RETURNING factor, margin, reports, sealed_reported / sealed_counted AS sealed
        """
)
_SEALED_SUM = "CAST(:decay AS double precision) * {} + CAST(:{} AS double precision)"
CALIBRATE_SEALED = Statement(
    f"""
        INSERT INTO calibrations AS old (
            tenant_id, model, counter, factor, margin, reports, reported_sum, counted_sum,
            deviation_sum, sealed_reported, sealed_counted, updated_at
        ) VALUES (
            :tenant_id, :model, :counter, 1, CAST(:max_margin AS double precision), 0, 0, 0, 0,
            {_SEALED_SUM.format(SEALED_PRIOR, "reported")},
            {_SEALED_SUM.format(SEALED_PRIOR, "counted")}, statement_timestamp()
        )
        ON CONFLICT (tenant_id, model, counter) DO UPDATE
        SET sealed_reported = {_SEALED_SUM.format("old.sealed_reported", "reported")},
            sealed_counted = {_SEALED_SUM.format("old.sealed_counted", "counted")},
            updated_at = excluded.updated_at
        RETURNING factor, margin, reports, sealed_reported / sealed_counted AS sealed
        """
)
_FIND_CALIBRATION = """
        SELECT factor, margin, reports, sealed_reported / sealed_counted AS sealed
        FROM calibrations WHERE tenant_id = :tenant_id AND model = :model AND counter = :counter
        """
FIND_CALIBRATION = Statement(_FIND_CALIBRATION)

_TABLE = TABLES["conversation_usage"]
_SUMS = (*_TABLE.without(*_TABLE.key),)
_NAMES = ("model", "purpose", *_SUMS)
_COLUMNS = ", ".join(_NAMES)
_ENTRIES = f"unnest({arrays('conversation_usage', *_NAMES)}) AS entry ({_COLUMNS})"
_TODAY = "CAST(now() AT TIME ZONE 'UTC' AS date)"
_ADDED = ", ".join(f"{name} = old.{name} + excluded.{name}" for name in _SUMS)
_VALUES = ", ".join(f"entry.{name}" for name in _NAMES)

# The lock orders it with a deletion, so that no row stays for a later conversation with this id.
ADD_TO_CONVERSATION = Statement(f"""
    WITH alive AS (
        SELECT FROM heads
        WHERE conversation_id = :conversation_id FOR KEY SHARE
    )
    INSERT INTO conversation_usage AS old (conversation_id, day, {_COLUMNS})
    SELECT :conversation_id, {_TODAY}, {_VALUES}
    FROM alive, {_ENTRIES}
    ORDER BY entry.model, entry.purpose
    ON CONFLICT (conversation_id, day, model, purpose) DO UPDATE SET {_ADDED}
""")
ADD_TO_TENANT = Statement(f"""
    INSERT INTO tenant_usage AS old (tenant_id, agent_id, day, {_COLUMNS})
    SELECT :tenant_id, owner.agent_id, {_TODAY}, {_VALUES}
    FROM unnest(CAST(:agent_ids AS text[])) AS owner (agent_id), {_ENTRIES}
    ORDER BY owner.agent_id, entry.model, entry.purpose
    ON CONFLICT (tenant_id, agent_id, day, model, purpose) DO UPDATE SET {_ADDED}
""")
WHOLE_TENANT = ""
"""Stands for an agent id in the rows of the whole tenant."""

_PURPOSES = ("reported", "summaries")
_CALL_SUMS, _SAVED_SUMS = _SUMS[:7], _SUMS[7:]
_READ_SUMS = ", ".join(
    (
        *(
            f"coalesce(sum({name}) FILTER (WHERE purpose = '{purpose}'), 0) AS {purpose}_{name}"
            for purpose in _PURPOSES
            for name in _CALL_SUMS
        ),
        *(f"coalesce(sum({name}), 0) AS {name}" for name in _SAVED_SUMS),
    )
)
# The sums of the whole range are the first row. The key is the order of the groups.
_GROUPS = {
    GroupBy.DAY: ("day", "day, NULL AS model", "day > CAST(:after_day AS date)"),
    GroupBy.MODEL: (
        "model",
        "CAST(NULL AS date) AS day, model",
        "model > CAST(:after_model AS text)",
    ),
    GroupBy.DAY_AND_MODEL: (
        "day, model",
        "day, model",
        "(day, model) > (CAST(:after_day AS date), CAST(:after_model AS text))",
    ),
}
_OWNERS = {
    "conversation_usage": equal("conversation_id"),
    "tenant_usage": equal("tenant_id", "agent_id"),
}


def _read(table: str, group_by: GroupBy) -> Statement:
    keys, shown, is_after = _GROUPS[group_by]
    is_total = f"grouping({keys.partition(',')[0]}) = 1"
    return Statement(f"""
        SELECT {shown}, {_READ_SUMS}
        FROM {table}
        WHERE {_OWNERS[table]}
            AND day BETWEEN CAST(:first AS date) AND CAST(:last AS date)
            AND (:model IS NULL OR model = :model)
        GROUP BY GROUPING SETS (({keys}), ())
        HAVING {is_total} OR NOT CAST(:is_continued AS boolean) OR {is_after}
        ORDER BY {is_total} DESC, {keys} LIMIT :limit + 2
    """)


READS = {(table, group_by): _read(table, group_by) for table in _OWNERS for group_by in GroupBy}


class UsageRepository(Repository):
    """Statements for reported usage, the calibration of models, and totals."""

    async def add(self, conversation_id: str, report: UsageReport) -> bool:
        """Store a report; False for a deleted conversation."""
        regions = [*fields_of(report.regions).values()] if report.regions is not None else None
        values = fields_of(report) | fields_of(report.usage)
        values |= {"usage": report.usage_json, "regions": regions}
        return await self._session.run(ADD_REPORT, conversation_id=conversation_id, **values) == 1

    async def newest(self, conversation_id: str) -> UsageReport | None:
        """Return the newest report, or None."""
        row = await self._session.first(NEWEST_REPORT, conversation_id=conversation_id)
        return _report_from(row) if row is not None else None

    async def page(self, conversation_id: str, limit: int, before: str | None) -> Page[UsageReport]:
        """Return reports, the newest first, starting after the one with the id `before`."""
        rows = await self._session.all(
            LIST_REPORTS, conversation_id=conversation_id, before=before, limit=limit + 1
        )
        return Page(map(_report_from, rows[:limit]), has_more=len(rows) > limit)

    async def epochs(self, conversation_id: str, limit: int, before: str | None) -> Page[PastEpoch]:
        """Return epochs, the newest first, starting after the one with the id `before`."""
        rows = await self._session.all(
            LIST_EPOCHS, conversation_id=conversation_id, before=before, limit=limit + 1
        )
        epochs = (read(PastEpoch, row, payload_stream=row["lane"]) for row in rows[:limit])
        return Page(epochs, has_more=len(rows) > limit)

    async def newest_epoch(self, conversation_id: str, payload_stream: str) -> Epoch | None:
        """Return the newest epoch of a payload stream, None before any build."""
        row = await self._session.first(
            NEWEST_EPOCH, conversation_id=conversation_id, lane=payload_stream
        )
        return epoch_from(row, "", None) if row is not None else None

    async def last_epoch(self, conversation_id: str, formats: Sequence[FormatName]) -> Epoch | None:
        """Return the newest epoch in one of these formats, or None."""
        row = await self._session.first(
            LAST_EPOCH, conversation_id=conversation_id, formats=list(formats)
        )
        return epoch_from(row, "", None) if row is not None else None

    async def has_reasoning(
        self, conversation_id: str, spans: Sequence[Span], after_seq: int, through_seq: int
    ) -> bool:
        """Whether a message of these spans, after one seq and up to another, has reasoning."""
        has_reasoning: bool = await self._session.value(
            HAS_REASONING,
            conversation_id=conversation_id,
            starts=[max(span.start, after_seq + 1) for span in spans],
            ends=[span.end for span in spans],
            through_seq=through_seq,
        )
        return has_reasoning

    async def calibrate(
        self, tenant_id: str, model: str, counter: str, lesson: Lesson
    ) -> Calibration:
        """Add what a report says to the model's sums as `Tally` does, atomically."""
        values = {
            "tenant_id": tenant_id,
            "model": model,
            "counter": counter,
            "reported": float(lesson.reported),
            "counted": float(lesson.counted),
            "decay": DECAY,
            "max_margin": INEXACT_MARGIN,
        }
        if lesson.is_sealed:
            row = await self._session.first(CALIBRATE_SEALED, **values)
        else:
            bounds = {"enough": ENOUGH_REPORTS, "min_margin": MIN_MARGIN}
            row = await self._session.first(CALIBRATE, **values, **bounds)
        assert row is not None, "an upsert returns its row"
        return read(Calibration, row)

    async def find_calibration(
        self, tenant_id: str, model: str, counter: str
    ) -> Calibration | None:
        """Return the calibration of a model, or None."""
        row = await self._session.first(
            FIND_CALIBRATION, tenant_id=tenant_id, model=model, counter=counter
        )
        return read(Calibration, row) if row is not None else None

    async def add_to_conversation(
        self, conversation_id: str, entries: Sequence[UsageEntry]
    ) -> None:
        """Add to the totals of today; nothing is added for a deleted conversation."""
        await self._session.run(
            ADD_TO_CONVERSATION, conversation_id=conversation_id, **_arrays(entries)
        )

    async def add_to_tenant(
        self, tenant_id: str, agent_id: str | None, entries: Sequence[UsageEntry]
    ) -> None:
        """Add to the totals of today, of the tenant and of the agent, if there is one.

        Call it last in a transaction: all reports of the tenant wait for the end of that.
        """
        agent_ids = [WHOLE_TENANT] if agent_id is None else [WHOLE_TENANT, agent_id]
        await self._session.run(
            ADD_TO_TENANT, tenant_id=tenant_id, agent_ids=agent_ids, **_arrays(entries)
        )

    async def of_conversation(
        self, conversation_id: str, query: UsageQuery
    ) -> tuple[UsageRow, Page[UsageRow]]:
        """Return the totals of all matching rows, and a page of their groups."""
        return await self._of("conversation_usage", query, conversation_id=conversation_id)

    async def of_tenant(
        self, tenant_id: str, agent_id: str | None, query: UsageQuery
    ) -> tuple[UsageRow, Page[UsageRow]]:
        """Return the same of one agent, without an agent id of the whole tenant."""
        owner = {"tenant_id": tenant_id, "agent_id": agent_id or WHOLE_TENANT}
        return await self._of("tenant_usage", query, **owner)

    async def _of(
        self, table: str, query: UsageQuery, **owner: str
    ) -> tuple[UsageRow, Page[UsageRow]]:
        rows = await self._session.all(READS[table, query.group_by], **owner, **_parameters(query))
        totals, *groups = map(_row_from, rows)
        return totals, Page(groups[: query.limit], has_more=len(groups) > query.limit)


def _report_from(row: Any) -> UsageReport:
    return read(
        UsageReport,
        row,
        format=FormatName(row["format"]),
        usage=read(TokenUsage, row),
        usage_json=row["usage"],
        regions=Usage(*row["regions"]) if row["regions"] is not None else None,
    )


def _arrays(entries: Sequence[UsageEntry]) -> dict[str, Any]:
    """Return the columns of entries as arrays."""
    rows = [
        {
            "model": entry.model,
            "purpose": entry.purpose,
            **fields_of(entry.calls),
            "saved_tokens": entry.saved_tokens,
            "saved_usd": entry.saved_usd,
        }
        for entry in entries
    ]
    return {name: [row[name] for row in rows] for name in _NAMES}


def _parameters(query: UsageQuery) -> dict[str, Any]:
    after_day, after_model = query.after or (None, None)
    return {
        "first": query.days.first,
        "last": query.days.last,
        "model": query.model,
        "limit": query.limit,
        "is_continued": query.after is not None,
        "after_day": after_day,
        "after_model": after_model,
    }


def _row_from(row: Any) -> UsageRow:
    def calls(purpose: str) -> CallTotals:
        read = {name: row[f"{purpose}_{name}"] for name in _CALL_SUMS}
        cost_usd = read.pop("cost_usd")
        return CallTotals(**{name: int(sum) for name, sum in read.items()}, cost_usd=cost_usd)

    reported, summaries = (calls(purpose) for purpose in _PURPOSES)
    return UsageRow(
        *(row["day"], row["model"], reported, summaries),
        int(row["saved_tokens"]),
        row["saved_usd"],
    )

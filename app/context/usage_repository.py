"""Reported usage, the calibrations computed from it, and totals by day and model.

1. A report adds to the totals of its day and model, so that a read never sums over reports.
2. The totals of a tenant are few rows that all of its reports update. A transaction updates them
   last, so that others wait for its commit alone. One statement locks them in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from app.common import json_text
from app.common.answer_schemas import answer
from app.common.pages import Page, first_of
from app.conversations.conversation import BreakReason
from app.conversations.epoch import Epoch, model_in
from app.conversations.from_rows import changes_from, epoch_from
from app.database.connections import Repository, Statement
from app.database.sql import arrays, equal, fields_of, placeholders, read
from app.database.tables import TABLES
from app.formats.message import FormatName
from app.models.budget import PayloadTokens
from app.models.calibration import DECAY, ENOUGH_REPORTS, MIN_MARGIN, Calibration
from app.models.model_info import INEXACT_MARGIN
from app.models.prefix_reports import CacheMiss, RemovedReasoning
from app.models.usage import (
    AddedUsage,
    CallTotals,
    Purpose,
    ReportItem,
    TokenUsage,
    UsageFigures,
    UsageQuery,
    UsageRow,
    known_cost,
)

# The lock orders it with a deletion, so that no row stays for a later conversation with this id.
_ALIVE = """alive AS (
    SELECT FROM states WHERE conversation_id = :conversation_id FOR KEY SHARE
)"""
_REPORT_COLUMNS = ", ".join(TABLES["usage_reports"].without("created_at"))
ADD_REPORT = Statement(
    f"WITH {_ALIVE} INSERT INTO usage_reports ({_REPORT_COLUMNS})"
    f" SELECT {placeholders(_REPORT_COLUMNS)} FROM alive"
)
Listed = Literal["usage_reports", "epochs"]


def _newest_first(table: Listed, key: str, without: str) -> Statement:
    """Return a page of a conversation's rows without a column; their ids sort by time."""
    columns = ", ".join(f'"{name}"' for name in TABLES[table].without(without))
    return Statement(f"""
        SELECT {columns} FROM {table}
        WHERE conversation_id = :conversation_id
            AND (CAST(:before AS uuid) IS NULL OR {key} < CAST(:before AS uuid))
        ORDER BY {key} DESC LIMIT :limit
    """)


LISTS = {
    "usage_reports": _newest_first("usage_reports", "report_id", "usage"),
    "epochs": _newest_first("epochs", "epoch_id", "start_json"),
}
NEWEST_EPOCH = Statement("""
    SELECT * FROM epochs
    WHERE conversation_id = :conversation_id AND payload_stream = :payload_stream
    ORDER BY epoch DESC LIMIT 1
""")
LAST_EPOCH = Statement("""
    SELECT * FROM epochs
    WHERE conversation_id = :conversation_id AND format = ANY (CAST(:formats AS text[]))
    ORDER BY created_at DESC LIMIT 1
""")

SEQS_OF_ITEMS = Statement("""
    SELECT item.id, (
        SELECT max(seq) FROM messages
        WHERE conversation_id = :conversation_id AND role = 'assistant'
            AND strpos(body, '"' || item.id || '"') > 0
    ) AS seq
    FROM unnest(CAST(:ids AS text[])) AS item (id)
""")
# The next build reads the epoch again: its inputs have changed.
SET_REMOVED = Statement("""
    WITH changed AS (
        UPDATE epochs SET reasoning_removed = :through
        WHERE conversation_id = :conversation_id AND epoch_id = :epoch_id
            AND reasoning_removed < :through
        RETURNING conversation_id
    )
    UPDATE states SET input_version = input_version + 1 FROM changed
    WHERE states.conversation_id = changed.conversation_id
""")

_FACTORS = "factor, margin, reports"
_REPORTED, _COUNTED = (f"CAST(:{name} AS double precision)" for name in ("reported", "counted"))
_SUMS = {
    "reported_sum": f"{DECAY} * old.reported_sum + {_REPORTED}",
    "counted_sum": f"{DECAY} * old.counted_sum + {_COUNTED}",
    "deviation_sum": f"{DECAY} * old.deviation_sum + abs({_REPORTED} - old.factor * {_COUNTED})",
}
# One statement, so that reports at once wait for one another's sums.
CALIBRATE = Statement(f"""
    INSERT INTO calibrations AS old (
        tenant_id, model, counter, factor, margin, reports, {", ".join(_SUMS)}, updated_at
    ) VALUES (
        :tenant_id, :model, :counter, {_REPORTED} / {_COUNTED}, {INEXACT_MARGIN}, 1, {_REPORTED},
        {_COUNTED}, abs({_REPORTED} - {_COUNTED}), statement_timestamp()
    )
    ON CONFLICT (tenant_id, model, counter) DO UPDATE
    SET factor = ({_SUMS["reported_sum"]}) / ({_SUMS["counted_sum"]}),
        margin = CASE WHEN old.reports + 1 < {ENOUGH_REPORTS} THEN excluded.margin
            ELSE least(
                greatest(({_SUMS["deviation_sum"]}) / ({_SUMS["reported_sum"]}), {MIN_MARGIN}),
                excluded.margin
            )
        END,
        reports = old.reports + 1,
        {", ".join(f"{name} = {sum}" for name, sum in _SUMS.items())},
        updated_at = excluded.updated_at
    RETURNING {_FACTORS}
""")
FIND_CALIBRATION = Statement(
    f"SELECT {_FACTORS} FROM calibrations WHERE {equal('tenant_id', 'model', 'counter')}"
)

_NAMES = AddedUsage.__slots__
_TOTALS = _NAMES[2:]
_TOKENS = ("input_tokens", "output_tokens", "cache_creation_tokens", "cache_read_tokens")
_COLUMNS = ", ".join(_NAMES)
_ROWS = f"unnest({arrays('conversation_usage', *_NAMES)}) AS added ({_COLUMNS})"
_TODAY = "CAST(now() AT TIME ZONE 'UTC' AS date)"
_ADDED = ", ".join(f"{name} = old.{name} + excluded.{name}" for name in _TOTALS)
_VALUES = ", ".join(f"added.{name}" for name in _NAMES)
ADD_TO_CONVERSATION = Statement(f"""
    WITH {_ALIVE}
    INSERT INTO conversation_usage AS old (conversation_id, day, {_COLUMNS})
    SELECT :conversation_id, {_TODAY}, {_VALUES}
    FROM alive, {_ROWS}
    ORDER BY added.model, added.purpose
    ON CONFLICT (conversation_id, day, model, purpose) DO UPDATE SET {_ADDED}
""")
ADD_TO_TENANT = Statement(f"""
    INSERT INTO tenant_usage AS old (tenant_id, agent_id, day, {_COLUMNS})
    SELECT :tenant_id, owner.agent_id, {_TODAY}, {_VALUES}
    FROM unnest(CAST(:agent_ids AS text[])) AS owner (agent_id), {_ROWS}
    ORDER BY owner.agent_id, added.model, added.purpose
    ON CONFLICT (tenant_id, agent_id, day, model, purpose) DO UPDATE SET {_ADDED}
""")
WHOLE_TENANT = ""
"""Stands for an agent id in the rows of the whole tenant."""
_READ_SUMS = ", ".join(
    f"coalesce(sum({name}) FILTER (WHERE purpose = '{purpose}'), 0) AS {purpose}_{name}"
    for purpose in Purpose
    for name in _TOTALS
)


def _read(table: str, *owner: str) -> Statement:
    """Return the sums of the whole range, and after them a page of those by day and model."""
    return Statement(f"""
        SELECT day, model, {_READ_SUMS}
        FROM {table}
        WHERE {equal(*owner)} AND day BETWEEN CAST(:first AS date) AND CAST(:last AS date)
        GROUP BY GROUPING SETS ((day, model), ())
        HAVING grouping(day) = 1 OR CAST(:after_day AS date) IS NULL
            OR (day, model) > (CAST(:after_day AS date), CAST(:after_model AS text))
        ORDER BY grouping(day) DESC, day, model LIMIT :limit + 2
    """)


READS = {
    "conversation_usage": _read("conversation_usage", "conversation_id"),
    "tenant_usage": _read("tenant_usage", "tenant_id", "agent_id"),
}


@answer()
@dataclass(frozen=True, slots=True)
class EpochItem:
    """An epoch of the conversation's payloads: each of them extends the one before."""

    epoch_id: str
    """Id of the epoch, with which ids of its builds begin."""
    epoch: int
    """Its number among those of its format and model."""
    format: FormatName
    """The format of its payloads."""
    model: str
    """The model of its payloads."""
    context_window: int | None
    """The context window that its requests set; null where the policy decided."""
    cache_break_reason: BreakReason | None
    """Why it began, as in a build; null for the first."""
    start_seq: int
    """The newest message of its first payload."""
    changed_after: tuple[int, ...]
    """After which messages its payloads say that sections or tools changed."""
    created_at: datetime
    """Time of its first build."""


class UsageRepository(Repository):
    """Statements for reported usage, the calibration of models, and totals."""

    async def add(self, conversation_id: str, report: ReportItem, usage_json: str) -> bool:
        """Store a report with the object as it was sent; False for a deleted conversation."""
        regions = [*fields_of(report.regions).values()] if report.regions is not None else None
        values = fields_of(report) | fields_of(report.token_usage)
        values |= {"usage": usage_json, "regions": regions}
        values["removed_reasoning"] = json_text.dumps([*map(asdict, report.removed_reasoning)])
        values["cache_miss"] = report.cache_miss and json_text.dumps(asdict(report.cache_miss))
        return await self._session.run(ADD_REPORT, conversation_id=conversation_id, **values) == 1

    async def page(
        self, table: Listed, conversation_id: str, limit: int, before: str | None = None
    ) -> Page[Any]:
        """Return reports or epochs, the newest first, starting after the one with this id."""
        rows = await self._session.all(
            LISTS[table], conversation_id=conversation_id, before=before, limit=limit + 1
        )
        item_from = _report_from if table == "usage_reports" else _epoch_item_from
        return first_of([item_from(row) for row in rows], limit)

    async def seqs_of_items(self, conversation_id: str, ids: Sequence[str]) -> dict[str, int]:
        """Return the messages with items of these ids, by the id; unknown ones are left out."""
        rows = await self._session.all(SEQS_OF_ITEMS, conversation_id=conversation_id, ids=ids)
        return {row["id"]: row["seq"] for row in rows if row["seq"] is not None}

    async def set_removed(self, conversation_id: str, epoch_id: str, through: int) -> None:
        """Let the builds after an epoch leave out reasoning up to this seq."""
        await self._session.run(
            SET_REMOVED, conversation_id=conversation_id, epoch_id=epoch_id, through=through
        )

    async def newest(self, conversation_id: str) -> ReportItem | None:
        """Return the newest report, or None."""
        return next(iter(await self.page("usage_reports", conversation_id, 1)), None)

    async def newest_epoch(self, conversation_id: str, payload_stream: str) -> Epoch | None:
        """Return the newest epoch of a payload stream, None before any build."""
        row = await self._session.first(
            NEWEST_EPOCH, conversation_id=conversation_id, payload_stream=payload_stream
        )
        return epoch_from(row, "", None) if row is not None else None

    async def last_epoch(self, conversation_id: str, formats: Sequence[FormatName]) -> Epoch | None:
        """Return the newest epoch in one of these formats, or None."""
        row = await self._session.first(
            LAST_EPOCH, conversation_id=conversation_id, formats=list(formats)
        )
        return epoch_from(row, "", None) if row is not None else None

    async def calibrate(
        self, tenant_id: str, model: str, counter: str, reported: int, counted: int
    ) -> Calibration:
        """Add what a report says to the model's sums, atomically."""
        key = {"tenant_id": tenant_id, "model": model, "counter": counter}
        sums = {"reported": float(reported), "counted": float(counted)}
        row = await self._session.first(CALIBRATE, **key, **sums)
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

    async def add_to_conversation(self, conversation_id: str, rows: Sequence[AddedUsage]) -> None:
        """Add to the totals of today; nothing is added for a deleted conversation."""
        columns = {name: [getattr(row, name) for row in rows] for name in _NAMES}
        await self._session.run(ADD_TO_CONVERSATION, conversation_id=conversation_id, **columns)

    async def add_to_tenant(
        self, tenant_id: str, agent_id: str | None, rows: Sequence[AddedUsage]
    ) -> None:
        """Add to the totals of today, of the tenant and of the agent, if there is one.

        Call it last in a transaction: all reports of the tenant wait for the end of that.
        """
        agent_ids = [WHOLE_TENANT] if agent_id is None else [WHOLE_TENANT, agent_id]
        columns = {name: [getattr(row, name) for row in rows] for name in _NAMES}
        await self._session.run(ADD_TO_TENANT, tenant_id=tenant_id, agent_ids=agent_ids, **columns)

    async def totals(
        self, table: str, query: UsageQuery, **owner: str
    ) -> tuple[UsageFigures, Page[UsageRow]]:
        """Return the totals of the whole range, and a page of those by day and model."""
        after_day, after_model = query.after or (None, None)
        values = {"after_day": after_day, "after_model": after_model, **owner}
        rows = await self._session.all(
            READS[table], first=query.first, last=query.last, limit=query.limit, **values
        )
        page = (
            UsageRow(day=row["day"], model=row["model"], **_figures(row))
            for row in rows[1 : query.limit + 1]
        )
        return UsageFigures(**_figures(rows[0])), Page(page, has_more=len(rows) > query.limit + 1)


def _report_from(row: Any) -> ReportItem:
    return read(
        ReportItem,
        row,
        format=FormatName(row["format"]),
        token_usage=TokenUsage(*(row[name] for name in _TOKENS)),
        regions=PayloadTokens(*row["regions"]) if row["regions"] is not None else None,
        removed_reasoning=tuple(
            RemovedReasoning(**item) for item in json_text.loads(row["removed_reasoning"])
        ),
        cache_miss=CacheMiss(**json_text.loads(row["cache_miss"])) if row["cache_miss"] else None,
    )


def _epoch_item_from(row: Any) -> EpochItem:
    requested, reason = row["requested_context_window"] or None, row["reason"]
    after = tuple(change.after_seq for change in changes_from(row["changes"]))
    names = {"context_window": requested, "cache_break_reason": reason, "changed_after": after}
    return read(EpochItem, row, model=model_in(row["payload_stream"]), **names)


def _figures(row: Any) -> dict[str, Any]:
    """Return the fields of `UsageFigures`."""
    reported, summaries = (
        {name: row[f"{purpose}_{name}"] for name in _TOTALS} for purpose in Purpose
    )
    both = {name: reported[name] + summaries[name] for name in _TOTALS}
    return {
        "reported": _call_totals(reported),
        "summaries": _call_totals(summaries),
        "cost_usd": known_cost(both["calls"], both["unpriced_calls"], both["cost_usd"]),
        "saved_tokens": int(both["saved_tokens"]),
        "saved_usd": known_cost(
            reported["calls"], reported["unpriced_calls"], reported["saved_usd"]
        ),
    }


def _call_totals(sums: dict[str, Any]) -> CallTotals:
    counts = {name: int(sums[name]) for name in (*_TOKENS, "calls", "unpriced_calls")}
    cost = known_cost(sums["calls"], sums["unpriced_calls"], sums["cost_usd"])
    return CallTotals(**counts, cost_usd=cost)

"""Conversion of rows into domain objects, for every statement that returns them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from cachetools import LRUCache
from pydantic import TypeAdapter

from app.common import json_text
from app.conversations.conversation import (
    DEFAULT_AGENT_WINDOW_SECONDS,
    NO_SETTINGS,
    Agent,
    Conversation,
    ConversationState,
    StoredSettings,
    rolling_window_of,
)
from app.conversations.epoch import Epoch, EpochStart, PromptChange
from app.conversations.messages.row import Calls, LogRow, StoredMessage
from app.conversations.receipt import Receipt
from app.conversations.turns import Entry, entry
from app.conversations.view import Span, Summary, View, spans_beside, window_from
from app.database.sql import read
from app.formats.message import FormatName, Role
from app.models.calibration import Calibration

# Settings can be large and change rarely. PostgreSQL returns them only if the version that this
# process has cached, named by the parameters `cached_…`, is outdated.
_IS_CACHED = """coalesce(c.updated_at = CAST(:cached_at AS timestamptz)
    AND a.updated_at IS NOT DISTINCT FROM CAST(:cached_agent_at AS timestamptz), false)"""
_LARGE = {
    **{name: f"c.{name}" for name in ("metadata", "policy", "sections", "tools")},
    **{f"agent_{name}": f"a.{name}" for name in ("policy", "sections", "tools")},
}
_UNLISTED = dict.fromkeys(("policy", "agent_policy"), "'{}'") | dict.fromkeys(
    ("sections", "tools", "agent_sections", "agent_tools"), "'[]'"
)
# What is known of the model is read by its key in the SELECT list: Citus plans no join of reference
# tables whose condition has parameters.
_MODEL = "coalesce(:model, c.model, a.model, CAST(:default_model AS text))"
_OF_MODEL = f"m.tenant_id = c.tenant_id AND m.model = {_MODEL}"
CALIBRATION = "ARRAY[cal.factor, cal.margin, cal.reports]"
_SMALL_COLUMNS = f"""
    c.conversation_id, c.own_id, c.origin_id, c.agent_id, c.created_at, c.updated_at,
    c.expires_at,
    c.model, a.model AS agent_model, c.sections_version, c.tools_version,
    c.rolling_window_seconds AS own_window, a.rolling_window_seconds AS agent_window,
    a.updated_at AS agent_updated_at,
    (SELECT m.updated_at FROM models m WHERE {_OF_MODEL}) AS model_updated_at,
    (SELECT m.info FROM models m WHERE {_OF_MODEL}) AS own_model_info,
    (SELECT {CALIBRATION} FROM calibrations cal WHERE cal.tenant_id = c.tenant_id
        AND cal.model = {_MODEL} AND cal.counter = h.counter) AS calibration
"""


def _columns(settings: dict[str, str]) -> str:
    return ", ".join((_SMALL_COLUMNS, *(f"{term} AS {name}" for name, term in settings.items())))


CONVERSATION_COLUMNS = _columns(
    {"is_cached": _IS_CACHED}
    | {name: f"CASE WHEN NOT {_IS_CACHED} THEN {of} END" for name, of in _LARGE.items()}
)
LISTED_COLUMNS = _columns(_LARGE | _UNLISTED)
"""The columns of conversations for a list, without settings except for the model."""
SETTINGS_COLUMNS = _columns(_LARGE)
"""The columns of conversations with all of their settings."""
STATE_COLUMNS = """
    h.counter, h.head_seq, h.turns, h.tokens, h.open_calls, h.open_seqs, h.group_seq,
    h.provider_calls, h.is_answering, h.view_version, h.compaction_id, h.hidden_start, h.hidden_end,
    h.summary_tokens, h.hidden_tokens, h.hidden_messages, h.protected_seqs, h.view_cause,
    h.results_cleared_through, h.named_tools, h.promoted, h.promoted_turn, h.resume_at_tokens,
    h.failures, h.due_at, h.since, h.window_parts, h.outside_tokens, h.outside_messages,
    h.window_seconds, h.cleared_at, h.cleared_seq, h.oldest_at, h.redacted_version, h.extra_tokens,
    h.extra_version, h.input_version, h.due_at IS NOT NULL AS is_due,
    coalesce(h.failures > 0 AND h.due_at > now(), false) AS is_backing_off
"""
AGENT_JOIN = "LEFT JOIN agents a ON a.tenant_id = c.tenant_id AND a.agent_id = c.agent_id"


def newest_message_at(conversation_id: str) -> str:
    """Return the term for when the newest message of a conversation was received."""
    return f"""(
        SELECT newest.created_at FROM messages newest
        WHERE newest.conversation_id = {conversation_id}
        ORDER BY newest.seq DESC LIMIT 1
    )"""


def agent_from(row: Any) -> Agent:
    """Return an agent from its row."""
    own_window = row["rolling_window_seconds"]
    return read(
        Agent,
        row,
        settings=read(StoredSettings, row),
        own_window=own_window,
        rolling_window_seconds=rolling_window_of(own_window, DEFAULT_AGENT_WINDOW_SECONDS),
        cleared_at=row["last_cleared_at"],
    )


def state_from(row: Any) -> ConversationState:
    """Return a conversation's state from its row."""
    span = Span(row["hidden_start"], row["hidden_end"]) if row["hidden_start"] is not None else None
    is_of_this_view = row["extra_version"] == row["view_version"]
    return read(
        ConversationState,
        row,
        calls=Calls(
            dict(zip(row["open_calls"], row["open_seqs"], strict=True)),
            row["group_seq"],
            tuple(row["provider_calls"]),
            row["is_answering"],
        ),
        hidden_span=span,
        protected_seqs=tuple(row["protected_seqs"]),
        results_cleared_through=row["results_cleared_through"],
        resume_at_tokens=row["resume_at_tokens"],
        became_due=False,
        window=window_from(row["since"], row["window_parts"]),
        extra_tokens=row["extra_tokens"] if is_of_this_view else 0,
    )


@dataclass(frozen=True, slots=True)
class CachedSettings:
    """The cached settings of a conversation, with the times of their last changes."""

    conversation: Conversation
    agent_updated_at: datetime | None
    model_updated_at: datetime | None


def versions_of(cached: CachedSettings | None) -> dict[str, datetime | None]:
    """Return the statement parameters that name cached settings; without any all are read."""
    return {
        "cached_at": cached.conversation.updated_at if cached else None,
        "cached_agent_at": cached.agent_updated_at if cached else None,
    }


class SettingsCache:
    """A cache of the settings of conversations, so that a read returns only changed settings."""

    def __init__(self, default_model: str | None) -> None:
        self.default_model = default_model
        self._cache: LRUCache[tuple[str, str, str | None], CachedSettings] = LRUCache(1024)

    def get(
        self, tenant_id: str, conversation_id: str, model: str | None = None
    ) -> CachedSettings | None:
        """Return the cached settings of a tenant's conversation for a request with this model."""
        return self._cache.get((tenant_id, conversation_id, model))

    def conversation_from(
        self, row: Any, tenant_id: str, cached: CachedSettings | None, model: str | None = None
    ) -> Conversation:
        """Return a conversation from a row of a statement with the versions of `cached`.

        The row of an append has no model: the statement has compared it.
        """
        if row["is_cached"] and cached is not None:
            known = cached.conversation
            conversation = replace(
                known,
                counter=row["counter"],
                state=state_from(row),
                own_model_info=row.get("own_model_info", known.own_model_info),
                calibration=calibration_from(row),
            )
            model_at = row.get("model_updated_at", cached.model_updated_at)
            cached = CachedSettings(conversation, cached.agent_updated_at, model_at)
        else:
            conversation = conversation_from(row)
            cached = CachedSettings(conversation, row["agent_updated_at"], row["model_updated_at"])
        self._cache[tenant_id, conversation.conversation_id, model] = cached
        return conversation


def conversation_from(row: Any) -> Conversation:
    """Return a conversation from a row with all of its settings."""
    agent, default = NO_SETTINGS, 0
    if row["agent_updated_at"] is not None:
        names = ("model", "policy", "sections", "tools")
        agent = StoredSettings(*(row[f"agent_{name}"] for name in names))
        default = DEFAULT_AGENT_WINDOW_SECONDS
    return read(
        Conversation,
        row,
        settings=read(StoredSettings, row),
        agent=agent,
        state=state_from(row),
        calibration=calibration_from(row),
        last_message_at=row.get("last_message_at"),
        rolling_window_seconds=rolling_window_of(row["own_window"], row["agent_window"], default),
    )


def calibration_from(row: Any) -> Calibration | None:
    """Return the calibration of a row, None without one."""
    found = row["calibration"]
    if found is None or found[0] is None:
        return None
    factor, margin, reports = found
    return Calibration(factor, margin, int(reports))


def stored_message_from(row: Any) -> StoredMessage:
    """Return a message of a transcript from its row."""
    return read(
        StoredMessage,
        row,
        id=row["message_id"],
        token_count=row["tokens"] + row["reasoning_tokens"],
        stored_output=row["output"],
    )


def log_rows_from(row: Any) -> list[LogRow]:
    """Return log rows from one array per field of `LogRow`."""
    if row["seqs"] is None:
        return []
    calls = (tuple(json_text.loads(text)) if text else () for text in row["row_calls"])
    numbers = row["row_tokens"], row["row_reasoning"]
    texts = map(FormatName, row["row_formats"]), row["bodies"], row["outputs"]
    columns = (*numbers, calls, row["row_media"], *texts, row["row_joins"])
    return list(map(LogRow, row["ids"], row["seqs"], map(Role, row["roles"]), *columns))


def entry_from(row: Any, *, pinned: bool = False) -> Entry:
    """Return a message as compaction planning reads it."""
    return entry(row["seq"], Role(row["role"]), row["tokens"], pinned, joins=row["joins"])


def epoch_from(row: Any, prefix: str, known_start: str | None) -> Epoch | None:
    """Return an epoch from columns with a prefix, None without one."""
    if row[f"{prefix}epoch"] is None:
        return None
    values = {name: row[f"{prefix}{name}"] for name in Epoch.__slots__}
    return read(Epoch, values, start_json=values["start_json"] or known_start or "")


_VIEW, _SUMMARIES = TypeAdapter(View), TypeAdapter(tuple[Summary, ...])
_START = TypeAdapter(EpochStart)
_CHANGES = TypeAdapter(tuple[PromptChange, ...])


def view_from(text: str) -> View:
    """Return a view from its stored JSON."""
    return _VIEW.validate_python(json_text.loads(text))


def summaries_from(made: str) -> tuple[Summary, ...]:
    """Return the summaries that a compaction made, from their stored JSON."""
    return _SUMMARIES.validate_python(json_text.loads(made))


@lru_cache(256)
def epoch_start_from(text: str) -> EpochStart:
    """Read a stored start; cached, because every build of the epoch needs it."""
    return _START.validate_python(json_text.loads(text))


@lru_cache(256)
def changes_from(text: str) -> tuple[PromptChange, ...]:
    """Read the stored changes of an epoch; cached like its start."""
    return _CHANGES.validate_python(json_text.loads(text))


def current_hashes(epoch: Epoch) -> tuple[str, str]:
    """Return the hashes of the sections and tools that hold at the end of an epoch."""
    last = next(reversed(changes_from(epoch.changes)), epoch)
    return last.sections_hash, last.tools_hash


def receipt_from(row: Any) -> Receipt:
    """Return a receipt; one that a redaction has emptied has no view."""
    span = Span(row["hidden_start"], row["hidden_end"])
    if row["view"]:
        view = view_from(row["view"])
    else:
        view = View(spans=spans_beside(span), summaries=(Summary(span, row["summary"]),))
    facts = {**row, **json_text.loads(row["receipt"])}
    return read(Receipt, facts, hidden_span=span, view=view, made=summaries_from(row["made"]))

"""Rows to records, once for every statement that returns them."""

from __future__ import annotations

from typing import Any

from app.domain import jsontext
from app.domain.log import LogRow
from app.domain.messages import FormatName, Role
from app.domain.records import Agent, Compaction, Conversation, Epoch, Head, Settings, StoredMessage
from app.domain.strategies import Span

CONVERSATION_COLUMNS = """
    c.conversation_id, c.agent_id, c.counter, c.metadata, c.created_at, c.updated_at,
    c.model, c.policy, c.sections, c.tools,
    a.model AS agent_model, a.policy AS agent_policy,
    a.sections AS agent_sections, a.tools AS agent_tools,
    m.entry AS model_entry
"""
HEAD_COLUMNS = """
    h.head_seq, h.turns, h.tokens, h.open_calls, h.view_version, h.compaction_id,
    h.span_start, h.span_end, h.summary_tokens, h.hidden_tokens
"""
LAYER_JOINS = """
    LEFT JOIN agents a ON a.tenant_id = c.tenant_id AND a.agent_id = c.agent_id
    LEFT JOIN models m ON m.tenant_id = c.tenant_id
        AND m.model = coalesce(CAST(:model AS text), c.model, a.model, CAST(:default_model AS text))
"""


def agent_from(row: Any) -> Agent:
    """Read an agent."""
    return Agent(
        agent_id=row["agent_id"],
        name=row["name"],
        settings=Settings(row["model"], row["policy"], row["sections"], row["tools"]),
        metadata=row["metadata"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def head_from(row: Any) -> Head:
    """Read a head."""
    compaction_id = row["compaction_id"]
    return Head(
        head_seq=row["head_seq"],
        turns=row["turns"],
        tokens=row["tokens"],
        open_calls=tuple(row["open_calls"]),
        view_version=row["view_version"],
        compaction_id=str(compaction_id) if compaction_id else None,
        span=Span(row["span_start"], row["span_end"]) if compaction_id else None,
        summary_tokens=row["summary_tokens"],
        hidden_tokens=row["hidden_tokens"],
    )


def conversation_from(row: Any) -> Conversation:
    """Read a conversation with its head and layers."""
    agent = Settings()
    if row["agent_policy"] is not None:
        agent = Settings(
            row["agent_model"], row["agent_policy"], row["agent_sections"], row["agent_tools"]
        )
    return Conversation(
        conversation_id=str(row["conversation_id"]),
        agent_id=row["agent_id"],
        counter=row["counter"],
        settings=Settings(row["model"], row["policy"], row["sections"], row["tools"]),
        agent=agent,
        metadata=row["metadata"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        head=head_from(row),
        model_entry=row["model_entry"],
    )


def stored_message_from(row: Any) -> StoredMessage:
    """Read a message for the transcript."""
    return StoredMessage(
        id=row["message_id"],
        seq=row["seq"],
        turn=row["turn"],
        role=row["role"],
        format=row["format"],
        token_count=row["tokens"] + row["reasoning_tokens"],
        body=row["body"],
        created_at=row["created_at"],
    )


def log_rows_from(row: Any) -> list[LogRow]:
    """Read the rows of a window, which come as one array per column."""
    if row["seqs"] is None:
        return []
    columns = (
        row[name]
        for name in (
            "ids",
            "seqs",
            "roles",
            "row_tokens",
            "row_reasoning",
            "row_calls",
            "row_media",
            "row_formats",
            "bodies",
        )
    )
    return [
        LogRow(
            id=message_id,
            seq=seq,
            role=Role(role),
            tokens=tokens,
            reasoning_tokens=reasoning,
            call_ids=tuple(jsontext.loads(calls)) if calls else (),
            has_media=media,
            format=FormatName(format_name),
            text=body,
        )
        for message_id, seq, role, tokens, reasoning, calls, media, format_name, body in zip(
            *columns, strict=True
        )
    ]


def epoch_from(row: Any, prefix: str) -> Epoch | None:
    """Read an epoch whose columns carry a prefix; None where there was none."""
    if row[f"{prefix}epoch"] is None:
        return None
    return Epoch(
        epoch=row[f"{prefix}epoch"],
        epoch_id=str(row[f"{prefix}epoch_id"]),
        lane=row[f"{prefix}lane"],
        format=row[f"{prefix}format"],
        window=row[f"{prefix}window"],
        reason=row[f"{prefix}reason"],
        start_seq=row[f"{prefix}start_seq"],
        view_version=row[f"{prefix}view_version"],
        frame=row[f"{prefix}frame"],
        sections_hash=row[f"{prefix}sections_hash"],
        tools_hash=row[f"{prefix}tools_hash"],
        policy_hash=row[f"{prefix}policy_hash"],
    )


def compaction_from(row: Any) -> Compaction:
    """Read a receipt."""
    parent = row["parent_id"]
    return Compaction(
        compaction_id=str(row["compaction_id"]),
        parent_id=str(parent) if parent else None,
        trigger=row["trigger"],
        strategy=row["strategy"],
        span=Span(row["span_start"], row["span_end"]),
        summary=row["summary"],
        summary_tokens=row["summary_tokens"],
        before_tokens=row["before_tokens"],
        after_tokens=row["after_tokens"],
        before_msg_count=row["before_msg_count"],
        after_msg_count=row["after_msg_count"],
        model=row["model"],
        prompt_hash=row["prompt_hash"],
        cost_usd=row["cost_usd"],
        duration_ms=row["duration_ms"],
        created_at=row["created_at"],
    )

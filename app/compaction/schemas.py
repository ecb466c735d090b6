"""Schemas of compactions: the request and the receipts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from app.conversations.compaction_receipt import Trigger
from app.http.fields import (
    AnyObject,
    ModelName,
    RequestSchema,
    ResponseSchema,
    Strategy,
    Tokens,
    examples,
)
from app.http.pages import Page
from app.policy.policy import StrategyName, SummaryInput

COMPACT_RESULT: dict[str, Any] = {
    "compacted": True,
    "reason": None,
    "compaction_id": "0199a1b2-7788-7a9b-8c0d-1e2f30415263",
    "before_tokens": 9120,
    "after_tokens": 3980,
    "before_msg_count": 46,
    "after_msg_count": 12,
    "strategies_run": ["sandwich"],
    "summary_range": [6, 41],
    "model": "extractive",
    "summary_tokens": 420,
    "cost_usd": 0.0,
    "duration_ms": 12,
    "estimated": False,
    "degraded": [],
    "provider_call": None,
}


class ProviderCall(ResponseSchema):
    """A call of the provider's SDK that compacts the conversation.

    Make it with the fields of a new build in this format, and append the compaction that it
    returns, before any other message.
    """

    format: Literal["openai_responses", "anthropic"]
    """Format of that build."""
    method: str
    """Method of the SDK's client, such as `responses.compact`."""
    fields: list[str]
    """Fields of the payload to send, where it has them."""
    added: AnyObject
    """Fields to send besides."""
    betas: list[str]
    """Beta features of Anthropic that the call needs."""


class CompactResult(ResponseSchema):
    """The result of a compaction; tokens are of the whole payload."""

    model_config = examples(COMPACT_RESULT)

    compacted: bool
    """Whether the context changed."""
    reason: str | None
    """Why nothing was done."""
    compaction_id: str | None
    """Id of the receipt."""
    before_tokens: int
    """Tokens of the payload before."""
    after_tokens: int
    """Tokens of the payload after."""
    before_msg_count: int
    """Messages of the payload before."""
    after_msg_count: int
    """Messages of the payload after."""
    strategies_run: list[str]
    """Strategies that ran, in order."""
    summary_range: list[int] | None
    """Seqs the summary stands for."""
    model: str | None
    """Model that summarised; `extractive` is built in."""
    summary_tokens: int
    """Tokens of the summary."""
    cost_usd: float | None
    """Price of the calls, null where unknown."""
    duration_ms: int
    """How long it took."""
    estimated: bool
    """Whether `after_tokens` is an estimate: a dry run does not call the model, and assumes a
    summary of `summary_tokens`. Without a model it is exact."""
    degraded: list[str]
    """What it lacks: `summariser_unavailable` where there is no summary of messages that were
    left out, or that stay, although the policy asks for one;
    `provider_compaction_unavailable` where a summary was made because the provider has no
    compaction of its own."""
    provider_call: ProviderCall | None
    """With the strategy `provider`: the call to make; nothing was done."""


class CompactionRequest(RequestSchema):
    """A compaction now, however full the window is."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"instructions": "Keep every file path.", "dry_run": True}]}
    )

    strategy: Strategy | None = None
    """Strategy for this compaction; the policy's by default."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""
    instructions: str | None = Field(default=None, max_length=32_000)
    """What this summary should keep."""
    target_tokens: Tokens | None = None
    """Tokens of the payload to aim for; by default `compaction.target` of the effective window
    or, within it already, as few as the strategy can."""
    dry_run: bool = False
    """Only return what would be done: the texts that would be shown or, where a model would
    write them, its prompts and their price. No model is called."""


class SummarySection(ResponseSchema):
    """What became of the statements of one section, in a summary without a model."""

    section: str
    """The heading of the section."""
    found: int
    """Statements that there were; the sum of the other numbers."""
    kept: int
    """Statements in the summary."""
    superseded: int
    """Statements that a newer one replaced."""
    dropped: int
    """Statements that there was no room for."""


class MadeSummary(ResponseSchema):
    """A summary that a compaction made or shows."""

    summary_range: list[int]
    """Seqs that it stands for, the end excluded."""
    level: int
    """1: of messages; higher: of summaries one level below."""
    text: str
    """Its text."""
    tokens: int
    """Tokens of the message that shows it."""
    sources: list[list[int]]
    """The ranges that it was made from."""
    sections: list[SummarySection]
    """What became of the statements of each section; empty for a model's summary."""
    unlisted: str | None
    """Important statements that had no room in it or in an earlier one, by section: a later
    summary with room lists them. Null for a summary of an earlier compaction."""


_SUMMARY: dict[str, Any] = {
    "summary_range": [6, 41],
    "level": 1,
    "text": "The user plans a trip to Bergen in May; trains were compared.",
    "tokens": 16,
    "sources": [[6, 41]],
    "sections": [],
    "unlisted": None,
}
_RESULT_WITHOUT_MODEL: dict[str, Any] = {
    "compacted": False,
    "reason": "dry run",
    "compaction_id": None,
    "before_tokens": 9120,
    "after_tokens": 3576,
    "before_msg_count": 46,
    "after_msg_count": 12,
    "strategies_run": ["sandwich"],
    "summary_range": [6, 41],
    "model": "extractive",
    "summary_tokens": 16,
    "cost_usd": 0.0,
    "duration_ms": 9,
    "estimated": False,
    "degraded": [],
    "provider_call": None,
}
_RECEIPT: dict[str, Any] = {
    "compaction_id": "0199a1b2-7788-7a9b-8c0d-1e2f30415263",
    "parent_id": None,
    "status": "active",
    "trigger": "background",
    "strategy": "sandwich",
    "strategies_run": ["sandwich"],
    "hidden_range": [6, 41],
    "kept": [12],
    "cleared_through": 0,
    "summary": _SUMMARY["text"],
    "retain": None,
    "note": None,
    "summaries": [_SUMMARY],
    "made": [_SUMMARY],
    "before_tokens": 9120,
    "after_tokens": 3980,
    "before_msg_count": 46,
    "after_msg_count": 12,
    "summary_tokens": 26,
    "model": "openai/gpt-4o-mini",
    "prompt_hash": "5f2a9c0b7d1e4f68",
    "calls": 1,
    "input_tokens": 5310,
    "output_tokens": 24,
    "cost_usd": 0.00081,
    "summary_input": "transcript",
    "cached_tokens": 0,
    "target_tokens": None,
    "duration_ms": 1834,
    "degraded": [],
    "created_at": "2026-01-05T09:31:12.000123+00:00",
    "undone_at": None,
}


class PromptMessage(ResponseSchema):
    """One message of a prompt."""

    role: Literal["system", "user"]
    """Its role."""
    content: str
    """Its text, with secrets masked."""


class PlannedCall(ResponseSchema):
    """A call of a model that a compaction would make."""

    model: str
    """The model."""
    messages: list[PromptMessage]
    """The prompt, exactly as it would be sent. `[the answer of call 1]` stands for the answer of
    an earlier call, and the text around it is what would be sent if that answer were half as
    long as it may be."""
    input_tokens: int
    """Tokens of the prompt; answers of earlier calls count half of their limit."""
    max_output_tokens: int
    """The limit of the answer."""
    cost_usd: float | None
    """Price of the prompt and of the longest answer, at the prices of `GET /v1/models/{model}`;
    null where unknown."""
    depends_on: list[int]
    """The earlier calls whose answers are in the prompt; the first call is 1."""
    summary_input: SummaryInput
    """`prefix`: the payload of `build_id` comes before `messages`, in its format."""
    build_id: str | None
    """The build whose payload is sent first, see `as_of` of `GET …/context`."""
    prefix_tokens: int
    """Tokens of that payload, part of `input_tokens`."""
    cached_cost_usd: float | None
    """Price where all of that payload is read from the provider's cache; null without one, or
    where a price is unknown."""


class DryRun(CompactResult):
    """What a compaction would do; nothing was stored, and no model was called."""

    model_config = examples(
        {
            "compacted": False,
            "reason": "dry run",
            "compaction_id": None,
            "before_tokens": 9120,
            "after_tokens": 3980,
            "before_msg_count": 46,
            "after_msg_count": 12,
            "strategies_run": ["sandwich"],
            "summary_range": [6, 41],
            "model": "openai/gpt-4o-mini",
            "summary_tokens": 420,
            "cost_usd": 0.00126,
            "duration_ms": 0,
            "estimated": True,
            "degraded": [],
            "provider_call": None,
            "summaries": [],
            "retain": None,
            "note": None,
            "calls": [
                {
                    "model": "openai/gpt-4o-mini",
                    "messages": [
                        {"role": "system", "content": "You condense conversations …"},
                        {"role": "user", "content": "<conversation>\nUser:\n…</conversation>"},
                    ],
                    "input_tokens": 5300,
                    "max_output_tokens": 780,
                    "cost_usd": 0.00126,
                    "depends_on": [],
                    "summary_input": "transcript",
                    "build_id": None,
                    "prefix_tokens": 0,
                    "cached_cost_usd": None,
                }
            ],
            "planned_calls": 1,
            "input_tokens": 5300,
            "output_tokens": 780,
            "truncated": False,
        },
        {
            **_RESULT_WITHOUT_MODEL,
            "summaries": [_SUMMARY],
            "retain": None,
            "note": None,
            "calls": [],
            "planned_calls": 0,
            "input_tokens": 0,
            "output_tokens": 0,
            "truncated": False,
        },
    )

    summaries: list[MadeSummary]
    """The summaries that the context would show, in order, byte for byte as the compaction then
    stores them; empty where a model would write them."""
    retain: str | None
    """The text that would be kept beside the summary."""
    note: str | None
    """The note about messages that would be left out."""
    calls: list[PlannedCall]
    """The calls of the model, in order, if each is answered at once; empty without a model."""
    planned_calls: int
    """The number of calls, those left out included."""
    input_tokens: int
    """Tokens of the prompts of all calls."""
    output_tokens: int
    """The most that all answers can take."""
    truncated: bool
    """Whether summaries or calls at the end are left out, because the answer would be larger
    than a page (`CONTEXT_PAGE_BYTES`)."""


class Receipt(ResponseSchema):
    """The immutable record of one compaction; tokens are of the whole payload."""

    model_config = ConfigDict(json_schema_extra={"examples": [_RECEIPT]})

    compaction_id: str
    """Its id."""
    parent_id: str | None
    """The compaction that was active before."""
    status: Literal["active", "superseded", "undone"]
    """`active`: the context shows it; `superseded`: a later compaction or a change of policy
    replaced it."""
    trigger: Trigger
    """Why it ran."""
    strategy: StrategyName
    """The strategy that planned it."""
    strategies_run: list[str]
    """The steps that ran, in order."""
    hidden_range: list[int]
    """Seqs that it hides, the end excluded; their messages can be read in full."""
    kept: list[int]
    """Seqs in the range that stay verbatim."""
    cleared_through: int
    """Tool results up to this seq are placeholders; 0 for none."""
    summary: str | None
    """The text that stands for the range; null without one."""
    retain: str | None
    """Text that was requested to be kept verbatim."""
    note: str | None
    """The note in the context about messages left out."""
    summaries: list[MadeSummary]
    """The summaries the context shows, in order."""
    made: list[MadeSummary]
    """The summaries that this compaction made; a tree may have merged some of them."""
    before_tokens: int
    """Tokens of the payload before."""
    after_tokens: int
    """Tokens of the payload after."""
    before_msg_count: int
    """Messages of the payload before."""
    after_msg_count: int
    """Messages of the payload after."""
    summary_tokens: int
    """Tokens of the messages that stand for the range."""
    model: str | None
    """Model that summarised; null when none was needed."""
    prompt_hash: str | None
    """Hash of the prompt without the conversation."""
    calls: int
    """Calls of a model, failed ones included."""
    input_tokens: int
    """Input tokens of the calls, as the provider counts them."""
    output_tokens: int
    """Output tokens of the calls."""
    summary_input: SummaryInput | None
    """What the model read: a `transcript`, or with `prefix` the newest payload; null for the
    built-in summariser."""
    cached_tokens: int
    """The part of `input_tokens` that was read from the provider's cache."""
    target_tokens: int | None
    """The target that was asked for; null where the policy decided."""
    cost_usd: float | None
    """Price of the calls, null where unknown."""
    duration_ms: int
    """How long it took."""
    degraded: list[str]
    """What was not available, such as `summariser_unavailable`, why the policy's `prefix` was
    not used (`prefix_not_used:` and the reason), or what kept the payload over an asked
    target: `target_exceeded_by_system_and_tools`, `…_by_pinned_messages`,
    `…_by_kept_messages`."""
    created_at: datetime
    """When it was applied."""
    undone_at: datetime | None
    """When it was undone."""


class ReceiptPage(Page[Receipt]):
    """Receipts of a conversation, the newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"data": [_RECEIPT], "next_cursor": None}]}
    )

"""`/v1/conversations/{id}/context`, `/budget`, `/state`, `/overflow` and `/epochs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.common import json_text
from app.common.concurrency import in_thread_if
from app.common.errors import (
    Conflict,
    ContextError,
    ContextLimitUnknown,
    ContextOverflow,
    Gone,
    PayloadTooLarge,
    Problem,
    UnpairedToolResult,
    ValidationError,
)
from app.common.schema_errors import NAME_PATTERN
from app.context.schemas import (
    BuiltContext,
    CallSettings,
    ContextRequest,
    DryRunContext,
    EarlierBuild,
    EpochPage,
    OverflowAnswer,
    OverflowRequest,
    Reading,
    StateShown,
)
from app.conversations.messages.row import RawBatch
from app.conversations.messages.service import AppendResult
from app.conversations.receipt import CompactResult, ContextState
from app.formats.message import FormatName
from app.http import cursors
from app.http.bodies import Json, MalformedJson, require_small_messages, size_of_body
from app.http.errors import error_answers
from app.http.fields import MAX_TOKENS
from app.http.routing import (
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    WireRoute,
    direct,
    services,
    tenant_of,
)
from app.models.error_verdicts import Verdict, VerdictKind, judge_error
from app.prompt.resolved_settings import RequestSettings
from app.prompt.sections import DYNAMIC_KINDS, section_from

router = APIRouter(route_class=WireRoute, tags=["context"])

_PATH = "/v1/conversations/{conversation_id}"
_BUILD = error_answers(Conflict, ValidationError, ContextLimitUnknown, ContextOverflow)
_DEFAULT = ContextRequest()
NOTHING_STORED: Mapping[str, Any] = {"appended": None, "reported": None}
"""What the answer to a build has in addition, without an append and a report."""
OptionalTokens = Annotated[
    int | None, Query(ge=1, le=MAX_TOKENS, description="As in a build; by default as there.")
]
_THREAD_BYTES = 20_000
"""A larger report is judged in a thread, off the event loop."""
_STATUSES_OF_SIZE = (400, 413, 422)
"""Statuses that may be reported without the error's body."""
_OTHER_ERROR = "This error does not mean that the input is too long or the output too large"


@router.post(
    f"{_PATH}/context",
    summary="Build the payload for the next model call",
    response_model=BuiltContext,
    responses=_BUILD | error_answers(Conflict, UnpairedToolResult),
)
@direct
async def build_context(
    request: Request,
    conversation_id: ConversationPath,
    body: ContextRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Return a payload that is valid for the provider and fits in the context window.

    `payload` can be splatted into the SDK's call. The body may be left out. A payload that is too
    long is compacted or reduced, and `degraded` lists what it lacks. The answer is `422`
    `CONTEXT_OVERFLOW` with the `budget` when nothing fits.

    `append` and `report` make it one request for a whole step of an agent loop: the messages are
    appended, the usage is stored, and the payload has the new messages. A build that fails does
    not undo the append: its error has `appended` with `first_seq`, `last_seq` and `head_seq`.
    Send an `Idempotency-Key`, so that a step can be sent again after any error: what is stored is
    not stored again, and the payload is built from the log as it is then.
    """
    body, where, running = (
        body or _DEFAULT,
        (tenant_of(request), conversation_id),
        services(request),
    )
    stored: dict[str, Any] = dict(NOTHING_STORED)
    facts: dict[str, Any] = {}
    appended, sent_seq = None, None
    if body.append is not None:
        messages, format = body.append.messages, body.append.format or body.format
        await require_small_messages(request, messages, "/append/messages")
        append = RawBatch(messages, format, body.append.expected_seq, idempotency_key)
        with _located("/append"):
            appended = await running.log.append(*where, append)
        stored["appended"] = appended.answer
        facts["appended"] = positions = _positions(appended.answer)
        sent_seq = positions["first_seq"] - 1
    if body.report is not None:
        with _located("/report", facts):
            reported = await running.usage.report(*where, body.report, idempotency_key, sent_seq)
        stored["reported"] = reported
        facts["reported"] = reported.report_id
        appended = None  # the report may have changed the calibration
    with _located("", facts):
        built = await running.context.build(*where, _settings(body), body.known, appended)
    return Json(built | stored)


def _positions(stored: AppendResult | Mapping[str, Any]) -> dict[str, int]:
    if isinstance(stored, AppendResult):
        seqs, head_seq = [message.seq for message in stored.messages], stored.head_seq
    else:
        seqs = [message["seq"] for message in stored["messages"]]
        head_seq = stored["head_seq"]
    return {"first_seq": seqs[0], "last_seq": seqs[-1], "head_seq": head_seq}


@contextmanager
def _located(pointer: str, facts: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Add a pointer and facts to an error of this part of the request."""
    try:
        yield
    except ContextError as error:
        error.problems = tuple(
            Problem(f"{pointer}{problem.pointer}", problem.detail) for problem in error.problems
        )
        error.facts = {**error.facts, **(facts or {})}
        raise


@router.get(
    f"{_PATH}/context",
    summary="Read the payload of an earlier build",
    responses=error_answers(Gone),
)
async def get_context(
    request: Request,
    conversation_id: ConversationPath,
    as_of: Annotated[
        str, Query(max_length=256, pattern=NAME_PATTERN, description="The `build_id` of a build.")
    ],
) -> EarlierBuild:
    """Return the exact payload of an earlier build.

    Only cache breakpoints follow a changed cache minimum of the model. A build that was answered as
    a delta is returned whole. `410` where a message of the conversation was redacted since.
    """
    found = await services(request).build_replay.get(tenant_of(request), conversation_id, as_of)
    return EarlierBuild.model_construct(**found)


@router.get(
    f"{_PATH}/context/dry-run",
    summary="Dry run of the next build",
    responses=_BUILD | error_answers(MalformedJson, PayloadTooLarge),
)
async def dry_run_context(
    request: Request,
    conversation_id: ConversationPath,
    format: Annotated[
        FormatName, Query(description="The provider's message format.")
    ] = FormatName.OPENAI_CHAT,
    model: Annotated[
        str | None,
        Query(
            max_length=256,
            min_length=1,
            pattern=NAME_PATTERN,
            description="Model of the call; the conversation's by default.",
        ),
    ] = None,
    max_output_tokens: OptionalTokens = None,
    context_window: OptionalTokens = None,
    payload: Annotated[
        bool, Query(description="`false`: leave the payload out, which may be large.")
    ] = True,
) -> DryRunContext:
    """Return what a build would return now, without its effects.

    It only moves a window that is due, and calls no model. A payload that is too long is reduced as
    for a smaller context window of one request, so that a build that compacts may return another
    one. `shown_ranges`, `summaries` and `breakpoint_seqs` say which messages of the log the payload
    shows, and where a cached prefix may end.
    """
    settings = RequestSettings(
        format=format,
        model=model,
        max_output_tokens=max_output_tokens,
        context_window=context_window,
    )
    built = await services(request).context.dry_run(tenant_of(request), conversation_id, settings)
    shown = {name: built[name] for name in DryRunContext.model_fields}
    return DryRunContext.model_construct(**shown if payload else shown | {"payload": None})


@router.get(f"{_PATH}/budget", summary="Read the budget")
async def get_budget(request: Request, conversation_id: ConversationPath) -> Reading:
    """Return budget and pressure of the stored settings; nulls without a known context window."""
    status = await services(request).context.budget(tenant_of(request), conversation_id)
    if status is None:
        return Reading(**dict.fromkeys(Reading.model_fields))
    return Reading(budget=status.budget, **asdict(status.pressure))


@router.get(f"{_PATH}/state", summary="Read the context state")
async def get_state(request: Request, conversation_id: ConversationPath) -> StateShown:
    """Return the active summary and the seqs it stands for; nulls before any compaction.

    `last_failure` is why the last automatic compaction failed, until one succeeds.
    """
    tenant_id = tenant_of(request)
    state = await services(request).receipts.state(tenant_id, conversation_id)
    return StateShown(
        **(asdict(state) if state is not None else dict.fromkeys(ContextState.__slots__)),
        last_failure=await services(request).receipts.failure(tenant_id, conversation_id),
    )


@router.post(f"{_PATH}/overflow", summary="Cut what a provider found too long", responses=_BUILD)
async def overflow(
    request: Request, conversation_id: ConversationPath, body: OverflowRequest | None = None
) -> OverflowAnswer:
    """Leave out the oldest half of the turns, and return the payload to try again with.

    Call it when the provider refuses a payload as too long. No model is needed. A text that is
    longer than all the rest is shortened to half before turns are left out. The log keeps
    everything, a note in the context states what is missing, and the compaction can be undone.

    Send the provider's `error` and its HTTP status to have them checked. Where only the requested
    output is too large, the `verdict` is `output_too_large`: the history stays, and the payload has
    a lower output limit. Where the provider refused images or documents, it is `media_refused`:
    labels stand for the oldest half of them, and `degraded` has `media_left_out`. Where it refused
    reasoning, a signature or an encrypted item of earlier answers, it is `reasoning_refused`: none
    of those so far is sent to this model again. Any other error is `422` and cuts nothing.
    """
    tenant_id = tenant_of(request)
    settings = _settings(body) if body is not None else RequestSettings()
    verdict = await _verdict(request, body)
    is_output = verdict.kind is VerdictKind.OUTPUT_TOO_LARGE
    context = services(request).context
    result, built = await context.overflow(tenant_id, conversation_id, settings, verdict)
    return OverflowAnswer(
        **{field.name: getattr(result, field.name) for field in fields(CompactResult)},
        verdict=verdict.kind,  # type: ignore[arg-type]  # never OTHER
        max_output_tokens=built["diagnostics"]["budget"].max_output_tokens if is_output else None,
        context=BuiltContext.model_construct(**built | dict(NOTHING_STORED)),
    )


async def _verdict(request: Request, body: OverflowRequest | None) -> Verdict:
    """Return what the reported error means; without any, that the input is too long."""
    status = body.error_status if body is not None else None
    if body is None or body.error is None:
        if status is None or status in _STATUSES_OF_SIZE:
            return Verdict(VerdictKind.INPUT_TOO_LONG)
        raise ValidationError.at("/error_status", _OTHER_ERROR)
    is_long = size_of_body(request) > _THREAD_BYTES
    verdict = await in_thread_if(is_long, judge_error, body.error, status)
    if verdict.kind is VerdictKind.OTHER:
        raise ValidationError.at("/error", _OTHER_ERROR)
    return verdict


def _settings(body: CallSettings) -> RequestSettings:
    sections = [item.model_dump(exclude_none=True) for item in body.sections or ()]
    dynamic = [raw for raw in sections if raw.get("kind") in DYNAMIC_KINDS]
    static = [raw for raw in sections if raw.get("kind") not in DYNAMIC_KINDS]
    # A stored section of this name is replaced, whatever its kind.
    replaced = [{"name": raw["name"], "content": ""} for raw in dynamic]
    return RequestSettings(
        format=body.format,
        model=body.model,
        max_output_tokens=body.max_output_tokens,
        context_window=body.context_window,
        sections=json_text.dumps(static + replaced) if sections else "[]",
        tools=json_text.dumps(body.tools) if body.tools else "[]",
        dynamic=tuple(section_from(raw, place) for place, raw in enumerate(dynamic)),
        status=body.status,
    )


@router.get(f"{_PATH}/epochs", summary="List epochs")
async def list_epochs(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> EpochPage:
    """Return the epochs of the conversation's payloads, newest first, and why each began."""
    before = cursors.decode(cursor, "epochs")
    page = await services(request).usage.page(
        "epochs", tenant_of(request), conversation_id, limit, before
    )
    return EpochPage.up_to("epochs", page, "epoch_id")

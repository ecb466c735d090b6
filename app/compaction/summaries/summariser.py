"""The summariser: makes summaries by a model or, without one, by extraction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.common.errors import ValidationError
from app.compaction.summaries import transcript
from app.compaction.summaries.checklist import own_text
from app.compaction.summaries.digest import Digest
from app.compaction.summaries.model_calls import SummariserRun
from app.compaction.summaries.model_summary import ModelAccess, ModelSummary, SummaryTask
from app.compaction.summaries.prompt import SummaryResult
from app.compaction.summaries.summary_text import NOTHING
from app.compaction.summaries.writing import MIN_SOURCE_TOKENS, digest_of, fitted, write_summary
from app.conversations.messages.row import LogRow
from app.conversations.turns import call_groups
from app.conversations.view import Span
from app.formats.message import Message, Role
from app.models.usage import EXTRACTIVE
from app.repositories import Database

PAGE_MESSAGES = 500
"""How many messages `summarise_paged` reads at once."""
MAX_MODEL_SUMMARY_TOKENS = 4096
"""The limit of one summary by a model, which tends to fill what it is given."""
MAX_NAMED_MODELS = 10
"""How many of the allowed models an error names."""


class Summariser:
    """Chooses the model that summarises, and makes summaries."""

    def __init__(self, access: ModelAccess) -> None:
        settings = access.settings
        self.access = access
        configured = (settings.model, *settings.fallback_models, *settings.allowed_models)
        self._allowed = frozenset(model for model in configured if model)

    def choose_model(
        self, call_model: str | None, policy_model: str | None, conversation_model: str | None
    ) -> str | None:
        """Return the model that summarises, None for the `extractive` summariser.

        Raises ValidationError when the call or the policy names a model that is not allowed.
        [summary.model-order]
        """
        for model, pointer in ((call_model, "/model"), (policy_model, "/policy/compaction/model")):
            if model == EXTRACTIVE:
                return None
            if model is not None:
                self.check_model(model, pointer)
                return model
        if self.access.settings.model is not None:
            return self.access.settings.model
        return conversation_model if conversation_model in self._allowed else None

    def check_model(self, model: str, pointer: str) -> None:
        """Raise ValidationError at this pointer for a model that is not allowed."""
        if model == EXTRACTIVE or model in self._allowed:
            return
        allowed = ", ".join(map(repr, (*sorted(self._allowed)[:MAX_NAMED_MODELS], EXTRACTIVE)))
        raise ValidationError.at(
            pointer, f"The model {model!r} may not summarise; these may: {allowed}"
        )

    def start_run(self, tenant_id: str) -> SummariserRun:
        """Return the run of a new compaction; its deadline begins now."""
        return SummariserRun(tenant_id, self.access.now() + self.access.settings.deadline_seconds)

    async def summarise(
        self,
        task: SummaryTask,
        messages: Sequence[Message],
        verbatim_indices: frozenset[int] = frozenset(),
    ) -> SummaryResult:
        """Return a summary of `task.previous` and these messages together.

        Calls at their end are left out. `verbatim_indices` are those of messages that stay verbatim
        beside the summary.

        Raises ServiceUnavailable with `facts["reason"]` when no model gives a usable answer;
        nothing partial is returned. Raises ValidationError without anything to summarise.
        """
        if len(verbatim_indices) >= len(messages) and not task.earlier:
            raise ValidationError.at("/messages", "Conversation has no messages")
        if task.model is None:
            task.run.set_extractive()
            return await asyncio.to_thread(_extracted, task, messages)
        shown = transcript.without_trailing_calls(messages) or messages
        groups = await asyncio.to_thread(transcript.transcript_groups, shown, verbatim_indices)
        return await ModelSummary(self.access, task, groups).make()

    async def merge(self, task: SummaryTask, texts: Sequence[str]) -> SummaryResult:
        """Return one summary of several, oldest first; raises as `summarise` does."""
        if task.model is None:
            task.run.set_extractive()
            return await asyncio.to_thread(_merged, task, texts)
        task = replace(task, digest=digest_of(earlier=texts, keeps_users=True))
        groups = transcript.summary_groups([own_text(text) or NOTHING for text in texts])
        return await ModelSummary(self.access, task, groups).make()


def _extracted(task: SummaryTask, messages: Sequence[Message]) -> SummaryResult:
    """Return a summary of messages alone, without a model."""
    texts = [message.text for message in messages]
    texts += [call.name + call.arguments for message in messages for call in message.calls]
    digest = digest_of(messages)
    digest.source_tokens = max(sum(map(task.scope.count, texts)), MIN_SOURCE_TOKENS)
    return write_summary(digest, task.max_tokens, task.scope)


def _merged(task: SummaryTask, texts: Sequence[str]) -> SummaryResult:
    scope = task.scope
    texts = (scope.unlisted, *texts[:-1], scope.newly_unlisted, *texts[-1:])
    digest = digest_of(earlier=texts, replaces=True)
    return fitted(digest, task.max_tokens, scope.count, scope.closing)


async def summarise_paged(
    database: Database, summariser: Summariser, task: SummaryTask
) -> SummaryResult:
    """Return a summary of messages that are read page by page.

    No session is open during a model call. Raises as `summarise` does.
    """
    scope, earlier, run = task.scope, task.earlier, task.run
    if task.model is None:
        run.set_extractive()
        listed = [text for text in (scope.unlisted, *earlier) if text]
        digest = task.digest or await _read_digest(database, task, listed)
        if not digest.source_tokens and not earlier:
            raise ValidationError.at("/messages", "Conversation has no messages")
        return await asyncio.to_thread(write_summary, digest, task.max_tokens, scope)
    max_tokens = min(task.max_tokens, MAX_MODEL_SUMMARY_TOKENS)
    digest = await _read_digest(database, task, earlier)
    task = replace(task, max_tokens=max_tokens, digest=digest)
    pages, result, last_group = _pages(task.spans), None, list[LogRow]()
    for page in pages:
        rows = [*last_group, *await _rows(database, task.conversation_id, page)]
        # A group that the next page may continue is summarised with that page.
        end = call_groups(rows)[-1][0] if rows and page is not pages[-1] else 0
        rows, last_group = rows[: end or None], rows[end:] if end else []
        verbatim = task.verbatim_indices(rows)
        if len(verbatim) < len(rows):
            messages = [row.message() for row in rows]
            result = await summariser.summarise(task, messages, verbatim)
            retained = result.retain or task.retained
            task = replace(task, previous=result.text, retained=retained)
    return result or await summariser.summarise(task, ())


async def _read_digest(database: Database, task: SummaryTask, earlier: Sequence[str]) -> Digest:
    """Return what earlier summaries and messages state.

    They are read page by page, in threads. Those from before what
    the earlier summary stands for are read before it, so that what they state counts as older.
    """
    digest, scope = Digest(keeps_users=task.model is not None), task.scope

    def add(texts: Sequence[str], rows: Sequence[LogRow], shown: Sequence[Message] = ()) -> None:
        for text in texts:
            digest.read(text)
        for row in rows:
            digest.add(row.message(), row.seq)
        for message in shown:
            digest.replace_by(message)

    for page in _pages(task.spans):
        rows = await _rows(database, task.conversation_id, page)
        rows = [row for row in rows if row.seq not in task.verbatim_seqs]
        digest.source_tokens += sum(row.tokens for row in rows)
        is_after = page.start >= scope.earlier_start
        await asyncio.to_thread(add, earlier if is_after else (), rows)
        earlier = () if is_after else earlier
    shown = await read_user_messages(database, task.conversation_id, scope.shown_after)
    await asyncio.to_thread(add, earlier, (), shown)
    return digest


async def read_user_messages(
    database: Database, conversation_id: str, spans: Sequence[Span]
) -> list[Message]:
    """Return the users' messages in some spans."""
    found: list[Message] = []
    for page in _pages(spans):
        rows = await _rows(database, conversation_id, page)
        users = [row for row in rows if row.role is Role.USER]
        found += await asyncio.to_thread(lambda rows: [row.message() for row in rows], users)
    return found


async def _rows(database: Database, conversation_id: str, page: Span) -> list[LogRow]:
    async with database.session() as session:
        return await session.contexts.rows(conversation_id, [page], as_chat=False)


def _pages(spans: Sequence[Span]) -> list[Span]:
    return [
        Span(start, min(start + PAGE_MESSAGES, span.end))
        for span in spans
        for start in range(span.start, span.end, PAGE_MESSAGES)
    ]

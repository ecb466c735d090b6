"""The summariser: makes summaries by a model or, without one, by extraction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.common.errors import ValidationError
from app.compaction.summaries.checklist import read_kept, read_summary, split_kept
from app.compaction.summaries.digest import Digest
from app.compaction.summaries.model_summary import ModelAccess, ModelSummary, SummaryTask
from app.compaction.summaries.prompt import SummaryResult
from app.compaction.summaries.run import SummariserRun
from app.compaction.summaries.sections import NOTHING
from app.compaction.summaries.transcript import (
    summary_groups,
    transcript_groups,
    without_trailing_calls,
)
from app.compaction.summaries.writing import (
    MIN_SOURCE_TOKENS,
    digest_of,
    fitted,
    merged,
    write_summary,
)
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
        """Return the model that summarises, None for the built-in summariser.

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
        *,
        is_end: bool = True,
        verbatim_indices: frozenset[int] = frozenset(),
        digest: Digest | None = None,
    ) -> SummaryResult:
        """Return a summary of `task.previous` and these messages together.

        - With `is_end` nothing follows the messages: calls at their end are left out.
        - `verbatim_indices` are those of messages that stay verbatim beside the summary.
        - `digest` has what a model must not lose.

        Raises ServiceUnavailable with `facts["reason"]` when no model gives a usable answer;
        nothing partial is returned. Raises ValidationError without anything to summarise.
        """
        if len(verbatim_indices) >= len(messages) and not task.earlier:
            raise ValidationError.at("/messages", "Conversation has no messages")
        if task.model is None:
            task.run.set_extractive()
            return await asyncio.to_thread(_extracted, task, messages)
        shown = (is_end and without_trailing_calls(messages)) or messages
        groups = await asyncio.to_thread(transcript_groups, shown, verbatim_indices)
        return await ModelSummary(self.access, task, groups, digest, bool(verbatim_indices)).make()

    async def merge(self, task: SummaryTask, texts: Sequence[str]) -> SummaryResult:
        """Return one summary of several, oldest first; raises as `summarise` does."""
        if task.model is None:
            task.run.set_extractive()
            return await asyncio.to_thread(_merged, task, texts)
        digest = Digest()
        for text in texts:
            read_kept(digest, text)
        groups = summary_groups([split_kept(text)[1] or NOTHING for text in texts])
        return await ModelSummary(self.access, task, groups, digest, of_summaries=True).make()


def _extracted(task: SummaryTask, messages: Sequence[Message]) -> SummaryResult:
    """Return a summary of messages alone, without a model."""
    count = task.scope.count
    tokens = sum(
        count(message.text) + sum(count(call.name + call.arguments) for call in message.calls)
        for message in messages
    )
    source = max(tokens, MIN_SOURCE_TOKENS)
    return write_summary(digest_of(messages), False, task.max_tokens, source, task.scope)


def _merged(task: SummaryTask, texts: Sequence[str]) -> SummaryResult:
    scope = task.scope
    digest = merged((scope.unlisted, *texts, scope.newly_unlisted))
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
        digest, tokens = await _read_digest(database, task, listed, read_summary)
        if tokens < 0 and not earlier:
            raise ValidationError.at("/messages", "Conversation has no messages")
        return await asyncio.to_thread(
            write_summary,
            digest,
            task.request.wants_retain,
            task.max_tokens,
            max(tokens, 0) + scope.earlier_tokens,
            scope,
        )
    digest, _ = await _read_digest(database, task, earlier, read_kept)
    task = replace(task, max_tokens=min(task.max_tokens, MAX_MODEL_SUMMARY_TOKENS))
    result = None
    pages = _pages(task.spans)
    last_group: list[LogRow] = []
    for page in pages:
        is_end = page is pages[-1]
        rows = [*last_group, *await _rows(database, task.conversation_id, page)]
        last_start = 0 if is_end or not rows else call_groups(rows)[-1][0]
        # A group that the next page may continue is summarised with that page.
        last_group = rows[last_start:] if last_start else []
        rows = rows[:last_start] if last_start else rows
        verbatim = task.verbatim_indices(rows)
        if len(verbatim) == len(rows):
            continue
        messages = [row.message() for row in rows]
        result = await summariser.summarise(
            task, messages, is_end=is_end, verbatim_indices=verbatim, digest=digest
        )
        task = replace(task, previous=result.text, retained=result.retain or task.retained)
    return result or await summariser.summarise(task, (), digest=digest)


async def _read_digest(
    database: Database,
    task: SummaryTask,
    earlier: Sequence[str],
    read: Callable[[Digest, str], None],
) -> tuple[Digest, int]:
    """Return what messages state and what `read` takes up of earlier summaries.

    Also the tokens of the messages; -1 without any.

    Messages are read page by page, in threads. Those from before what the earlier summary stands
    for are read before it, so that what they state counts as older.
    """
    digest, scope = Digest(), task.scope
    tokens, has_messages, was_read = 0, False, False

    def add_earlier() -> None:
        for text in earlier:
            read(digest, text)

    def add(rows: Sequence[LogRow]) -> None:
        for row in rows:
            digest.add(row.message(), row.seq)

    def replace_all(messages: Sequence[Message]) -> None:
        for message in messages:
            digest.replace_by(message)

    for page in _pages(task.spans):
        if not was_read and page.start >= scope.earlier_start:
            await asyncio.to_thread(add_earlier)
            was_read = True
        rows = await _rows(database, task.conversation_id, page)
        rows = [row for row in rows if row.seq not in task.verbatim_seqs]
        tokens += sum(row.tokens for row in rows)
        has_messages = has_messages or bool(rows)
        await asyncio.to_thread(add, rows)
    if not was_read:
        await asyncio.to_thread(add_earlier)
    shown = await read_user_messages(database, task.conversation_id, scope.shown_after)
    await asyncio.to_thread(replace_all, shown)
    return digest, tokens if has_messages else -1


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

"""What the services need of the outside world, as protocols that adapters fulfil."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from app.domain.common.messages import FormatName
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.compaction.planning import CompactionThreshold, CompactResult
from app.domain.compaction.summaries import Completion, ModelCall
from app.domain.conversations.events import Cursor, EventPage
from app.domain.conversations.log import BatchShape, Draft, LogRow
from app.domain.conversations.records import (
    Agent,
    Compaction,
    ContextRead,
    Conversation,
    ConversationState,
    Epoch,
    Failure,
    Job,
    Settings,
    StoredMessage,
    Versioned,
    VisibleState,
)
from app.domain.conversations.search import Candidate, Postings, Query, Searched, Term
from app.domain.conversations.status import Activity
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import Span, View
from app.domain.formats import ToolDefinition
from app.domain.models.calibration import Calibration
from app.domain.models.limits import ModelInfo
from app.domain.payload.reported_usage import UsageReport
from app.domain.snapshots.snapshots import Imported, Snapshot, SnapshotPart
from app.domain.tenancy.api_keys import ApiKey, KeyUse
from app.domain.tenancy.quotas import QuotaKind, TenantLimits
from app.domain.tenancy.retention import RetainedKind
from app.domain.tool_output.blobs import Blob, Chunk, StoredChunk


class Tokenizer(Protocol):
    """Counts tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens of the text; never raises, whatever the text."""
        ...


class Ranking(Protocol):
    """Finds tools by what they do (H2)."""

    async def rank(
        self, query: str, tools: Sequence[ToolDefinition], limit: int, *, key: str
    ) -> list[str]:
        """Return the names of up to `limit` tools that match, best first.

        `key` stands for the tools: equal keys come with equal tools. A tool's exact name puts
        that tool first.
        """
        ...


class Models(Protocol):
    """Knows the limits and prices of models (J5)."""

    def find(self, model: str) -> ModelInfo | None:
        """Return what is known about the model, None for a name nobody lists."""
        ...

    def list(self) -> Sequence[ModelInfo]:
        """Return all known models, sorted by name."""
        ...


class Gateway(Protocol):
    """The one door to a language model."""

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer.

        Raises ServiceUnavailable, with `facts["reason"]` saying why, for every failure.
        """
        ...


class Observer(Protocol):
    """Is told what happened, for metrics and traces: how much and how, never what was said."""

    def appended(self, messages: int, tokens: int) -> None:
        """Hear of an append that stored so many messages of so many tokens."""
        ...

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Hear of a payload."""
        ...

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        """Watch a compaction, whose result the block tells; what the block raises ended it."""
        ...


class LogRepository(Protocol):
    """Sentences about the log of one conversation."""

    async def append(
        self,
        tenant_id: str,
        conversation_id: str,
        format: str,
        drafts: Sequence[Draft],
        ids: Sequence[str],
        shape: BatchShape,
        *,
        counter: str,
        now: datetime,
        expected_seq: int | None,
        default_model: str | None,
        due: CompactionThreshold,
        blobs: Sequence[tuple[Blob, Sequence[StoredChunk]]] = (),
        as_held: bool = False,
    ) -> Conversation | None:
        """Store a batch if the head still allows it, and return the conversation after it.

        Sets the due mark where the batch takes the head over the line (decision 25). A message
        that gives no time is from `now` (B2). `blobs` are stored with it; with `as_held` only if
        the settings are still those this process holds.

        None means that nothing was stored; the caller finds out why under the head's lock.
        """
        ...

    async def lock(
        self, tenant_id: str, conversation_id: str, default_model: str | None
    ) -> Conversation | None:
        """Lock the head until the transaction ends, and return the conversation."""
        ...

    async def by_ids(
        self,
        conversation_id: str,
        ids: Sequence[str],
        after_seq: int = 0,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return the stored messages with these ids, in log order, those after a seq."""
        ...

    async def ids(self, conversation_id: str, seqs: Sequence[int]) -> Mapping[int, str]:
        """Return the ids of the messages with these seqs."""
        ...

    async def page(
        self,
        conversation_id: str,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive (decision 1)."""
        ...

    async def sizes(self, conversation_id: str, start: int, end: int) -> Mapping[int, int]:
        """Return the bytes of the messages in `[start, end)` by seq, without reading them."""
        ...

    async def entries(self, conversation_id: str, start: int, end: int) -> list[Entry]:
        """Return what planning needs of the messages in `[start, end)`."""
        ...

    async def tool_names(self, conversation_id: str, start: int, end: int) -> Mapping[int, str]:
        """Return the name of the tool that each result in `[start, end)` comes from, by seq."""
        ...

    async def open_calls(self, conversation_id: str) -> Mapping[str, str]:
        """Return the names of the tools that the newest message but results calls, by call id."""
        ...

    async def last_used(self, conversation_id: str) -> Mapping[str, int]:
        """Return the seq at which each tool was last called, as the newest messages tell (H1)."""
        ...

    async def promote(self, conversation_id: str, names: Sequence[str]) -> tuple[str, ...]:
        """Promote tools for the current turn, and return all that are promoted in it (H2).

        Those of an earlier turn are not any more. For a deleted conversation there are none.
        """
        ...

    async def total_at(self, conversation_id: str, seq: int) -> int:
        """Return the running sum of tokens up to and including this seq."""
        ...

    async def kept_answer(self, conversation_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the answer kept under an idempotency key."""
        ...

    async def keep_answer(
        self, conversation_id: str, key: str, request_hash: str, answer: str
    ) -> None:
        """Keep an answer for 24 hours (decision 8)."""
        ...


class ContextRepository(Protocol):
    """Sentences about builds, epochs and compactions of one conversation."""

    async def read(
        self,
        tenant_id: str,
        conversation_id: str,
        *,
        format: str,
        model: str | None,
        default_model: str | None,
        window: int,
        have_epoch_id: str | None,
        have_start: str | None,
        have_through: int,
        most_tokens: int,
    ) -> ContextRead | None:
        """Return all a build needs, None for an unknown conversation.

        What the caller has of an epoch, its frame and its rows up to a seq, is not read again;
        nor is the summary, which that frame holds.
        """
        ...

    async def rows(
        self,
        conversation_id: str,
        start: int,
        end: int,
        *,
        as_chat: bool,
        trimmed_through: int = 0,
        untrimmed: Sequence[int] = (),
    ) -> list[LogRow]:
        """Return the messages in `[start, end)` as a build or a summariser reads them.

        Results up to `trimmed_through`, but for the seqs in `untrimmed`, come without their text.
        """
        ...

    async def add_epoch(
        self, conversation_id: str, epoch: Epoch, view: View, texts: Mapping[str, str]
    ) -> bool:
        """Record an epoch's start; False when another build was first, or all is deleted."""
        ...

    async def find_epoch(self, conversation_id: str, epoch_id: str) -> Epoch | None:
        """Return an epoch by its id, or None."""
        ...

    async def newest_tools(self, conversation_id: str) -> str | None:
        """Return the tools of the epoch that began last, as JSON; None before any build."""
        ...

    async def add_text(self, conversation_id: str, hash: str, body: str) -> None:
        """Keep a text of the conversation under its hash, once."""
        ...

    async def texts(self, conversation_id: str, hashes: Sequence[str]) -> Mapping[str, str]:
        """Return those of the texts that are kept, by their hashes."""
        ...

    async def add_compaction(self, conversation_id: str, compaction: Compaction) -> None:
        """Store a receipt."""
        ...

    async def show(
        self,
        conversation_id: str,
        shown: VisibleState,
        *,
        view_version: int,
        cause: str,
        resume_at: int = 0,
    ) -> bool:
        """Change what is shown, if the view is still this version and no new pin is hidden.

        Call it in a transaction that holds the head's lock.
        """
        ...

    async def hide_compaction(self, conversation_id: str, view_version: int) -> None:
        """Show the log as it is again, if the view is still this one."""
        ...

    async def let_grow(self, conversation_id: str, resume_at: int) -> None:
        """Leave the conversation alone until its log has so many tokens (decision 24)."""
        ...

    async def mark_undone(self, conversation_id: str, compaction_id: str) -> None:
        """Note on a receipt that it was undone."""
        ...

    async def compactions(
        self,
        conversation_id: str,
        limit: int,
        before: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Compaction]:
        """Return receipts, the newest first, starting after the one with the id `before`."""
        ...

    async def around(self, conversation_id: str, seq: int, *, whole_turn: bool) -> list[Entry]:
        """Return the entries of the call group, or of the whole turn, that a seq stands in."""
        ...

    async def pinned(self, conversation_id: str) -> list[Entry]:
        """Return the entries of all pinned messages."""
        ...

    async def pin(self, conversation_id: str, seqs: Sequence[int]) -> None:
        """Pin messages; those that are pinned already stay so."""
        ...

    async def unpin(self, conversation_id: str, seqs: Sequence[int]) -> int:
        """Unpin messages, and return how many were pinned."""
        ...

    async def keep(
        self, conversation_id: str, kept: Sequence[int], tokens: int, messages: int
    ) -> None:
        """Show messages again that were hidden or cleared: so many more, for so many tokens."""
        ...

    async def find_compaction(self, conversation_id: str, compaction_id: str) -> Compaction | None:
        """Return a receipt, or None."""
        ...


class ActiveWindowRepository(Protocol):
    """Sentences about the active window of one conversation (B2, B3)."""

    async def start_after(
        self, conversation_id: str, first: int, head_seq: int, marker: datetime
    ) -> int:
        """Return the seq, from `first` on, at which the call groups after a marker begin."""
        ...

    async def late_groups(
        self, conversation_id: str, since: int, head_seq: int, marker: datetime
    ) -> list[Span]:
        """Return the call groups from a seq on that hold a message from before the marker."""
        ...

    async def oldest_at(
        self, conversation_id: str, since: int, marker: datetime | None
    ) -> datetime | None:
        """Return the time of the oldest message from a seq on that is newer than the marker."""
        ...

    async def whole_groups(
        self, conversation_id: str, spans: Sequence[Span], head_seq: int
    ) -> list[Span]:
        """Return these spans, each up to the end of its last call group."""
        ...

    async def mentions_in(self, conversation_id: str, spans: Sequence[Span]) -> frozenset[str]:
        """Return the own tools that the views of results in these spans name (L1)."""
        ...

    async def has_epochs(self, conversation_id: str) -> bool:
        """Whether a payload was ever built, so that there is a prefix to keep."""
        ...

    async def tokens_in(self, conversation_id: str, spans: Sequence[Span]) -> int:
        """Return the tokens of the messages in these spans, from the log's running sums."""
        ...

    async def move(self, conversation_id: str, state: ConversationState) -> None:
        """Store the window of a head, and what is shown of it.

        Call it in a transaction that holds the head's lock.
        """
        ...

    async def activities(
        self, tenant_id: str, agent_id: str, since: datetime, looked_at: int, limit: int
    ) -> list[Activity]:
        """Return which of an agent's newest conversations had messages since, newest first."""
        ...

    async def clear(self, conversation_id: str, at: datetime, data: str) -> None:
        """Take all there is out of the window (B3), and tell of it; `data` is a JSON object."""
        ...

    async def clear_all(self, tenant_id: str, agent_id: str, at: datetime, data: str) -> int:
        """Do the same to all conversations of an agent; returns how many they are."""
        ...


class ConversationRepository(Protocol):
    """Sentences about conversations and their settings."""

    async def add(
        self,
        tenant_id: str,
        conversation_id: str,
        agent_id: str | None,
        counter: str,
        settings: Settings,
        metadata: str,
    ) -> bool:
        """Create one with an empty log; False when the id is taken."""
        ...

    async def find(
        self,
        tenant_id: str,
        conversation_id: str,
        default_model: str | None,
        model: str | None = None,
    ) -> Conversation | None:
        """Return one with its layers, or None."""
        ...

    async def page(
        self,
        tenant_id: str,
        agent_id: str | None,
        limit: int,
        before: tuple[Any, str] | None,
        default_model: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Conversation]:
        """Return a page, newest first; `before` is the creation time and id it starts after."""
        ...

    async def change(self, tenant_id: str, conversation: Conversation) -> None:
        """Store its settings as they are in `conversation`."""
        ...

    async def add_version(
        self, conversation_id: str, kind: Versioned, version: int, body: str
    ) -> None:
        """Keep a version of a list; call it in the transaction that makes it the newest."""
        ...

    async def find_version(self, conversation_id: str, kind: Versioned, version: int) -> str | None:
        """Return a version of a list as it was given, None where there is none."""
        ...

    async def ids_of_agent(self, tenant_id: str, agent_id: str) -> list[str]:
        """Return the ids of an agent's conversations."""
        ...

    async def remove(self, conversation_id: str) -> Mapping[str, int]:
        """Delete it and all that is derived from it; returns rows deleted by table (A7)."""
        ...


class AgentRepository(Protocol):
    """Sentences about agents."""

    async def add(self, tenant_id: str, agent: Agent) -> bool:
        """Create one; False when the id is taken."""
        ...

    async def find(self, tenant_id: str, agent_id: str, *, lock: bool = False) -> Agent | None:
        """Return one, or None; `lock` keeps others from changing it meanwhile."""
        ...

    async def page(
        self,
        tenant_id: str,
        limit: int,
        before: tuple[Any, str] | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Agent]:
        """Return a page, newest first; `before` is the creation time and id it starts after."""
        ...

    async def change(self, tenant_id: str, agent: Agent) -> None:
        """Store its settings as they are in `agent`."""
        ...

    async def clear(self, tenant_id: str, agent_id: str, at: datetime) -> datetime:
        """Move its marker to this time, or leave it where that is later; returns where it is."""
        ...

    async def add_version(
        self, tenant_id: str, agent_id: str, kind: Versioned, version: int, body: str
    ) -> None:
        """Keep a version of a list; call it in the transaction that makes it the newest."""
        ...

    async def find_version(
        self, tenant_id: str, agent_id: str, kind: Versioned, version: int
    ) -> str | None:
        """Return a version of a list as it was given, None where there is none."""
        ...

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete the agent without its conversations; returns rows deleted by table (A7)."""
        ...


class TenantRepository(Protocol):
    """Sentences about what belongs to a tenant alone: its models and its creation keys."""

    async def kept_creation(self, tenant_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the resource id kept under an idempotency key."""
        ...

    async def keep_creation(
        self, tenant_id: str, key: str, request_hash: str, resource_id: str
    ) -> bool:
        """Take a key for 24 hours; False when an equal request took it first (decision 8)."""
        ...

    async def set_model(self, tenant_id: str, model: str, entry: str) -> None:
        """Add or replace the tenant's own entry for a model (J5)."""
        ...

    async def find_model(self, tenant_id: str, model: str) -> str | None:
        """Return the tenant's own entry for a model, or None."""
        ...

    async def list_models(self, tenant_id: str) -> list[tuple[str, str]]:
        """Return the tenant's own entries, by model name."""
        ...

    async def remove_model(self, tenant_id: str, model: str) -> bool:
        """Delete the tenant's own entry; False when there was none."""
        ...


class RetentionRepository(Protocol):
    """Sentences about what is old."""

    async def forget(self, kind: RetainedKind, before: datetime, limit: int) -> int:
        """Delete up to `limit` rows from before a time, and return how many that were."""
        ...

    async def walk(self, after: str, before: datetime, limit: int) -> list[tuple[str, str, bool]]:
        """Return tenant and id of the next conversations, and whether they are idle since then.

        Idle is one that was not appended to, nor changed, and is in no snapshot.
        """
        ...

    async def is_idle(self, conversation_id: str, before: datetime) -> bool:
        """Tell whether a conversation is idle since then; ask it under the head's lock."""
        ...


class StorageRepository(Protocol):
    """Sentences about how much tenants store."""

    async def measure(self, tenant_id: str) -> bool:
        """Measure some of what was appended since; tell whether there may be more of it."""
        ...

    async def total(self, tenant_id: str) -> int:
        """Return the bytes of a tenant's measured messages, blobs and imported snapshots."""
        ...


class ApiKeyRepository(Protocol):
    """Sentences about tenants, their keys and their allowances."""

    async def add_tenant(self, tenant_id: str) -> None:
        """Make a tenant without limits of its own, if there is none of that id."""
        ...

    async def set_limits(self, tenant_id: str, limits: TenantLimits) -> None:
        """Give a tenant limits of its own, which is made if there is none of that id."""
        ...

    async def find_limits(self, tenant_id: str) -> TenantLimits | None:
        """Return a tenant's own limits; None for a tenant nobody made."""
        ...

    async def list_limits(self) -> Mapping[str, TenantLimits]:
        """Return all tenants' own limits, by tenant."""
        ...

    async def add(self, key: ApiKey) -> None:
        """Store a new key."""
        ...

    async def find(self, key_id: str) -> ApiKey | None:
        """Return a key, revoked or not."""
        ...

    async def of_tenant(self, tenant_id: str | None) -> list[ApiKey]:
        """Return the keys of a tenant, or all."""
        ...

    async def any(self) -> bool:
        """Tell whether there is any key, revoked or not."""
        ...

    async def revoke(self, key_id: str, at: datetime) -> ApiKey | None:
        """Set a key's end, unless it has one; return it, None when there is none."""
        ...

    async def count_uses(self, uses: Sequence[KeyUse], at: datetime) -> None:
        """Add to the counts of each key, hour and address; what was admitted was used at `at`."""
        ...

    async def uses(self, key_id: str, since: datetime) -> list[KeyUse]:
        """Return what is counted of a key from an hour on, the newest first."""
        ...

    async def take(
        self, tenant_id: str, kind: QuotaKind, window_start: datetime, asked: int
    ) -> int:
        """Add to what is taken in a window, and return how much that is then."""
        ...


class JobRepository(Protocol):
    """Sentences about work in the background: due marks, leases, jobs a caller can poll."""

    async def list_due(self, limit: int) -> list[tuple[str, str]]:
        """Return the tenant and conversation ids whose due mark has come, the oldest first."""
        ...

    async def mark_due(self, conversation_id: str) -> bool:
        """Set the due mark; False when it was set already."""
        ...

    async def clear_due(self, conversation_id: str) -> None:
        """Take a due mark whose time has come away: somebody looks at the conversation now."""
        ...

    async def postpone(self, conversation_id: str, seconds: float) -> None:
        """Count a failure, and set the due mark for later."""
        ...

    async def record_failure(self, conversation_id: str, failure: str) -> None:
        """Keep why a compaction failed, in the place of the failure before."""
        ...

    async def find_failure(self, conversation_id: str) -> Failure | None:
        """Return why the last compaction failed, None since one has succeeded."""
        ...

    async def take_lease(self, conversation_id: str, holder: str, seconds: float) -> bool:
        """Take, or as its holder renew, the right to compact; False while another has it."""
        ...

    async def release_lease(self, conversation_id: str, holder: str) -> None:
        """Give the right to compact back."""
        ...

    async def add(
        self, tenant_id: str, conversation_id: str, job_id: str, kind: str, ask: str
    ) -> None:
        """Store a job that a caller waits for; `ask` is JSON."""
        ...

    async def find(self, tenant_id: str, job_id: str) -> Job | None:
        """Return a job, or None."""
        ...

    async def change(
        self,
        conversation_id: str,
        job_id: str,
        status: str,
        *,
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Store how far a job has come; `result` and `error` are JSON."""
        ...


class EventRepository(Protocol):
    """Sentences about what happened to a conversation (L3)."""

    async def add(self, conversation_id: str, type: str, data: str) -> None:
        """Store an event as the conversation's next; `data` is a JSON object.

        In a transaction the head stays locked from here to its end. For a deleted conversation
        nothing is stored.
        """
        ...

    async def find_head(self, tenant_id: str, conversation_id: str) -> Cursor | None:
        """Return the cursor of whoever has been told everything, None without a conversation."""
        ...

    async def heads(self, conversation_ids: Collection[str]) -> Mapping[str, Cursor]:
        """Return the same of many conversations, as far as they exist."""
        ...

    async def page(
        self, tenant_id: str, conversation_id: str, after: Cursor, limit: int
    ) -> EventPage | None:
        """Return what follows a cursor, all of one moment; None without a conversation."""
        ...


class UsageRepository(Protocol):
    """Sentences about what providers reported, and what their models' counts are worth (J3, J4)."""

    async def add(self, conversation_id: str, report: UsageReport) -> bool:
        """Store a report; False for a deleted conversation."""
        ...

    async def newest(self, conversation_id: str) -> UsageReport | None:
        """Return the report that came last, or None."""
        ...

    async def newest_epoch(self, conversation_id: str, payload_stream: str) -> Epoch | None:
        """Return the last epoch of a lane, None where nothing was built."""
        ...

    async def last_format(
        self, conversation_id: str, formats: Sequence[FormatName]
    ) -> FormatName | None:
        """Return which of these formats an epoch began in last, None where none did."""
        ...

    async def has_reasoning(
        self, conversation_id: str, spans: Sequence[Span], after_seq: int, through_seq: int
    ) -> bool:
        """Whether a message of these spans, after one seq and up to another, holds reasoning."""
        ...

    async def calibrate(
        self, tenant_id: str, model: str, counter: str, reported: int, counted: int
    ) -> Calibration:
        """Add a payload to the model's tally as `Tally` does, none lost among many at once."""
        ...

    async def find_calibration(
        self, tenant_id: str, model: str, counter: str
    ) -> Calibration | None:
        """Return what reports have said of a model's counts, or None."""
        ...


class BlobRepository(Protocol):
    """Sentences about the blobs of one conversation (F)."""

    async def find(self, conversation_id: str, ref: str) -> Blob | None:
        """Return a blob, a collected one too; None for an unknown ref."""
        ...

    async def find_all(self, conversation_id: str, refs: Sequence[str]) -> list[Blob]:
        """Return those of the blobs that there are."""
        ...

    async def page(self, conversation_id: str, limit: int, before: str | None) -> list[Blob]:
        """Return blobs that were not collected, newest first, from after the id `before` on."""
        ...

    async def add(self, conversation_id: str, blob: Blob, chunks: Sequence[StoredChunk]) -> str:
        """Store a blob, or find it stored, and return the content id that holds its bytes.

        `chunks` are stored only if that is the blob's own; a collected one comes back to life.
        For a deleted conversation nothing is stored.
        """
        ...

    async def begin_upload(self, tenant_id: str, conversation_id: str, content_id: str) -> bool:
        """Note that chunks of a content are coming; False without such a conversation."""
        ...

    async def add_chunks(
        self, conversation_id: str, content_id: str, chunks: Sequence[StoredChunk]
    ) -> None:
        """Store more chunks of an upload under way."""
        ...

    async def end_upload(self, conversation_id: str, blob: Blob) -> str:
        """Store the blob of an upload, or find it stored; returns as `add` does.

        The upload's own chunks are dropped where the blob was stored already. Raises NotFound
        when the conversation is gone.
        """
        ...

    async def drop_upload(self, conversation_id: str, content_id: str) -> None:
        """Forget an upload that did not end, and its chunks."""
        ...

    async def attach(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Note that messages refer to these blobs."""
        ...

    async def chunks(
        self, conversation_id: str, content_id: str, first: int, count: int
    ) -> list[StoredChunk]:
        """Return up to `count` chunks from number `first` on, in order."""
        ...

    async def chunk_before_line(
        self, conversation_id: str, content_id: str, line: int
    ) -> tuple[int, int] | None:
        """Return the number, and the newlines before it, of the chunk with that many newlines.

        It is the last chunk with fewer than `line` newlines before it, the first for line 0;
        None where there are no chunks.
        """
        ...

    async def collectable(
        self, conversation_id: str, uploaded_before: datetime | None, *, compacted: bool
    ) -> list[Blob]:
        """Return what a collection would take, the oldest first (F7).

        Blobs no message was attached to, uploaded before that time if one is given; and with
        `compacted` those whose messages are all hidden by the active compaction.
        """
        ...

    async def collect(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Delete the bytes of blobs and leave their tombstones (decision 29)."""
        ...

    async def list_due(self, uploaded_before: datetime, limit: int) -> list[tuple[str, str]]:
        """Return tenant and conversation ids where a scheduled collection may find something.

        Those with uploads from before that time that were not attached or did not end, and those
        compacted since the last collection.
        """
        ...

    async def stale_uploads(self, conversation_id: str, begun_before: datetime) -> list[str]:
        """Return the content ids of uploads that did not end, begun before that time."""
        ...

    async def swept(self, conversation_id: str) -> None:
        """Note that a scheduled collection has seen the conversation's last compaction."""
        ...

    async def holds_content(self, conversation_id: str, content_id: str) -> bool:
        """Whether a blob or an upload under way has this content."""
        ...


class SnapshotRepository(Protocol):
    """Sentences about snapshots (I)."""

    async def hold(self, tenant_id: str, conversation_ids: Sequence[str]) -> list[str]:
        """Keep conversations from being deleted until the transaction ends.

        Returns those of them that there are.
        """
        ...

    async def first_at(self, conversation_id: str, seq: int) -> datetime | None:
        """Return the time of a message as the active window sees it, None without such a one."""
        ...

    async def add(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        parts: Sequence[SnapshotPart] = (),
        messages: Sequence[Imported] = (),
    ) -> bool:
        """Store a snapshot; False when its id is taken."""
        ...

    async def find(self, tenant_id: str, session_id: str) -> Snapshot | None:
        """Return a snapshot without its messages, or None."""
        ...

    async def page(
        self,
        tenant_id: str,
        agent_id: str | None,
        conversation_id: str | None,
        limit: int,
        before: tuple[datetime, str] | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Snapshot]:
        """Return a page, newest first; `before` is the time and id it starts after (I3)."""
        ...

    async def parts(self, tenant_id: str, session_id: str) -> list[SnapshotPart]:
        """Return what a snapshot holds of each conversation, the oldest conversation first."""
        ...

    async def messages(
        self,
        tenant_id: str,
        session_id: str,
        after: int,
        limit: int,
        source_id: str | None = None,
        bound: Bound = UNBOUNDED,
    ) -> Page[tuple[int, str]]:
        """Return entries of an imported snapshot after a position, each with its own.

        With a `source_id` only those of that conversation.
        """
        ...

    async def remove(self, tenant_id: str, session_id: str) -> Mapping[str, int]:
        """Delete a snapshot; returns rows deleted by table."""
        ...

    async def seqs_of(self, conversation_id: str, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the seqs of those of the messages that the log has, by id."""
        ...

    async def calls_in(self, conversation_id: str, spans: Sequence[Span]) -> frozenset[str]:
        """Return the ids of all calls in these spans."""
        ...


class SearchRepository(Protocol):
    """Sentences about the words of one conversation's messages (A6, L1)."""

    async def unindexed(
        self, conversation_id: str, through_seq: int, limit: int, most_bytes: int
    ) -> list[Searched]:
        """Return the next messages to be indexed, up to a seq and at most so many.

        They end after the first with which their bodies are `most_bytes` or more.
        """
        ...

    async def add(self, conversation_id: str, words: Mapping[int, Sequence[str]]) -> None:
        """Index messages by their lexemes; those that are indexed already stay as they are.

        For a deleted conversation nothing is stored.
        """
        ...

    async def find(
        self,
        conversation_id: str,
        query: Query,
        *,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive, by their words alone."""
        ...

    async def postings(
        self, conversation_id: str, terms: Sequence[Sequence[Term]], head_seq: int, most: int
    ) -> list[Postings]:
        """Return for each group of terms which messages have all of it, the newest `most`."""
        ...

    async def holding(
        self, conversation_id: str, seqs: Sequence[int], terms: Sequence[Term]
    ) -> list[Candidate]:
        """Return the size of messages, and which of the terms each of them has."""
        ...

    async def by_seqs(
        self, conversation_id: str, seqs: Sequence[int], most_bytes: int
    ) -> list[Searched]:
        """Return messages by their seqs, in log order, from the first on.

        They end after the first with which their bodies are `most_bytes` or more.
        """
        ...


class ForkRepository(Protocol):
    """Sentences about copying a conversation into another one (I6)."""

    async def add(self, tenant_id: str, source_id: str, fork_id: str, metadata: str | None) -> bool:
        """Create a conversation with an empty log and all settings of another one.

        `metadata` replaces that of the source. False when the id is taken; raises NotFound when
        there is no such source.
        """
        ...

    async def refs(self, source_id: str, through_seq: int) -> list[str]:
        """Return the ids of the blobs that messages up to a seq refer to."""
        ...

    async def copy_blobs(self, source_id: str, fork_id: str, blobs: Sequence[Blob]) -> bool:
        """Copy blobs with their chunks; their object keys are those of the copies.

        False when one of them is not any more what it was.
        """
        ...

    async def size(self, source_id: str, through_seq: int) -> int:
        """Return the bytes of the messages up to a seq, and of the blobs that they refer to."""
        ...

    async def copy_marks(
        self, source_id: str, fork_id: str, through_seq: int, compaction_id: str | None
    ) -> None:
        """Copy the pins and the uses of blobs up to a seq, and a receipt with all before it."""
        ...

    async def copy_messages(
        self, source_id: str, fork_id: str, after_seq: int, through_seq: int
    ) -> int:
        """Copy the messages after one seq and up to another, and return how many there were."""
        ...

    async def set_head(self, fork_id: str, state: ConversationState) -> None:
        """Set the head of a log that was copied, but for its window and what is shown of it.

        Turns, tokens and the newest time are those of the log's last message. Tools stay promoted
        if the turn they were promoted in is not yet to come.
        """
        ...


class TranscriptRepository(Protocol):
    """Sentences about messages of several conversations at once (A6)."""

    async def of_agent(
        self,
        tenant_id: str,
        agent_id: str,
        after: tuple[datetime, str, int] | None,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[tuple[str, datetime, StoredMessage]]:
        """Return a page of the messages of an agent's conversations in the order of their times.

        Each comes with its conversation's id and its time as the active window sees it; `after`
        are time, conversation and seq that the page starts after.
        """
        ...

    async def conversations(
        self, tenant_id: str, conversation_ids: Collection[str], default_model: str | None
    ) -> list[Conversation]:
        """Return those of the conversations that there are, with their layers."""
        ...

    async def pinned(self, messages: Sequence[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """Return which of these messages, by conversation and seq, pins hold (D8)."""
        ...

    async def chains(
        self, newest: Mapping[str, str], limit: int
    ) -> Mapping[str, Sequence[Compaction]]:
        """Return receipts by conversation: one, then what it was based on, up to `limit` of them.

        `newest` names the receipt to begin with, by conversation.
        """
        ...


class BlobWriter(Protocol):
    """Takes the chunks of one content, in order."""

    async def write(self, chunks: Sequence[Chunk]) -> list[StoredChunk]:
        """Keep chunks, and return them as their rows have to hold them."""
        ...

    async def finish(self) -> str | None:
        """Make what was written last; returns the object's key, None where rows hold the bytes."""
        ...


class BlobStore(Protocol):
    """Keeps the bytes of chunks: in their rows, or in objects beside the database (F1).

    Whatever fails in an object store is ServiceUnavailable.
    """

    def writer(
        self, tenant_id: str, conversation_id: str, content_id: str
    ) -> AbstractAsyncContextManager[BlobWriter]:
        """Open a content for writing; left without `finish`, nothing of it stays."""
        ...

    async def read(self, object_key: str | None, chunks: Sequence[StoredChunk]) -> list[bytes]:
        """Return the raw bytes of neighbouring chunks."""
        ...

    async def copy(
        self, tenant_id: str, conversation_id: str, content_id: str, object_key: str
    ) -> str:
        """Copy an object to a content of another conversation, and return the key it has there."""
        ...

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""
        ...

    async def forget(self, tenant_id: str, conversation_id: str) -> None:
        """Delete every object of a conversation."""
        ...

    async def drop_parts(self, older_than: datetime) -> int:
        """Delete what killed uploads have left of objects before a time; returns how many parts.

        An object store that does not list them keeps them, until a rule of its bucket ends them.
        """
        ...

    def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the key, conversation id and content id of every object written before a time."""
        ...


class JobQueue(Protocol):
    """Wakes the workers; what it holds outlives the process that put it there."""

    async def enqueue(
        self, tenant_id: str, conversation_id: str, job_id: str | None = None
    ) -> bool:
        """Ask for a conversation to be compacted; False when that is asked for already."""
        ...


class Repositories(Protocol):
    """Everything that is stored, seen through one session."""

    @property
    def agents(self) -> AgentRepository:
        """Agents and their settings."""
        ...

    @property
    def conversations(self) -> ConversationRepository:
        """Conversations and their settings."""
        ...

    @property
    def log(self) -> LogRepository:
        """The messages."""
        ...

    @property
    def contexts(self) -> ContextRepository:
        """Builds, epochs and compactions."""
        ...

    @property
    def windows(self) -> ActiveWindowRepository:
        """Active windows."""
        ...

    @property
    def jobs(self) -> JobRepository:
        """Work in the background."""
        ...

    @property
    def events(self) -> EventRepository:
        """What happened."""
        ...

    @property
    def usage(self) -> UsageRepository:
        """What providers reported."""
        ...

    @property
    def blobs(self) -> BlobRepository:
        """Full tool outputs."""
        ...

    @property
    def snapshots(self) -> SnapshotRepository:
        """Active windows as they were."""
        ...

    @property
    def search(self) -> SearchRepository:
        """The words of messages."""
        ...

    @property
    def transcripts(self) -> TranscriptRepository:
        """Messages of several conversations."""
        ...

    @property
    def forks(self) -> ForkRepository:
        """Copies of conversations."""
        ...

    @property
    def storage(self) -> StorageRepository:
        """How much tenants store."""
        ...

    @property
    def tenants(self) -> TenantRepository:
        """What belongs to a tenant alone."""
        ...

    @property
    def retention(self) -> RetentionRepository:
        """What is old."""
        ...

    @property
    def keys(self) -> ApiKeyRepository:
        """Tenants and their API keys."""
        ...


class Database(Protocol):
    """Opens sessions; no session is held open during a model call."""

    def held(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """Return the conversation as this process last read it, which may be outdated."""
        ...

    def session(self) -> AbstractAsyncContextManager[Repositories]:
        """Each sentence commits by itself."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Repositories]:
        """All sentences of the block commit together, or none."""
        ...

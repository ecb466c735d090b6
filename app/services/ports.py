"""What the services need of the outside world, as protocols that adapters fulfil."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from app.domain.limits import ModelInfo
from app.domain.log import BatchShape, Draft, LogRow
from app.domain.records import (
    Agent,
    Compaction,
    ContextRead,
    Conversation,
    Epoch,
    Settings,
    StoredMessage,
)
from app.domain.strategies import Span
from app.domain.summaries import Completion, ModelCall
from app.domain.turns import Entry


class Tokenizer(Protocol):
    """Counts tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens of the text; never raises, whatever the text."""
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


class LogRecords(Protocol):
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
        expected_seq: int | None,
        default_model: str | None,
    ) -> Conversation | None:
        """Store a batch if the head still allows it, and return the conversation after it.

        None means that nothing was stored; the caller finds out why under the head's lock.
        """
        ...

    async def lock(
        self, tenant_id: str, conversation_id: str, default_model: str | None
    ) -> Conversation | None:
        """Lock the head until the transaction ends, and return the conversation."""
        ...

    async def by_ids(self, conversation_id: str, ids: Sequence[str]) -> list[StoredMessage]:
        """Return the stored messages with these ids, in log order."""
        ...

    async def page(
        self, conversation_id: str, after_seq: int, before_seq: int, order: str, limit: int
    ) -> list[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive (decision 1)."""
        ...

    async def entries(self, conversation_id: str, start: int, end: int) -> list[Entry]:
        """Return what planning needs of the messages in `[start, end)`."""
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


class ContextRecords(Protocol):
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
        have_frame: str | None,
        have_through: int,
        most_tokens: int,
    ) -> ContextRead | None:
        """Return all a build needs, None for an unknown conversation.

        What the caller has of an epoch, its frame and its rows up to a seq, is not read again;
        nor is the summary, which that frame holds.
        """
        ...

    async def rows(
        self, conversation_id: str, start: int, end: int, *, as_chat: bool
    ) -> list[LogRow]:
        """Return the messages in `[start, end)` as a build or a summariser reads them."""
        ...

    async def add_epoch(
        self, conversation_id: str, epoch: Epoch, spans: Sequence[Span], texts: Mapping[str, str]
    ) -> bool:
        """Record an epoch's start; False when another build was first, or all is deleted."""
        ...

    async def add_compaction(self, conversation_id: str, compaction: Compaction) -> None:
        """Store a receipt."""
        ...

    async def show_compaction(
        self,
        conversation_id: str,
        compaction: Compaction,
        *,
        hidden_tokens: int,
        view_version: int,
    ) -> bool:
        """Make a compaction the active one, if the view is still the one it was planned on."""
        ...

    async def hide_compaction(self, conversation_id: str, view_version: int) -> None:
        """Show the log as it is again, if the view is still this one."""
        ...

    async def find_compaction(self, conversation_id: str, compaction_id: str) -> Compaction | None:
        """Return a receipt, or None."""
        ...


class ConversationRecords(Protocol):
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
    ) -> list[Conversation]:
        """Return a page, newest first; `before` is the creation time and id it starts after."""
        ...

    async def change(self, tenant_id: str, conversation: Conversation) -> None:
        """Store its settings as they are in `conversation`."""
        ...

    async def ids_of_agent(self, tenant_id: str, agent_id: str) -> list[str]:
        """Return the ids of an agent's conversations."""
        ...

    async def remove(self, conversation_id: str) -> Mapping[str, int]:
        """Delete it and all that is derived from it; returns rows deleted by table (A7)."""
        ...


class AgentRecords(Protocol):
    """Sentences about agents."""

    async def add(self, tenant_id: str, agent: Agent) -> bool:
        """Create one; False when the id is taken."""
        ...

    async def find(self, tenant_id: str, agent_id: str, *, lock: bool = False) -> Agent | None:
        """Return one, or None; `lock` keeps others from changing it meanwhile."""
        ...

    async def page(self, tenant_id: str, limit: int, before: tuple[Any, str] | None) -> list[Agent]:
        """Return a page, newest first; `before` is the creation time and id it starts after."""
        ...

    async def change(self, tenant_id: str, agent: Agent) -> None:
        """Store its settings as they are in `agent`."""
        ...

    async def remove(self, tenant_id: str, agent_id: str) -> int:
        """Delete the agent's own row."""
        ...


class TenantRecords(Protocol):
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


class Records(Protocol):
    """Everything that is stored, seen through one session."""

    @property
    def agents(self) -> AgentRecords:
        """Agents and their settings."""
        ...

    @property
    def conversations(self) -> ConversationRecords:
        """Conversations and their settings."""
        ...

    @property
    def log(self) -> LogRecords:
        """The messages."""
        ...

    @property
    def contexts(self) -> ContextRecords:
        """Builds, epochs and compactions."""
        ...

    @property
    def tenants(self) -> TenantRecords:
        """What belongs to a tenant alone."""
        ...


class Database(Protocol):
    """Opens sessions; no session is held open during a model call."""

    def held_counter(self, conversation_id: str) -> str | None:
        """Return the conversation's counter, if this process knows it."""
        ...

    def session(self) -> AbstractAsyncContextManager[Records]:
        """Each sentence commits by itself."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Records]:
        """All sentences of the block commit together, or none."""
        ...

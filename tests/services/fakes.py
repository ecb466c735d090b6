"""The two fakes, gateway and clock, and the services composed over a real database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import orjson
from uuid_utils import uuid7

from app.blobs.byte_store import BlobStore, ObjectStore
from app.common.errors import ServiceUnavailable
from app.common.pages import Page
from app.compaction.receipts import ReceiptService
from app.compaction.rewind import RewindService
from app.compaction.run import CompactionRequest
from app.compaction.service import CompactionService
from app.compaction.summaries.checklist import own_text as own_text_of
from app.compaction.summaries.model_calls import SummariserSettings
from app.compaction.summaries.model_summary import ModelAccess
from app.compaction.summaries.summariser import Summariser
from app.context.build import ContextService
from app.context.repository import ContextRepository
from app.context.state import BuildDependencies, PayloadCache
from app.context.usage_service import UsageService
from app.conversations.conversation import Conversation
from app.conversations.events import Cursor
from app.conversations.messages.repository import LogRepository
from app.conversations.messages.row import RawBatch, StoredMessage
from app.conversations.messages.service import AppendResult, LogService
from app.conversations.messages.stored_results import StoredResults
from app.conversations.messages.transcripts import TranscriptService
from app.conversations.moving_window import ActiveWindows
from app.conversations.other_conversations import OtherConversations
from app.conversations.receipt import CompactResult, Receipt
from app.conversations.schemas import AgentCreate, ConversationCreate, ConversationPatch
from app.conversations.service import AgentService, ConversationService
from app.conversations.settings_resolver import SettingsResolver
from app.database.connections import Store
from app.formats import parse_tool
from app.formats.message import FormatName
from app.jobs.leases import Leases
from app.models.model_info import ModelInfo
from app.models.registry import ModelRegistry
from app.models.tokenizer import LocalTokenizer
from app.models.tokens import count_payload_messages, count_system, estimate_tool_defs_tokens
from app.models.usage import Completion, ModelCall, TokenUsage
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database, Repositories

TENANT = "default"
CHAT, ANTHROPIC = FormatName.OPENAI_CHAT, FormatName.ANTHROPIC
MODEL, CLAUDE = "gpt-4o", "claude-3-opus"
SUMMARISER = "summariser"
STARTED = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
TOKENIZER = LocalTokenizer()


class UnscaledModels(ModelRegistry):
    """The registry without the first factors of families, so that tests can count payloads."""

    def find(self, model: str) -> ModelInfo | None:
        """Return what is known of the model."""
        info = super().find(model)
        return replace(info, start_factor=1.0) if info is not None else None


MODELS = UnscaledModels()

_open_sessions: ContextVar[int] = ContextVar("open_sessions", default=0)

Reply = str | ServiceUnavailable


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def now_ms(self) -> float:
        """Return the time in milliseconds."""
        return self.now

    def utc(self) -> datetime:
        """Return the time of day."""
        return STARTED + timedelta(milliseconds=self.now)

    def pass_seconds(self, seconds: float) -> None:
        """Let time go by."""
        self.now += seconds * 1000


def own_text(summary: str | None) -> str:
    """Return what a model wrote of a summary: without kept statements and the last line."""
    return own_text_of(summary or "")


class ScriptedGateway:
    """A model that replies as told, the last reply for ever after.

    It refuses to be called from inside a session or transaction. `waiting` is set while a call
    is held up; set `release` to let it go on.
    """

    def __init__(self, *replies: Reply, clock: Clock | None = None) -> None:
        self.replies = list(replies) or ["<summary>what was said</summary>"]
        self.calls: list[ModelCall] = []
        self.waiting = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()
        self._clock = clock

    async def complete(self, call: ModelCall) -> Completion:
        """Return or raise the next reply."""
        assert _open_sessions.get() == 0, "a session is open during a model call"
        self.calls.append(call)
        self.waiting.set()
        await self.release.wait()
        assert _open_sessions.get() == 0
        if self._clock is not None:
            self._clock.pass_seconds(0.02)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, ServiceUnavailable):
            raise reply
        return Completion(reply, "stop", TokenUsage(100, 10))


class WatchedDatabase(Database):
    """The real database, watched: it knows whether the running task has a session open."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._store)
        self._settings_cache = database._settings_cache

    @property
    def store(self) -> Store:
        """The store that the real database speaks to."""
        return self._store

    @asynccontextmanager
    async def session(self, seconds: float | None = None) -> AsyncIterator[Repositories]:
        """Open a session and remember it for this task."""
        async with super().session(seconds) as session:
            with _counted():
                yield session

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Repositories]:
        """Open a transaction and remember it for this task."""
        async with super().transaction() as session:
            with _counted():
                yield session


class _counted:  # a context manager, named like a function
    def __enter__(self) -> None:
        _open_sessions.set(_open_sessions.get() + 1)

    def __exit__(self, *_: object) -> None:
        _open_sessions.set(_open_sessions.get() - 1)


def failing(sentence: str, error: Exception) -> Any:
    """Have a statement about the log fail inside the block."""
    return mock.patch.object(LogRepository, sentence, side_effect=error)


def after_read(hook: Callable[[], Awaitable[None]]) -> None:
    """Run this once a build has read, before it goes on."""
    read = ContextRepository.read_build_input

    async def reading(*arguments: Any, **named: Any) -> Any:
        found = await read(*arguments, **named)
        reader.stop()
        await hook()
        return found

    reader = mock.patch.object(ContextRepository, "read_build_input", reading)
    reader.start()


def new_id() -> str:
    """Return a fresh UUIDv7."""
    return str(uuid7())


@dataclass
class Harness:
    """The services of one process over a real database, and sentences to drive them."""

    database: WatchedDatabase
    gateway: ScriptedGateway = field(default_factory=ScriptedGateway)
    clock: Clock = field(default_factory=Clock)
    model: str | None = None
    service_policy: Mapping[str, Any] = field(default_factory=dict)
    objects: ObjectStore | None = None

    def __post_init__(self) -> None:
        allowed = (self.model,) if self.model else ()
        settings = SummariserSettings(self.model, allowed, (), 5.0, attempts=1)
        self.resolver = SettingsResolver(MODELS, TOKENIZER, self.service_policy, MODEL)
        self.summariser = Summariser(
            ModelAccess(self.gateway, MODELS, TOKENIZER, settings, sleep=_no_sleep)
        )
        self.outputs = StoredResults(self.database, self.objects or BlobStore(), new_id)
        self.active = ActiveWindows(self.database, self.resolver, self.clock.utc)
        self.log = LogService(self.database, self.resolver, self.outputs, self.active, new_id, 1000)
        forget, check = self.outputs.delete_conversation_objects, self.summariser.check_model
        given = (self.database, self.resolver, new_id, self.clock.utc, forget, check)
        self.conversations, self.agents = ConversationService(*given), AgentService(*given)
        self.leases = Leases(self.database, new_id)
        parts = (self.database, self.resolver, self.summariser, self.active, self.leases)
        self.compaction = CompactionService(*parts, new_id, self.clock.now_ms)
        self.receipts = ReceiptService(self.database, self.resolver, self.active)
        self.rewinds = RewindService(self.database, self.resolver, self.active, new_id)
        reads = (self.database, self.resolver, self.active)
        self.transcripts = TranscriptService(*reads, self.outputs)
        cache = PayloadCache(64 << 20)
        self.context = self.cold(cache)
        self.usage = UsageService(*reads, new_id, cache, self.clock.utc)

    def cold(self, cache: PayloadCache | None = None) -> ContextService:
        """Return the build service of a process that has built nothing yet."""
        return ContextService(
            BuildDependencies(
                self.database,
                self.resolver,
                self.summariser,
                cache or PayloadCache(64 << 20),
                self.active,
                self.compaction,
                OtherConversations(self.database, self.clock.utc),
                new_id,
            )
        )

    async def conversation(
        self,
        policy: Mapping[str, Any] | None = None,
        sections: Sequence[Mapping[str, Any]] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        conversation_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        """Create a conversation and return its id."""
        own: dict[str, Any] = {"sections": list(sections), "tools": list(tools), "policy": policy}
        new = ConversationCreate(conversation_id=conversation_id, agent_id=agent_id, **own)
        return (await self.conversations.create(TENANT, new)).conversation_id

    async def agent(
        self,
        rolling_window_seconds: int | None = 86_400,
        policy: Mapping[str, Any] | None = None,
        agent_id: str | None = None,
    ) -> str:
        """Create an agent and return its id."""
        own: dict[str, Any] = {"rolling_window_seconds": rolling_window_seconds, "policy": policy}
        new = AgentCreate(name="Agent", agent_id=agent_id, **own)
        return (await self.agents.create(TENANT, new)).agent_id

    async def patch(self, conversation_id: str, **changes: Any) -> None:
        """Patch a conversation."""
        await self.conversations.change(TENANT, conversation_id, ConversationPatch(**changes))

    async def set_policy(self, conversation_id: str, policy: Mapping[str, Any]) -> None:
        """Patch a conversation's policy."""
        await self.patch(conversation_id, policy=policy)

    async def append(
        self, conversation_id: str, *messages: Mapping[str, Any], format: FormatName = CHAT
    ) -> AppendResult:
        """Append a batch."""
        stored = await self.log.append(TENANT, conversation_id, RawBatch(messages, format))
        answer = stored.answer
        assert isinstance(answer, AppendResult)
        return answer

    async def talk(self, conversation_id: str, turns: int, words: int = 20) -> None:
        """Append turns of a question and an answer, each of about so many words."""
        batch = []
        for number in range(turns):
            batch.append(user(f"question {number} " + "why " * words))
            batch.append(says(f"answer {number} " + "because " * words))
        await self.append(conversation_id, *batch)

    async def build(
        self,
        conversation_id: str,
        ask: RequestSettings | None = None,
        service: ContextService | None = None,
    ) -> Build:
        """Build a payload and return what a client sees of it."""
        service = service or self.context
        built = await service.build(TENANT, conversation_id, ask or RequestSettings())
        return Build(built)

    async def work(self, conversation_id: str, job_id: str | None = None) -> None:
        """Do what a worker does that looks at the conversation, unless another compacts it."""
        async with self.leases.held(conversation_id) as is_mine:
            if is_mine:
                await self.compaction.work(TENANT, conversation_id, job_id)

    async def compact(self, conversation_id: str, **ask: Any) -> CompactResult:
        """Compact now, as asked."""
        return await self.compaction.compact(TENANT, conversation_id, CompactionRequest(**ask))

    async def receipt(self, conversation_id: str, compaction_id: str | None = None) -> Receipt:
        """Return a receipt as it is stored, by default the active one."""
        compaction_id = compaction_id or (await self.stored(conversation_id)).state.compaction_id
        async with self.database.session() as session:
            found = await session.contexts.find_receipt(conversation_id, compaction_id)
        assert found is not None
        return found

    async def events_of(self, conversation_id: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the type and data of each event except appends."""
        async with self.database.session() as session:
            page = await session.events.page(TENANT, conversation_id, Cursor(0, 0), 10_000)
        assert page is not None
        return [(it.type, dict(it.data)) for it in page.events if it.type != "appended"]

    async def undo(self, conversation_id: str) -> None:
        """Undo the active compaction."""
        active = (await self.receipt(conversation_id)).compaction_id
        await self.receipts.undo(TENANT, conversation_id, active)

    async def pin(
        self, conversation_id: str, seq: int, *, turn: bool = False, pinned: bool = True
    ) -> list[int]:
        """Pin the message with this seq."""
        message_id = (await self.messages(conversation_id))[seq - 1].id
        return await self.transcripts.pin(
            TENANT, conversation_id, message_id, whole_turn=turn, pinned=pinned
        )

    async def unpin(self, conversation_id: str, seq: int) -> list[int]:
        """Unpin the message with this seq."""
        return await self.pin(conversation_id, seq, pinned=False)

    async def bodies(self, conversation_id: str) -> list[str]:
        """Return the log as it is stored, in order."""
        return [message.body for message in await self.messages(conversation_id)]

    async def messages(self, conversation_id: str) -> Page[StoredMessage]:
        """Return the log as transcripts read it."""
        async with self.database.session() as session:
            return await session.log.page(conversation_id, 0, 10**9, "asc", 10_000)

    async def stored(self, conversation_id: str) -> Conversation:
        """Return the conversation as it is stored."""
        async with self.database.session() as session:
            return await session.conversations.get(TENANT, conversation_id)


@dataclass
class Build:
    """A build's answer as a client reads it."""

    raw: dict[str, Any]

    def __post_init__(self) -> None:
        self.text: bytes = orjson.dumps(self.raw["payload"])
        self.payload: dict[str, Any] = json.loads(self.text)

    def __getitem__(self, name: str) -> Any:
        return self.raw[name] if name in self.raw else self.raw["diagnostics"][name]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The payload's messages, cache marks left out."""
        found: list[dict[str, Any]] = unmarked(self.payload["messages"])
        return found

    @property
    def stable(self) -> list[dict[str, Any]]:
        """The items promised to stay."""
        return self.messages[: self["stable_items"]]

    @property
    def contents(self) -> str:
        """All the payload's text, for looking whether something is in it."""
        return json.dumps(self.payload, ensure_ascii=False)

    def count(self) -> int:
        """Count the payload from scratch: system, tools and messages."""
        count, messages = TOKENIZER.count, self.messages
        system = [block["text"] for block in self.payload.get("system", [])]
        is_chat = self["format"] == CHAT
        if is_chat and messages[0]["role"] == "system" and self["budget"].system_prompt:
            state, *messages = messages
            system = [state["content"]]
        total = count_payload_messages(FormatName(self["format"]), messages, count)
        if system:
            total += count_system("\n\n".join(system), count)
        tools = [parse_tool(raw, "") for raw in self.payload.get("tools", [])]
        return total + estimate_tool_defs_tokens(tools, count)


def unmarked(value: Any) -> Any:
    """Return a payload's value without its cache marks."""
    match value:
        case dict():
            return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
        case list():
            return [unmarked(item) for item in value]
        case _:
            return value


def user(text: str) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    """Return an assistant message."""
    return {"role": "assistant", "content": text}


def asks(*call_ids: str) -> dict[str, Any]:
    """Return an assistant message that calls a tool under each id."""
    function = {"name": "read_file", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, content: Any = "done") -> dict[str, Any]:
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


async def _no_sleep(_: float) -> None:
    """Retry at once."""

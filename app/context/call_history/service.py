"""Reads the epochs and the reported calls of a conversation, in the order of time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.common.pages import Page
from app.context.usage.repository import UsageRepository
from app.conversations.epoch import PastEpoch
from app.conversations.lookup import get_conversation
from app.conversations.reported_usage import UsageReport
from app.repositories import Database

_Item = TypeVar("_Item")


class CallHistoryService:
    """Reads pages of epochs and of reports; each raises NotFound for an unknown conversation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def epochs(
        self, tenant_id: str, conversation_id: str, limit: int, before: str | None
    ) -> Page[PastEpoch]:
        """Return epochs, the newest first, starting after the one with the id `before`."""
        return await self._page(
            tenant_id, conversation_id, lambda usage: usage.epochs(conversation_id, limit, before)
        )

    async def reports(
        self, tenant_id: str, conversation_id: str, limit: int, before: str | None
    ) -> Page[UsageReport]:
        """Return reports, the newest first, starting after the one with the id `before`."""
        return await self._page(
            tenant_id, conversation_id, lambda usage: usage.page(conversation_id, limit, before)
        )

    async def _page(
        self,
        tenant_id: str,
        conversation_id: str,
        read: Callable[[UsageRepository], Awaitable[Page[_Item]]],
    ) -> Page[_Item]:
        async with self._database.session() as session:
            await get_conversation(session, tenant_id, conversation_id, None)
            return await read(session.usage)

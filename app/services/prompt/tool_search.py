"""Tool search: which of a conversation's tools match a query, promoted for the turn (H2).

1. Every tool of the conversation is searched, held back or not, with those that came with its
   newest build and those that the search itself brings.
2. What is found is promoted, where the message that tells of it does not do that by itself: the
   next payloads of the turn have it.
"""

from __future__ import annotations

from app.domain.common import json_text
from app.domain.common.errors import NotFound
from app.domain.prompt.resolved_settings import RequestSettings
from app.domain.prompt.tool_deferral import USUALLY_FOUND, Found
from app.services.ports import Database, Ranking
from app.services.prompt.settings_resolver import SettingsResolver


class ToolSearchService:
    """Finds tools and promotes them."""

    def __init__(self, database: Database, resolver: SettingsResolver, ranking: Ranking) -> None:
        self._database = database
        self._frames = resolver
        self._ranking = ranking

    async def search(
        self,
        tenant_id: str,
        conversation_id: str,
        query: str,
        limit: int = USUALLY_FOUND,
        tools: str = "[]",
        *,
        promotes: bool = True,
    ) -> Found:
        """Return the definitions that match, best first, and promote them.

        `tools` is JSON: definitions that are not stored, which replace stored ones of their name.
        Raises NotFound, or ValidationError for what is no definition.
        """
        async with self._database.session() as records:
            conversation = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
            if conversation is None:
                raise NotFound.conversation(conversation_id)
            sent = await records.contexts.newest_tools(conversation_id)
        given = tools if sent is None else _joined(sent, tools)
        resolved = await self._frames.of(conversation, RequestSettings(tools=given))
        names = await self._ranking.rank(query, resolved.tools, limit, key=resolved.tools_hash)
        promoted = conversation.state.promoted_now
        if promotes and not set(names) <= set(promoted):
            async with self._database.session() as records:
                promoted = await records.log.promote(conversation_id, names)
        by_name = {tool.name: tool for tool in resolved.tools}
        return Found(tuple(by_name[name] for name in names), len(resolved.tools), promoted)


def _joined(sent: str, given: str) -> str:
    if given == "[]":
        return sent
    return json_text.dumps([*json_text.loads(sent), *json_text.loads(given)])

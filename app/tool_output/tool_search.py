"""Search in the tools of a conversation, and promotion of the matches [tools.search].

1. The search covers every tool of the conversation, deferred or not, the tools of its newest build,
   and the tools in the request.
2. Matches are promoted for the current turn, unless the tool message itself makes them available
   [tools.promotion].
"""

from __future__ import annotations

from app.common import json_text
from app.conversations.settings_resolver import SettingsResolver
from app.prompt.agent_tools import DEFAULT_TOOL_MATCHES, ToolSearchResult
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from app.tool_output.tool_ranking import ToolRanking


class ToolSearchService:
    """Searches tools and promotes the matches."""

    def __init__(
        self, database: Database, resolver: SettingsResolver, ranking: ToolRanking
    ) -> None:
        self._database = database
        self._resolver = resolver
        self._ranking = ranking

    async def search(
        self,
        tenant_id: str,
        conversation_id: str,
        query: str,
        limit: int = DEFAULT_TOOL_MATCHES,
        tools: str = "[]",
        *,
        promotes: bool = True,
    ) -> ToolSearchResult:
        """Return the matching definitions, best first, and promote them if `promotes`.

        `tools` is a JSON list of definitions, which replace stored ones of the same name. Raises
        NotFound, or ValidationError for an invalid definition.
        """
        async with self._database.session() as session:
            conversation = await self._resolver.find_conversation(
                session, tenant_id, conversation_id
            )
            built_tools = await session.contexts.newest_tools(conversation_id)
        searched = tools if built_tools is None else _joined(built_tools, tools)
        resolved = await self._resolver.of(conversation, RequestSettings(tools=searched))
        names = await self._ranking.rank(query, resolved.tools, limit, key=resolved.tools_hash)
        promoted = conversation.state.promoted_now
        if promotes and not set(names) <= set(promoted):
            async with self._database.session() as session:
                promoted = await session.log.promote(conversation_id, names)
        by_name = {tool.name: tool for tool in resolved.tools}
        return ToolSearchResult(
            tuple(by_name[name] for name in names), len(resolved.tools), promoted
        )


def _joined(built: str, requested: str) -> str:
    if requested == "[]":
        return built
    return json_text.dumps([*json_text.loads(built), *json_text.loads(requested)])

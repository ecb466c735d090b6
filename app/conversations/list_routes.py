"""`/sections` and `/tools` of agents and conversations: lists with versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request

from app.common.errors import Conflict
from app.conversations.agents.service import AgentService
from app.conversations.service import ConversationService
from app.conversations.settings import SettingsList
from app.http.dependencies import services, tenant_of
from app.http.errors import problems_of
from app.prompt.section_schemas import (
    SectionList,
    ShownSections,
    ShownTools,
    ToolList,
    Version,
    sections_answer,
    sections_to_store,
    tools_answer,
)

_REPLACE = """\
Replace its own {kind}; the next build starts a new epoch.

A list that differs from the current one becomes a new version, and the newest 50 versions stay
readable. `409` when `expected_version` is not the newest version."""


def add_list_routes(
    router: APIRouter,
    path: str,
    resource: str,
    id_of: Callable[..., str],
    service_of: Callable[[Any], AgentService | ConversationService],
) -> None:
    """Add the routes of both lists of a resource.

    `path` is that of the resource, `resource` its name in operation ids, and `id_of` the dependency
    that reads its id from the path.
    """

    def add(
        kind: SettingsList,
        body_schema: type[SectionList | ToolList],
        answer_schema: type[ShownSections | ShownTools],
        shown: Callable[[str, int], ShownSections | ShownTools],
        list_description: str,
    ) -> None:
        owner = f"an {resource}" if resource == "agent" else f"a {resource}"

        @router.get(
            f"{path}/{kind}",
            operation_id=f"get_{resource}_{kind}",
            summary=f"Read {owner}'s {kind}",
            description=f"Return its own {list_description}, without inherited ones.",
            response_model=answer_schema,
        )
        async def get_list(
            request: Request, resource_id: str = Depends(id_of), version: Version = None
        ) -> ShownSections | ShownTools:
            service = service_of(services(request))
            found = await service.get_list(tenant_of(request), resource_id, kind, version)
            return shown(found.body, found.version)

        async def put_list(
            request: Request, body: SectionList | ToolList, resource_id: str = Depends(id_of)
        ) -> ShownSections | ShownTools:
            items = (
                sections_to_store(body.sections) if isinstance(body, SectionList) else body.tools
            )
            found = await service_of(services(request)).set_list(
                tenant_of(request), resource_id, kind, items, body.expected_version
            )
            return shown(found.body, found.version)

        put_list.__annotations__["body"] = body_schema
        router.put(
            f"{path}/{kind}",
            operation_id=f"set_{resource}_{kind}",
            summary=f"Replace {owner}'s {kind}",
            description=_REPLACE.format(kind=kind),
            response_model=answer_schema,
            responses=problems_of(Conflict),
        )(put_list)

    add(SettingsList.SECTIONS, SectionList, ShownSections, sections_answer, "sections")
    add(SettingsList.TOOLS, ToolList, ShownTools, tools_answer, "tools as the caller gave them")

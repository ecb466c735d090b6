"""`/sections` and `/tools` of agents and conversations: lists with versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.http.bodies import Json, MalformedJson
from app.api.http.dependencies import Services, services, tenant_of
from app.api.http.errors import problems_of
from app.api.prompt.section_schemas import (
    SectionList,
    ShownSections,
    ShownTools,
    ToolList,
    Version,
    given,
    shown_sections,
    shown_tools,
)
from app.domain.common.errors import (
    Conflict,
    NotFound,
    PayloadTooLarge,
    ServiceUnavailable,
    ValidationError,
)
from app.domain.conversations.settings import SettingsList
from app.services.conversations.agents import AgentService
from app.services.conversations.conversations import ConversationService

READ_ERRORS = problems_of(NotFound, ServiceUnavailable)
WRITE_ERRORS = problems_of(
    NotFound, ValidationError, MalformedJson, PayloadTooLarge, ServiceUnavailable
)


def add_list_routes(
    router: APIRouter,
    path: str,
    kind: str,
    id_of: Callable[..., str],
    service_of: Callable[[Services], AgentService | ConversationService],
) -> None:
    """Add the four routes of a resource's lists.

    `path` is that of the resource, `kind` its name in operation ids, and `id_of` the dependency
    that reads its id from the path.
    """
    owner = f"an {kind}" if kind == "agent" else f"a {kind}"
    get_options: dict[str, Any] = {"responses": READ_ERRORS | problems_of(ValidationError)}
    put_options: dict[str, Any] = {"responses": WRITE_ERRORS | problems_of(Conflict)}

    @router.get(
        f"{path}/sections",
        operation_id=f"get_{kind}_sections",
        summary=f"Read {owner}'s sections",
        response_model=ShownSections,
        **get_options,
    )
    async def get_sections(
        request: Request, resource_id: str = Depends(id_of), version: Version = None
    ) -> Response:
        """Return its own sections, without inherited ones."""
        found = await service_of(services(request)).get_list(
            tenant_of(request), resource_id, SettingsList.SECTIONS, version
        )
        return Json(shown_sections(found.body, found.version))

    @router.put(
        f"{path}/sections",
        operation_id=f"set_{kind}_sections",
        summary=f"Replace {owner}'s sections",
        response_model=ShownSections,
        **put_options,
    )
    async def put_sections(
        request: Request, body: SectionList, resource_id: str = Depends(id_of)
    ) -> Response:
        """Replace its own sections; the next build starts a new epoch.

        A list that differs from the current one becomes a new version, and earlier versions stay
        readable. `409` when `expected_version` is not the newest version.
        """
        found = await service_of(services(request)).set_sections(
            tenant_of(request), resource_id, given(body.sections), body.expected_version
        )
        return Json(shown_sections(found.body, found.version))

    @router.get(
        f"{path}/tools",
        operation_id=f"get_{kind}_tools",
        summary=f"Read {owner}'s tools",
        response_model=ShownTools,
        **get_options,
    )
    async def get_tools(
        request: Request, resource_id: str = Depends(id_of), version: Version = None
    ) -> Response:
        """Return its own tools as the caller gave them, without inherited ones."""
        found = await service_of(services(request)).get_list(
            tenant_of(request), resource_id, SettingsList.TOOLS, version
        )
        return Json(shown_tools(found.body, found.version))

    @router.put(
        f"{path}/tools",
        operation_id=f"set_{kind}_tools",
        summary=f"Replace {owner}'s tools",
        response_model=ShownTools,
        **put_options,
    )
    async def put_tools(
        request: Request, body: ToolList, resource_id: str = Depends(id_of)
    ) -> Response:
        """Replace its own tools; the next build starts a new epoch.

        A list that differs from the current one becomes a new version, and earlier versions stay
        readable. `409` when `expected_version` is not the newest version.
        """
        found = await service_of(services(request)).set_tools(
            tenant_of(request), resource_id, body.tools, body.expected_version
        )
        return Json(shown_tools(found.body, found.version))

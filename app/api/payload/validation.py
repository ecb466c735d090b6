"""`/v1/context/validate`: payloads against the rules of their providers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.http.bodies import Json, MalformedJson
from app.api.http.dependencies import services, tenant_of
from app.api.http.errors import problems_of
from app.api.http.routing import WireRoute
from app.api.payload.validation_schemas import PayloadCheck, PayloadVerdict
from app.domain.common.errors import PayloadTooLarge, ServiceUnavailable, ValidationError
from app.services.payload.validation import ValidationRequest

router = APIRouter(route_class=WireRoute, tags=["stateless"])


@router.post(
    "/v1/context/validate",
    summary="Validate a payload",
    response_model=PayloadVerdict,
    responses=problems_of(ValidationError, MalformedJson, PayloadTooLarge, ServiceUnavailable),
)
async def validate_payload(request: Request, body: PayloadCheck) -> Response:
    """Return which rules of its provider a payload breaks, and where; nothing is stored.

    The payload may come from anywhere. With `model`, its size is compared with the model's context
    window. With `previous`, it has to extend the payload of the build before. A payload without a
    list of items is `422`.
    """
    check = ValidationRequest(**dict(body))
    return Json(await services(request).validation.validate(tenant_of(request), check))

"""Schemas of the first page."""

from __future__ import annotations

from pydantic import Field

from app.http.fields import ResponseSchema, examples


class ServiceLinks(ResponseSchema):
    """The version of the service, and the paths to start from."""

    model_config = examples(
        {
            "name": "Context Service",
            "version": "0.1.0",
            "inspector": "/inspector",
            "docs": "/docs",
            "openapi": "/openapi.json",
            "health": "/healthz",
            "readiness": "/readyz",
        }
    )

    name: str = Field(description="Name of the service.")
    version: str = Field(description="Version of the service.")
    inspector: str = Field(description="Path of the inspector, for a browser.")
    docs: str = Field(description="Path of the API reference, for a browser.")
    openapi: str = Field(description="Path of the OpenAPI document.")
    health: str = Field(description="Path of the liveness check.")
    readiness: str = Field(description="Path of the readiness check.")

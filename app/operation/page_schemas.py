"""Schemas of the first page."""

from __future__ import annotations

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

    name: str
    """Name of the service."""
    version: str
    """Version of the service."""
    inspector: str
    """Path of the inspector, for a browser."""
    docs: str
    """Path of the API reference, for a browser."""
    openapi: str
    """Path of the OpenAPI document."""
    health: str
    """Path of the liveness check."""
    readiness: str
    """Path of the readiness check."""

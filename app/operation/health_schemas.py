"""Schemas of health."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from app.http.fields import ResponseSchema


class Health(ResponseSchema):
    """The service is healthy."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"]
    """Always `ok`."""


class Ready(Health):
    """The service can serve."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok", "degraded": []}]})

    degraded: list[str]
    """What does not work: `summarizer_without_key` if the key of the configured summarizer is
    missing."""

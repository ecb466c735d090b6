"""What every list and every deletion answers."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import ConfigDict, Field

from app.api.schemas.fields import Answered

Item = TypeVar("Item")


class Page(Answered, Generic[Item]):
    """One page of a list."""

    data: list[Item] = Field(description="The items of this page.")
    next_cursor: str | None = Field(
        description="Send it as `cursor` for the next page; null on the last one."
    )


class Deleted(Answered):
    """What a deletion took with it (A7)."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"deleted": {"conversations": 1, "messages": 42}}]}
    )

    deleted: dict[str, int] = Field(description="Rows deleted, by table.")

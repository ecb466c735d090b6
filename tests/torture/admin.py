"""What an operator does meanwhile: keys and tenants, by the work of the commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any, TypeVar

from app.common.errors import ServiceUnavailable
from app.settings import Settings
from tests import keys
from tests.commands import settings_from

T = TypeVar("T")

KNOWN_SECONDS = 12.0
"""After this time every process knows of a change, if it has its database."""
_PATIENCE_SECONDS = 60.0
_pause = Event()


@dataclass(frozen=True, slots=True)
class Admin:
    """Commands on the database at `url`; one that meets no database is repeated."""

    url: str

    def create_key(self, tenant: str, *, read_only: bool = False) -> str:
        """Return a new key."""
        return self._do(
            lambda settings: keys.create(tenant, "torture", None, settings, read_only=read_only)
        )

    def revoke_key(self, key: str) -> None:
        """Revoke a key."""
        self._do(lambda settings: keys.revoke(_id_of(key), settings))

    def _do(self, work: Callable[[Settings], Coroutine[Any, Any, T]]) -> T:
        settings = settings_from({"CONTEXT_DATABASE_URL": self.url})
        deadline = monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return asyncio.run(work(settings))
            except ServiceUnavailable:
                if monotonic() > deadline:
                    raise
                _pause.wait(0.2)


def _id_of(key: str) -> str:
    return key.split("_")[1]

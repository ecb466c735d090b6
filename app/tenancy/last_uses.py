"""When keys were last used: noted in memory, and written at most once a minute and at shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from datetime import datetime

from app.common.errors import ServiceUnavailable
from app.repositories import Database

WRITE_SECONDS = 60.0
"""How long uses are noted before they are written."""

_log = logging.getLogger("app.cli.api_keys")


class LastUses:
    """Notes the last uses of keys, and writes them later."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        *,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._database = database
        self._now = now
        self._write_seconds = write_seconds
        self._used: dict[str, datetime] = {}
        self._closing = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def note(self, key_id: str) -> None:
        """Note a use, and schedule the write."""
        self._used[key_id] = self._now()
        if self._writing is None or self._writing.done():
            # The write belongs to no request, so it gets a context of its own.
            self._writing = asyncio.create_task(self._write_later(), context=Context())

    async def close(self) -> None:
        """Write what is noted."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.wait({self._writing})
        self._closing.clear()

    async def _write_later(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._write_seconds):
                await self._closing.wait()
        used, self._used = self._used, {}
        try:
            async with self._database.session() as session:
                await session.keys.set_last_used(used)
        except ServiceUnavailable:
            self._used = used | self._used  # written with the next use
        except Exception as error:  # an unexpected error here must not fail requests
            data = {"error": type(error).__name__, "keys": len(used)}
            _log.error("last_uses_not_written", extra={"data": data})

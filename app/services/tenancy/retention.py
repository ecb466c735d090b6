"""Forgetting what has had its time, again and again, in the background (operation).

1. Every round goes in small statements, so that no append waits for it. What a round does not
   reach, because the database is away or the process ends, the next one does.
2. Two workers may do it at once: what one has taken, the other does not find.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from app.domain.common.errors import ServiceUnavailable
from app.domain.tenancy.retention import RetainedKind, Retention
from app.services.ports import Database

_BATCH = 5_000
_WALK_BATCH = 500
_FIRST = "00000000-0000-0000-0000-000000000000"

RemoveIdle = Callable[[str, str, datetime], Awaitable[bool]]
"""Takes tenant, conversation and time, and deletes it if it is idle since then."""


_log = logging.getLogger("app.retention")


class RetentionService:
    """Forgets."""

    def __init__(
        self,
        database: Database,
        retention: Retention,
        remove_idle: RemoveIdle,
        now: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._retention = retention
        self._remove_idle = remove_idle
        self._now = now

    async def forget_due(self) -> Mapping[str, int]:
        """Forget whatever is old enough; returns how much that was of each kind.

        Raises ServiceUnavailable where conversations cannot be looked at, with the rest done.
        """
        gone: Counter[str] = Counter()
        for kind, age in self._retention.aged.items():
            try:
                gone[kind] = await self._forget(kind, self._now() - age)
            except ServiceUnavailable as error:
                _not_forgotten(kind.value, error)
        if self._retention.conversations is not None:
            before = self._now() - self._retention.conversations
            gone["conversations"] = await self._forget_conversations(before)
        return +gone

    async def _forget(self, kind: RetainedKind, before: datetime) -> int:
        gone, taken = 0, _BATCH
        while taken == _BATCH:
            async with self._database.session() as records:
                taken = await records.retention.forget(kind, before, _BATCH)
            gone += taken
        return gone

    async def _forget_conversations(self, before: datetime) -> int:
        gone, after = 0, _FIRST
        while True:
            async with self._database.session() as records:
                page = await records.retention.walk(after, before, _WALK_BATCH)
            if not page:
                return gone
            for tenant_id, conversation_id, is_idle in page:
                if not is_idle:
                    continue
                try:
                    gone += await self._remove_idle(tenant_id, conversation_id, before)
                except ServiceUnavailable as error:  # the others must not wait for this one
                    _not_forgotten(conversation_id, error)
            after = page[-1][1]


def _not_forgotten(what: str, error: ServiceUnavailable) -> None:
    data = {"what": what, "reason": error.facts.get("reason")}
    _log.warning("not_forgotten", extra={"data": data})

"""Shares of what a process can do at once, so that one tenant leaves some of it to others.

The shares are of one process: others know nothing of what is under way here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.domain.common.errors import RateLimited, ServiceUnavailable

RETRY_SECONDS = 5


class Shares:
    """Places for something that lasts: so many in all, and so many for each tenant.

    `kind` is the word for it in errors, and `what` its plural in a sentence.
    """

    def __init__(self, kind: str, what: str, most: int, most_per_tenant: int) -> None:
        self._kind = kind
        self._what = what
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._taken: Counter[str] = Counter()

    def require_place(self, tenant_id: str) -> None:
        """Raise RateLimited where the tenant has its share, ServiceUnavailable where all is taken.

        Who has its share is told so first: it is for that tenant to end something.
        """
        if self._taken[tenant_id] >= self._most_per_tenant:
            raise RateLimited(
                f"The {self._most_per_tenant} {self._what} that a tenant may have open at once in"
                " this process are taken",
                {
                    "limit": self._most_per_tenant,
                    "kind": self._kind,
                    "retry_after": RETRY_SECONDS,
                },
            )
        if self._taken.total() >= self._most:
            raise ServiceUnavailable(
                f"All {self._most} {self._what} of this process are taken",
                {"reason": f"too_many_{self._kind}", "retry_after": RETRY_SECONDS},
            )

    @contextmanager
    def held(self, tenant_id: str) -> Iterator[None]:
        """Hold a place for the block; raises as `require_place` does."""
        self.require_place(tenant_id)
        self.take(tenant_id)
        try:
            yield
        finally:
            self.give_back(tenant_id)

    def take(self, tenant_id: str) -> None:
        """Take a place, whether there is one or not."""
        self._taken[tenant_id] += 1

    def give_back(self, tenant_id: str) -> None:
        """Give a place back."""
        self._taken[tenant_id] -= 1
        if not self._taken[tenant_id]:
            del self._taken[tenant_id]

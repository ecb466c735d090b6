"""Limits of concurrent work in one process: in total, and for each tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.domain.common.errors import RateLimited, ServiceUnavailable

RETRY_SECONDS = 5


class TenantShares:
    """Counts concurrent work of one kind, and refuses work over the limits.

    `kind` is its name in the facts of errors, `plural` its name in messages.
    """

    def __init__(self, kind: str, plural: str, max_total: int, max_per_tenant: int) -> None:
        self._kind = kind
        self._plural = plural
        self._max_total = max_total
        self._max_per_tenant = max_per_tenant
        self._in_use: Counter[str] = Counter()

    def check_limits(self, tenant_id: str) -> None:
        """Raise RateLimited at the tenant's limit, or ServiceUnavailable at the total limit.

        The tenant's limit is checked first, because the tenant itself can end some of its work.
        """
        if self._in_use[tenant_id] >= self._max_per_tenant:
            raise RateLimited(
                f"The limit of {self._max_per_tenant} {self._plural} at once per tenant and process"
                " is reached",
                {"limit": self._max_per_tenant, "kind": self._kind, "retry_after": RETRY_SECONDS},
            )
        if self._in_use.total() >= self._max_total:
            raise ServiceUnavailable(
                f"All {self._max_total} {self._plural} of this process are in use",
                {"reason": f"too_many_{self._kind}", "retry_after": RETRY_SECONDS},
            )

    @contextmanager
    def acquire(self, tenant_id: str) -> Iterator[None]:
        """Count the work during the block; raises as `check_limits` does."""
        self.check_limits(tenant_id)
        self.take(tenant_id)
        try:
            yield
        finally:
            self.release(tenant_id)

    def take(self, tenant_id: str) -> None:
        """Count one more, without a check of the limits."""
        self._in_use[tenant_id] += 1

    def release(self, tenant_id: str) -> None:
        """Count one less."""
        self._in_use[tenant_id] -= 1
        if not self._in_use[tenant_id]:
            del self._in_use[tenant_id]

"""The limit of tokens that a tenant's messages and questions may send to an embedding model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from app.domain.models.embeddings import EmbeddingCall, Embeddings
from app.domain.tenancy.quotas import QuotaKind, TenantLimits
from app.services.ports import Database, EmbeddingGateway
from app.services.tenancy.spending import Spending


class EmbeddingQuota:
    """A gateway that counts the tokens of each tenant and refuses calls beyond the limit."""

    def __init__(
        self,
        gateway: EmbeddingGateway,
        database: Database,
        limits_of: Callable[[str], Awaitable[TenantLimits]],
        now: Callable[[], datetime],
    ) -> None:
        self._gateway = gateway
        self._spending = Spending(QuotaKind.EMBEDDING_TOKENS, database, limits_of, now)

    async def embed(self, call: EmbeddingCall) -> Embeddings:
        """Return the model's vectors; raises ServiceUnavailable when refused or failed."""
        await self._spending.add(call.tenant_id, call.tokens)
        return await self._gateway.embed(call)

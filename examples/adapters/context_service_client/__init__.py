"""The Context Service for Python: its client. Each adapter is a module of its own."""

from context_service_client.service import (
    AsyncContextClient,
    Built,
    ContextClient,
    ContextServiceError,
    uuid_of,
)

__all__ = ["AsyncContextClient", "Built", "ContextClient", "ContextServiceError", "uuid_of"]

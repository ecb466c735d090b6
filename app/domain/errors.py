"""What can go wrong, in the words a caller can act on (requirements M).

ContextError
├── ValidationError        the request says something that cannot be
├── NotFound               no such thing for this tenant
├── Conflict               the request was right once, but the state has moved on
│   └── UnpairedToolResult a tool result that answers no open call
├── ContextLimitUnknown    nobody knows the model's window
├── ContextOverflow        even the smallest valid payload is over the window
├── PayloadTooLarge        a body, batch or message over its limit
├── Gone                   it existed, and was collected
├── Unauthenticated, Forbidden, RateLimited
└── ServiceUnavailable     the database or the model does not answer

The domain knows no HTTP: `app/api/errors.py` holds the status table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a request, at a place in its JSON body.

    `pointer` is an RFC 6901 JSON pointer such as `/messages/3/tool_calls/0/id`.
    """

    pointer: str
    detail: str


@dataclass(eq=False)
class ContextError(Exception):
    """An answer that is not a result; `code` is the stable word for it."""

    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    code: ClassVar[str] = "INTERNAL"

    def __str__(self) -> str:
        return self.detail


@dataclass(eq=False)
class ValidationError(ContextError):
    """`problems` lists every place that is wrong, when the place is known."""

    problems: tuple[Problem, ...] = ()
    code: ClassVar[str] = "VALIDATION_ERROR"

    @classmethod
    def at(cls, pointer: str, detail: str) -> ValidationError:
        """Return the error for a single place in the body."""
        return cls(detail, problems=(Problem(pointer, detail),))


class NotFound(ContextError):
    """No such thing, or it belongs to another tenant."""

    code: ClassVar[str] = "NOT_FOUND"

    @classmethod
    def conversation(cls, conversation_id: str) -> NotFound:
        """Return the error for a conversation that this tenant does not have."""
        return cls(f"No conversation {conversation_id}", {"conversation_id": conversation_id})

    @classmethod
    def agent(cls, agent_id: str) -> NotFound:
        """Return the error for an agent that this tenant does not have."""
        return cls(f"No agent {agent_id!r}", {"agent_id": agent_id})


class Conflict(ContextError):
    """The state moved on; `facts` holds what the caller needs to try again."""

    code: ClassVar[str] = "CONFLICT"


class UnpairedToolResult(Conflict):
    """A tool result that answers no open call of its conversation (A3)."""

    code: ClassVar[str] = "UNPAIRED_TOOL_RESULT"


class ContextLimitUnknown(ContextError):
    """The model is in no registry and no window was given (C2)."""

    code: ClassVar[str] = "CONTEXT_LIMIT_UNKNOWN"


class ContextOverflow(ContextError):
    """No valid payload fits; `facts["budget"]` shows why (C4)."""

    code: ClassVar[str] = "CONTEXT_OVERFLOW"


class PayloadTooLarge(ContextError):
    """Over a size limit, which `facts["limit"]` names in bytes or items."""

    code: ClassVar[str] = "PAYLOAD_TOO_LARGE"


class Gone(ContextError):
    """It existed and was collected (F7)."""

    code: ClassVar[str] = "GONE"


class Unauthenticated(ContextError):
    """No usable key came with the request."""

    code: ClassVar[str] = "UNAUTHENTICATED"


class Forbidden(ContextError):
    """The key is known, and may not do this."""

    code: ClassVar[str] = "FORBIDDEN"


class RateLimited(ContextError):
    """Too many requests; `facts["retry_after"]` is in seconds."""

    code: ClassVar[str] = "RATE_LIMITED"


class ServiceUnavailable(ContextError):
    """The database or a model does not answer; nothing was changed (E9)."""

    code: ClassVar[str] = "SERVICE_UNAVAILABLE"

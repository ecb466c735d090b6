"""What can go wrong, in the words a caller can act on (requirements M).

ContextError
├── ValidationError        the request says something that cannot be
├── NotFound               no such thing for this tenant
├── Conflict               the request was right once, but the state has moved on
│   └── UnpairedToolResult a tool result that answers no open call
├── ContextLimitUnknown    nobody knows the model's window
├── ContextOverflow        even the smallest valid payload is over the window
├── PayloadTooLarge        a body, batch or message over its limit
│   └── StorageLimitReached        the tenant may not store so much
├── Gone                   it existed, and was collected
├── Unauthenticated, Forbidden, RateLimited
└── ServiceUnavailable     the database or the model does not answer
    └── InsufficientStorage the disk behind it is full

The domain knows no HTTP: `app/api/http/errors.py` holds the status table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

ModelSource = Literal["request", "conversation", "agent", "service"]
_NAMED: Mapping[ModelSource, str] = {
    "request": "the model of this request",
    "conversation": "the model of the conversation",
    "agent": "the model of the conversation's agent",
    "service": "the default model of the service",
}
_VERBS = frozenset({"is", "must", "cannot", "may", "has", "holds", "needs", "takes"})
_MAX_PLACE = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a request, at a place in its JSON body.

    `pointer` is an RFC 6901 JSON pointer such as `/messages/3/tool_calls/0/id`. A `detail` that
    begins with a verb says something of that place: `is required`.
    """

    pointer: str
    detail: str

    @property
    def sentence(self) -> str:
        """What is wrong as a sentence of its own, which needs no pointer beside it."""
        first, _, rest = self.detail.partition(" ")
        place = f"{self.pointer[:_MAX_PLACE]}…" if self.pointer[_MAX_PLACE:] else self.pointer
        if first.lower() in _VERBS:
            return f"{place or 'The body'} {first.lower()} {rest}"
        return f"{place}: {self.detail}" if place and first.islower() else self.detail


@dataclass(eq=False)
class ContextError(Exception):
    """An answer that is not a result; `code` is the stable word for it.

    `problems` lists every place of the request that is wrong, when the place is known.
    """

    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    code: ClassVar[str] = "INTERNAL"

    def __str__(self) -> str:
        return self.detail

    @property
    def sentence(self) -> str:
        """The detail, which names its place where it is but that of a single problem (M)."""
        match self.problems:
            case [only] if only.detail == self.detail:
                return only.sentence
            case _:
                return self.detail


class ValidationError(ContextError):
    """The request says something that cannot be."""

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

    @classmethod
    def of(cls, model: str | None, source: ModelSource | None) -> ContextLimitUnknown:
        """Return the error for a model that this source names, or for none at all."""
        if model is None or source is None:
            detail = "No model is named, and so no context window is known: name a model in the"
            return cls(f"{detail} conversation or its agent, or set budget.context_window")
        detail = (
            f"The context window of {model!r}, {_NAMED[source]}, is unknown: set"
            " budget.context_window in the policy, describe the model with"
            " PUT /v1/models/{model}, or set budget.on_unknown_model to derive"
        )
        places = (Problem("/model", detail),) if source == "request" else ()
        return cls(detail, {"model": model, "model_source": source}, places)


class ContextOverflow(ContextError):
    """No valid payload fits; `facts` has the `budget`, the `largest` parts, and `suggestions`."""

    code: ClassVar[str] = "CONTEXT_OVERFLOW"


class PayloadTooLarge(ContextError):
    """Over a size limit, which `facts["limit"]` names in bytes or items."""

    code: ClassVar[str] = "PAYLOAD_TOO_LARGE"


class StorageLimitReached(PayloadTooLarge):
    """The tenant may not store so much; `facts` say how much it may, and what is stored."""

    code: ClassVar[str] = "STORAGE_LIMIT"


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


class InsufficientStorage(ServiceUnavailable):
    """The disk of the database or of the object store is full; nothing was changed."""

    code: ClassVar[str] = "INSUFFICIENT_STORAGE"

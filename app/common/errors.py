"""Errors with what a caller needs to react.

ContextError
├── ValidationError         the request is invalid
├── NotFound                the tenant has no such resource
├── Conflict                the state has changed, or does not allow the request
│   └── UnpairedToolResult  a tool result without an open call
├── ContextLimitUnknown     the model's context window is unknown
├── ContextOverflow         the smallest valid payload exceeds the context window
├── PayloadTooLarge         a body, batch or message over its limit
├── Gone                    the resource was collected
├── Unauthenticated, Forbidden, RateLimited
└── ServiceUnavailable      the database or the model does not answer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

_VERBS = frozenset({"is", "must", "cannot", "may", "has", "holds", "needs", "takes"})
_MAX_POINTER_CHARS = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a request, at a place in its JSON body.

    `pointer` is an RFC 6901 JSON pointer such as `/messages/3/tool_calls/0/id`. It is the subject
    of a `detail` that begins with a verb: `is required`.
    """

    pointer: str
    detail: str

    @property
    def sentence(self) -> str:
        """The detail as a sentence, with the pointer as its subject: `/messages/0 is required`."""
        first_word, _, rest = self.detail.partition(" ")
        pointer = self.pointer
        if len(pointer) > _MAX_POINTER_CHARS:
            pointer = f"{pointer[:_MAX_POINTER_CHARS]}…"
        if first_word.lower() in _VERBS:
            return f"{pointer or 'The body'} {first_word.lower()} {rest}"
        return f"{pointer}: {self.detail}" if pointer and first_word.islower() else self.detail


@dataclass(eq=False)
class ContextError(Exception):
    """An error with a stable `code` and an HTTP `status`.

    `facts` are further fields of the error response; `problems` are the errors in the request.
    """

    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500

    def __init_subclass__(cls, code: str | None = None, status: int | None = None) -> None:
        super().__init_subclass__()
        cls.code, cls.status = code or cls.code, status or cls.status

    def __str__(self) -> str:
        return self.detail

    @property
    def sentence(self) -> str:
        """The detail, with the pointer if it is the detail of the only problem."""
        match self.problems:
            case [problem] if problem.detail == self.detail:
                return problem.sentence
            case _:
                return self.detail


class ValidationError(ContextError, code="VALIDATION_ERROR", status=422):
    """The request is invalid."""

    @classmethod
    def at(cls, pointer: str, detail: str) -> ValidationError:
        """Return the error for a single place in the body."""
        return cls(detail, problems=(Problem(pointer, detail),))


class NotFound(ContextError, code="NOT_FOUND", status=404):
    """The resource does not exist or belongs to another tenant."""

    @classmethod
    def conversation(cls, conversation_id: str) -> NotFound:
        """Return the error for a conversation that this tenant does not have."""
        return cls(f"No conversation {conversation_id}", {"conversation_id": conversation_id})

    @classmethod
    def agent(cls, agent_id: str) -> NotFound:
        """Return the error for an agent that this tenant does not have."""
        return cls(f"No agent {agent_id!r}", {"agent_id": agent_id})

    @classmethod
    def message(cls, message_id: str) -> NotFound:
        """Return the error for a message that its conversation does not have."""
        return cls(f"No message {message_id!r}", {"id": message_id})


class Conflict(ContextError, code="CONFLICT", status=409):
    """The state does not allow the request; `facts` has what the caller needs to try again."""


class UnpairedToolResult(Conflict, code="UNPAIRED_TOOL_RESULT"):
    """A tool result without an open call in its conversation."""


class ContextLimitUnknown(ContextError, code="CONTEXT_LIMIT_UNKNOWN", status=422):
    """The model's context window is unknown and the request has none."""

    @classmethod
    def of(cls, model: str | None, *, is_requested: bool) -> ContextLimitUnknown:
        """Return the error for a model, that of the request or a stored one, or without a model."""
        if model is None:
            detail = "No model is named, and so no context window is known: name a model in the"
            return cls(f"{detail} conversation or its agent, or set budget.context_window")
        detail = (
            f"The context window of {model!r} is unknown: set budget.context_window in the policy,"
            " describe the model with PUT /v1/models/{model}, or set budget.context_window to"
            " derive"
        )
        problems = (Problem("/model", detail),) if is_requested else ()
        return cls(detail, {"model": model}, problems)


class ContextOverflow(ContextError, code="CONTEXT_OVERFLOW", status=422):
    """No valid payload fits; `facts` has the `budget`."""


class PayloadTooLarge(ContextError, code="PAYLOAD_TOO_LARGE", status=413):
    """Over a size limit, which `facts["limit"]` names in bytes or items."""


class Gone(ContextError, code="GONE", status=410):
    """The content was collected or redacted."""


class Unauthenticated(ContextError, code="UNAUTHENTICATED", status=401):
    """The request has no valid key."""


class Forbidden(ContextError, code="FORBIDDEN", status=403):
    """The key does not permit the request."""


class RateLimited(ContextError, code="RATE_LIMITED", status=429):
    """Too many requests; `facts["retry_after"]` is in seconds."""


class ServiceUnavailable(ContextError, code="SERVICE_UNAVAILABLE", status=503):
    """The database or a model does not answer, or there is no room."""

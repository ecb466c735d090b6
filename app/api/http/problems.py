"""The shape of every error (M)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ProblemPlace(BaseModel):
    """One thing wrong with a request."""

    pointer: str = Field(
        description="JSON pointer into the body, or to a parameter: `/query/limit`."
    )
    detail: str = Field(description="What is wrong there.")


class ProblemAnswer(BaseModel):
    """An RFC 9457 problem; more fields say what a caller needs to try again."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:context-service:problem:conflict",
                    "title": "Conflict",
                    "status": 409,
                    "detail": "The log's head is 12, not 11",
                    "code": "CONFLICT",
                    "errors": [],
                    "request_id": "0199a1b2-3c4d-7e5f-8a9b-2f6b7c8d9e0f",
                    "head_seq": 12,
                    "expected_seq": 11,
                }
            ]
        },
    )

    type: str = Field(description="A name for this kind of problem.")
    title: str = Field(description="The kind of problem in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What happened this time.")
    code: str = Field(description="The stable word that programs look at.")
    errors: list[ProblemPlace] = Field(
        description="The places that are wrong, if known; of very many the first."
    )
    request_id: str = Field(
        description="The id of the request, as in `X-Request-Id` and in the log of the service."
    )

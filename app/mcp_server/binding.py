"""The conversation that an MCP client is bound to, by its URL or by a header."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.requests import Request

from app.common.errors import ValidationError
from app.common.ids import public_id_from

CONVERSATION = "conversation_id"
"""The URL parameter of a bound client, and the tool argument of an unbound one."""
CONVERSATION_HEADER = "Context-Conversation-Id"


def conversation_of(request: Request) -> str | None:
    """Return the conversation of a bound client, None for an unbound one.

    Raises ValidationError if the URL and the header differ.
    """
    named = [
        *request.query_params.getlist(CONVERSATION),
        # A header holds ASCII only: its id is percent-encoded like that of a path.
        *map(unquote, request.headers.getlist(CONVERSATION_HEADER)),
    ]
    if len({public_id_from(text) or text for text in named}) > 1:
        detail = f"{CONVERSATION} and {CONVERSATION_HEADER} name different conversations"
        raise ValidationError.at(f"/query/{CONVERSATION}", detail)
    return named[0] if named else None

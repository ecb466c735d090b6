"""Gemini contents.

1. Fields are read in camelCase and snake_case. Rendered fields are camelCase, except that parts
   which came from Gemini are replayed as they came.
2. A user content with k function responses is k tool messages and one user message with its other
   parts. `split` cuts the raw content in the same way.
3. A call without an id is identified by its name; the nth call of a name in one content has the id
   `name#n`. Responses without an id answer the open calls of their name in order. Such an id is
   never sent.
4. A response is an object: a text is sent as `output`, that of a failed tool as `error`. Media of
   results follow the responses of their content as parts, since not every model accepts them
   inside a response.
5. Signatures and signed thoughts are replayed verbatim or left out. Unsigned thoughts are always
   left out. The first call of a step gets the documented stand-in where it has no signature, in
   every turn and for every model, so that its bytes do not depend on what follows.
"""

from __future__ import annotations

from app.formats.gemini.fields import (
    RESULT_KEY,
    STAND_IN_SIGNATURE,
    response_json,
    response_name,
    signature_in,
    text_key,
    tool_media,
)
from app.formats.gemini.parsing import parse, results, split
from app.formats.gemini.rendering import adapt, for_payload, function_calls, render, tools_to_wire

__all__ = [
    "RESULT_KEY",
    "STAND_IN_SIGNATURE",
    "adapt",
    "for_payload",
    "function_calls",
    "parse",
    "render",
    "response_json",
    "response_name",
    "results",
    "signature_in",
    "split",
    "text_key",
    "tool_media",
    "tools_to_wire",
]

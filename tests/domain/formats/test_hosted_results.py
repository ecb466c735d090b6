"""Results of hosted tools, made from the types of the SDKs. [tools.hosted-results]"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typing_extensions
from anthropic.types.beta import BetaContentBlockParam
from openai.types.responses import ResponseInputItemParam

from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.models.tokens import count_message
from tests.domain.formats.sdk_fields import samples

anthropic = PROVIDERS[FormatName.ANTHROPIC]
openai_responses = PROVIDERS[FormatName.OPENAI_RESPONSES]

ANTHROPIC = (
    *("server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result"),
    *("web_fetch_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result"),
    *("text_editor_code_execution_tool_result", "tool_search_tool_result", "advisor_tool_result"),
)
RESPONSES = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "program", "program_output"),
)


def smallest(union: Any, kind: str) -> Any:
    """Return a value of a kind in a union of TypedDicts, with the required fields alone."""
    members = filter(typing_extensions.is_typeddict, typing_extensions.get_args(union))
    values: Iterator[Any] = (next(samples(member), ("", {}))[1] for member in members)
    return next(value for value in values if value.get("type") == kind)


@pytest.mark.parametrize("kind", [*ANTHROPIC, *RESPONSES])
def test_each_is_sent_back_as_it_came(kind: str) -> None:
    """It costs something, and other formats have a label."""
    own = FormatName.ANTHROPIC if kind in ANTHROPIC else FormatName.OPENAI_RESPONSES
    if kind in ANTHROPIC:
        block = smallest(BetaContentBlockParam, kind)
        content = [{"type": "text", "text": "I look."}, block]
        (message,) = anthropic.parse({"role": "assistant", "content": content}, "")
        assert json.dumps(block) in json.dumps(anthropic.render(message))
    else:
        item = smallest(ResponseInputItemParam, kind)
        (message,) = openai_responses.parse(item, "")
        assert openai_responses.render(message) == [item]
    assert count_message(message, len, own).total > len(kind)
    for other in set(FormatName) - {own}:
        texts = [getattr(part, "text", "") for part in PROVIDERS[other].adapt(message).parts]
        assert "[" in "".join(texts), (kind, other)

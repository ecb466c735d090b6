"""Results of hosted tools, made from the types of the SDKs. [tools.hosted-results]"""

from __future__ import annotations

import json
import typing
from typing import Any

import typing_extensions
from anthropic.types.beta import BetaContentBlockParam
from openai.types.responses import ResponseInputItemParam

from app.formats import PROVIDERS
from app.formats.message import FormatName, Message
from app.formats.registry import anthropic, openai_responses
from app.models.tokens import count_message
from tests.judge import check_type

ANTHROPIC = {
    *("server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result"),
    *("web_fetch_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result"),
    *("text_editor_code_execution_tool_result", "tool_search_tool_result", "advisor_tool_result"),
}
RESPONSES = {
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "program", "program_output"),
}


def smallest(hint: Any) -> Any:
    """Return a value of a hint of an SDK, with the required fields alone."""
    while typing_extensions.get_origin(hint) in (
        typing.Annotated,
        typing_extensions.Required,
        typing_extensions.NotRequired,
    ):
        hint = typing_extensions.get_args(hint)[0]
    origin: Any = typing_extensions.get_origin(hint)
    arguments = typing_extensions.get_args(hint)
    if typing_extensions.is_typeddict(hint):
        hints = typing_extensions.get_type_hints(hint, include_extras=True)
        origin_of: Any = typing_extensions.get_origin
        names = [key for key in hints if origin_of(hints[key]) is typing_extensions.Required]
        return {key: smallest(hints[key]) for key in names}
    if origin in (typing.Literal, typing_extensions.Literal):
        return arguments[0]
    if origin is typing.Union:
        return smallest(arguments[0])
    plain = {str: "text", int: 1, float: 0.5, bool: False, type(None): None, object: {}}
    return plain.get(hint, {} if origin is dict else [])


def samples(union: Any, kinds: set[str]) -> dict[str, Any]:
    """Return a value of each kind in a union of TypedDicts."""
    found = {}
    for member in typing_extensions.get_args(union):
        value = smallest(member) if typing_extensions.is_typeddict(member) else {}
        if value.get("type") in kinds:
            assert check_type(value, member) == []
            found[value["type"]] = value
    assert found.keys() == kinds
    return found


def check_labels(message: Message, format: FormatName, kind: str) -> None:
    """Check that the message costs something, and that other formats have a label."""
    assert count_message(message, len, format).total > len(kind)
    for other in set(FormatName) - {format}:
        texts = [getattr(part, "text", "") for part in PROVIDERS[other].adapt(message).parts]
        assert "[" in "".join(texts), (kind, other)


def test_blocks_of_anthropic() -> None:
    """Each is sent back as it came."""
    for kind, block in samples(BetaContentBlockParam, ANTHROPIC).items():
        content = [{"type": "text", "text": "I look."}, block]
        raw = {"role": "assistant", "content": content}
        (message,) = PROVIDERS[FormatName.ANTHROPIC].parse(raw, "")
        assert json.dumps(block) in json.dumps(anthropic.render(message))
        check_labels(message, FormatName.ANTHROPIC, kind)


def test_items_of_responses() -> None:
    """Each is sent back as it came."""
    for kind, item in samples(ResponseInputItemParam, RESPONSES).items():
        (message,) = PROVIDERS[FormatName.OPENAI_RESPONSES].parse(item, "")
        assert openai_responses.render(message) == [item]
        check_labels(message, FormatName.OPENAI_RESPONSES, kind)

"""Messages that the types of an SDK allow in a request are read, and can be sent again.

[formats.malformed-refused, payload.valid]
"""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import MessageParam
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam

from app.common.errors import ValidationError
from app.formats import PROVIDERS
from app.formats.message import FormatName, Message, clean
from app.formats.openai_responses.parsing import call_types
from app.formats.registry import anthropic, gemini, openai_chat, openai_responses
from tests.domain.formats.sdk_values import sdk_values
from tests.judge import judge

HINTS: dict[FormatName, Any] = {
    FormatName.OPENAI_CHAT: ChatCompletionMessageParam,
    FormatName.OPENAI_RESPONSES: ResponseInputItemParam,
    FormatName.ANTHROPIC: MessageParam,
}


def rendered(message: Message, format: FormatName) -> list[Any]:
    """Return a message as items of a format."""
    match format:
        case FormatName.OPENAI_CHAT:
            return [openai_chat.render(message, keep_reasoning=True)]
        case FormatName.OPENAI_RESPONSES:
            items = openai_responses.render(message, keep_reasoning=True)
            call_types(items)
            return items
        case FormatName.ANTHROPIC:
            role, blocks = anthropic.render(message, keep_reasoning=True)
            return [{"role": role, "content": blocks}]
        case FormatName.GEMINI:
            return [gemini.render(message, keep_reasoning=True)]


@pytest.mark.parametrize("format", HINTS)
@given(data=st.data())
def test_a_message_of_the_sdk_is_refused_or_rendered(format: FormatName, data: Any) -> None:
    """It crashes no format, and its own format sends nothing that the type does not allow."""
    raw = data.draw(sdk_values(HINTS[format]))
    try:
        messages = PROVIDERS[format].parse(raw, "/m")
    except ValidationError:
        return
    for message in map(clean, messages):
        for other in FormatName:
            items = rendered(message, other)
            if other is format:
                key = "input" if format is FormatName.OPENAI_RESPONSES else "messages"
                found = judge(format, {key: items})
                assert [finding for finding in found if finding.rule == "sdk-type"] == []

"""The providers by the name of their format, and batches of messages."""

from __future__ import annotations

import re
from typing import Final

from app.common.errors import Problem, ValidationError
from app.formats.anthropic import Anthropic
from app.formats.base import Provider
from app.formats.gemini import Gemini
from app.formats.message import FormatName
from app.formats.openai_chat import OpenAIChat
from app.formats.openai_responses import OpenAIResponses

openai_chat: Final = OpenAIChat()
openai_responses: Final = OpenAIResponses()
anthropic: Final = Anthropic()
gemini: Final = Gemini()
PROVIDERS: Final[dict[FormatName, Provider]] = {
    provider.name: provider for provider in (openai_chat, openai_responses, anthropic, gemini)
}
_GROUPED = re.compile(r"(.*?)/(\d+)/output/(\d+)(.*)", re.DOTALL)


def with_request_pointers(error: ValidationError) -> ValidationError:
    """Return an error about joined items with JSON pointers to the items of the request."""
    problems = tuple(
        Problem(_GROUPED.sub(_request_pointer, problem.pointer), problem.detail)
        for problem in error.problems
    )
    return ValidationError(error.detail, problems=problems)


def _request_pointer(match: re.Match[str]) -> str:
    start, first, offset, rest = match.groups()
    return f"{start}/{int(first) + int(offset)}{rest}"

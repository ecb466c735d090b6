"""A provider that is one subclass: its messages are appended, and payloads are built of them."""

from __future__ import annotations

import json
from typing import Any, cast

import orjson
import pytest

from app.context.rendering import RenderRequest, render_payload
from app.conversations.messages.draft import make_drafts
from app.conversations.messages.redactions import REDACTED, tombstone_of
from app.conversations.messages.row import LogRow
from app.conversations.view import WHOLE_VIEW
from app.formats import PROVIDERS
from app.formats.json_fields import Fields
from app.formats.message import FormatName, Message, Role, Text
from app.formats.openai_chat import OpenAIChat
from app.formats.tools import short_id
from app.models.tokens import count_payload_messages
from app.payload.assembler import Assembler
from app.payload.format_assemblers import assembler_of
from app.prompt.resolved_settings import NO_PAYLOAD_TOOLS
from app.prompt.sections import PromptSection
from tests.domain.histories import ANTHROPIC, CHAT, third
from tests.domain.payload.builders import resolved_of

DIALECT = cast("FormatName", "dialect")
"""A name that no member of the enumeration has."""
LONG_ID = "call_of_another_provider_that_is_long"


class Dialect(OpenAIChat):
    """The Chat format with short ids, no names, another limit and parts of its own."""

    name = DIALECT
    said_types = ("refusal", "reference")
    max_output_key = "max_tokens"
    litellm_providers = frozenset(("dialect",))

    def call_id(self, call_id: str) -> str:
        """Return nine letters and digits."""
        return short_id(call_id)

    def _sent_name(self, message: Message) -> str | None:
        return None


CITED = {"type": "reference", "reference_ids": [1, 2]}
ASK: dict[str, Any] = {"role": "user", "content": "Where is tea?", "name": "ann"}
CALL = {
    "id": LONG_ID,
    "type": "function",
    "function": {"name": "find", "arguments": '{"what": "tea"}'},
}
CALLING: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": LONG_ID, "content": "on the shelf"}
CITING: dict[str, Any] = {
    "role": "assistant",
    "content": [{"type": "text", "text": "On the shelf."}, CITED],
}
LOG = [(DIALECT, ASK), (DIALECT, CALLING), (DIALECT, RESULT), (DIALECT, CITING), (CHAT, ASK)]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, DIALECT, Dialect())


def rows() -> list[LogRow]:
    """Return the rows of the log as a build reads them that uses no stored items."""
    found = []
    for seq, (format, raw) in enumerate(LOG, 1):
        (draft,) = make_drafts(raw, format, third, "")
        made = draft.role, draft.tokens, 0, draft.call_ids
        found.append(LogRow(f"m{seq}", seq, *made, True, format, draft.body))
    return found


def assembled(format: FormatName) -> Assembler:
    """Return all rows assembled for a provider."""
    assembler = assembler_of(format)(WHOLE_VIEW, third)
    for row in rows():
        assembler.add(row)
    assembler.finish()
    return assembler


def items_in(format: FormatName) -> list[dict[str, Any]]:
    """Return the items of a payload of all rows."""
    return [json.loads(item) for item in assembled(format).items().wire_items]


def test_its_payload_has_its_ids_its_parts_and_no_names() -> None:
    """What differs from Chat is what the subclass says."""
    asked, calling, result, citing, again = items_in(DIALECT)
    assert asked == again == {"role": "user", "content": "ann: Where is tea?"}
    (call,) = calling["tool_calls"]
    assert call["id"] == result["tool_call_id"] == short_id(LONG_ID)
    assert citing["content"][0]["text"] == "On the shelf." and citing["content"][1] == CITED


def test_its_request_is_built_as_that_of_every_other() -> None:
    """System prompt, items and limit are rendered, and the tokens are those of the items."""
    section = PromptSection("base", "Serve tea.")
    items = assembled(DIALECT).items()
    request = RenderRequest(DIALECT, NO_PAYLOAD_TOOLS, "conversation")
    payload = render_payload(request, resolved_of([section], (), None), items)
    body = json.loads(orjson.dumps(payload.body))
    system, *messages = body["messages"]
    assert system == {"role": "system", "content": "Serve tea."}
    assert messages == items_in(DIALECT) and "max_completion_tokens" not in body
    assert body["max_tokens"] > 0
    assert items.tokens == count_payload_messages(DIALECT, messages, third)


def test_others_get_its_messages_without_what_only_it_has() -> None:
    """A label stands for its part; the ids and names are those of the other format."""
    for format in (CHAT, ANTHROPIC):
        sent = items_in(format)
        assert "reference_ids" not in str(sent) and "[reference]" in str(sent[3])
        assert LONG_ID in str(sent[1])
    assert items_in(CHAT)[0]["name"] == "ann"


def test_its_calls_are_executed_and_its_messages_redacted() -> None:
    """Calls of agent tools, their results and tombstones have its form."""
    provider = PROVIDERS[DIALECT]
    call = provider.read_call(Fields(CALL, ""))
    assert call.id == LONG_ID and call.fields.text("name") == "find"
    (answer,) = provider.parse(provider.result(call.id, "find", "shelf"), "")
    assert answer == Message(Role.TOOL, (Text("shelf"),), LONG_ID)
    tombstone = json.loads(tombstone_of(rows()[1])["body"] or "")
    assert tombstone["content"] == REDACTED and tombstone["tool_calls"][0]["id"] == LONG_ID
    assert [message.role for message in provider.parse(tombstone, "")] == [Role.ASSISTANT]

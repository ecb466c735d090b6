"""A whole session with the generated Python client, `context_service_api`.

It asks the service at `CONTEXT_URL`, with the key in `CONTEXT_API_KEY` where there is one.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, TypeVar

from context_service_api import AuthenticatedClient, Client
from context_service_api.api.agents import create_agent
from context_service_api.api.blobs import read_lines, upload_blob
from context_service_api.api.compactions import compact, list_compactions
from context_service_api.api.context import build_context, report_usage, stream_events
from context_service_api.api.conversations import (
    change_conversation,
    create_conversation,
    export_conversation,
    get_conversation,
    import_conversation,
    list_conversations,
)
from context_service_api.api.messages import (
    append_messages,
    get_message,
    list_messages,
    redact_message,
    search_messages,
)
from context_service_api.api.models import count_tokens
from context_service_api.api.snapshots import list_snapshots, save_conversation_snapshot
from context_service_api.api.usage import get_conversation_usage
from context_service_api.models import (
    AgentCreate,
    BudgetPolicyPatch,
    BuiltContext,
    CompactionRequest,
    CompactResult,
    ContextRequest,
    ConversationCreate,
    ConversationPatch,
    Known,
    MessageObject,
    MessagesAppend,
    Metadata,
    MetadataFilter,
    PolicyPatch,
    ProblemAnswer,
    RedactionRequest,
    Section,
    ShownMessage,
    SnapshotSave,
    StepAppend,
    StreamedEvent,
    TokensRequest,
    ToolObject,
    UsageObject,
    UsageRequest,
)
from context_service_api.types import File

Answer = TypeVar("Answer")

NOBODY = "00000000-0000-0000-0000-000000000000"

QUESTION = {"role": "user", "content": "What is the weather in Bergen?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Bergen"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Rain, 8 degrees."}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class Refused(Exception):
    """The service answered with a problem."""

    def __init__(self, problem: ProblemAnswer) -> None:
        super().__init__(f"{problem.status} {problem.code}: {problem.detail}")
        self.problem = problem


def good(answer: Answer | ProblemAnswer | None) -> Answer:
    """Return an answer that is no problem; raises Refused."""
    if isinstance(answer, ProblemAnswer):
        raise Refused(answer)
    assert answer is not None, "the client raises what the description does not know"
    return answer


def tell(*words: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(words))


def connected(url: str, key: str | None) -> Client | AuthenticatedClient:
    """Return a client that raises on statuses the description does not know."""
    if key is None:
        return Client(url, raise_on_unexpected_status=True)
    return AuthenticatedClient(url, token=key, raise_on_unexpected_status=True)


def append(client: Client | AuthenticatedClient, conversation_id: str, *messages: Any) -> int:
    """Append messages and return the new head of the log."""
    batch = MessagesAppend(messages=[MessageObject.from_dict(message) for message in messages])
    appended = good(append_messages.sync(conversation_id, client=client, body=batch))
    return appended.head_seq


def build(
    client: Client | AuthenticatedClient, conversation_id: str, ask: ContextRequest
) -> BuiltContext:
    """Return the payload for the next call."""
    return good(build_context.sync(conversation_id, client=client, body=ask))


def transcript(client: Client | AuthenticatedClient, conversation_id: str) -> list[ShownMessage]:
    """Return all messages of the log, read in pages of two."""
    messages: list[ShownMessage] = []
    cursor: str | None = None
    while True:
        page = good(list_messages.sync(conversation_id, client=client, limit=2, cursor=cursor))
        messages += page.data
        cursor = page.next_cursor
        if cursor is None:
            return messages


def events(client: Client | AuthenticatedClient, conversation_id: str) -> list[StreamedEvent]:
    """Return what happened so far; following the stream is for a reader of its own."""
    text = good(
        stream_events.sync(conversation_id, client=client, last_event_id_query="0.0", follow=False)
    )
    return events_in(text)


def events_in(text: str) -> list[StreamedEvent]:
    """Return the events of a stream."""
    lines = [line for line in text.splitlines() if line.startswith("data:")]
    return [StreamedEvent.from_dict(json.loads(line.removeprefix("data:"))) for line in lines]


def talk(client: Client | AuthenticatedClient) -> str:
    """Begin a conversation, build it in two formats, and go on with a delta."""
    agent = good(
        create_agent.sync(
            client=client,
            body=AgentCreate(
                name="Weather bot",
                model="gpt-4o",
                policy=PolicyPatch(budget=BudgetPolicyPatch(max_output_tokens=1024)),
                sections=[Section(name="base", content="You know the weather.")],
                tools=[ToolObject.from_dict(TOOL)],
            ),
        )
    )
    conversation = good(
        create_conversation.sync(
            client=client,
            body=ConversationCreate(
                agent_id=agent.agent_id, metadata=Metadata.from_dict({"city": "Bergen"})
            ),
        )
    )
    conversation_id = conversation.conversation_id
    tell("head", append(client, conversation_id, QUESTION, CALL, RESULT))

    chat = build(client, conversation_id, ContextRequest())
    tell("openai_chat", [item["role"] for item in chat.payload["messages"]], chat.pressure)
    claude = ContextRequest(format_="anthropic", model="claude-3-5-sonnet")
    other = build(client, conversation_id, claude)
    tell(
        "anthropic",
        [item["role"] for item in other.payload["messages"]],
        other.diagnostics.budget.context_window,
    )

    reply = MessageObject.from_dict({"role": "assistant", "content": "It rains, 8 degrees."})
    known = Known(build_id=chat.build_id)
    step = ContextRequest(known=known, append=StepAppend(messages=[reply]))
    delta = build(client, conversation_id, step)
    tell("delta", delta.delta, delta.base_items, delta.payload["messages"])

    counted = good(
        count_tokens.sync(client=client, body=TokensRequest(text="It rains.", model="gpt-4o"))
    )
    tell("tokens", counted.token_count, counted.counter)

    usage = UsageObject.from_dict({"prompt_tokens": 90, "completion_tokens": 10})
    call = UsageRequest(usage=usage, build_id=chat.build_id)
    good(report_usage.sync(conversation_id, client=client, body=call))
    bill = good(get_conversation_usage.sync(conversation_id, client=client))
    tell("usage", [[row.model, row.reported.total_tokens] for row in bill.data])
    return conversation_id


def reduce(client: Client | AuthenticatedClient, conversation_id: str) -> None:
    """Compact a longer conversation, and save its window."""
    for turn in range(12):
        words = f"Day {turn}: " + "rain, wind and some sun over the harbour. " * 20
        append(
            client,
            conversation_id,
            {"role": "user", "content": words},
            {"role": "assistant", "content": "Noted."},
        )
    result = good(compact.sync(conversation_id, client=client, body=CompactionRequest()))
    assert isinstance(result, CompactResult), "a job comes with wait=False only"
    receipts = good(list_compactions.sync(conversation_id, client=client)).data
    tell("compacted", result.compacted, [receipt.status for receipt in receipts])
    assert receipts[0].compaction_id == result.compaction_id
    tell("shown", sorted({item.visibility.state for item in transcript(client, conversation_id)}))

    saved = good(
        save_conversation_snapshot.sync(
            conversation_id, client=client, body=SnapshotSave(description="After the rain")
        )
    )
    snapshots = good(list_snapshots.sync(client=client, conversation_id=conversation_id)).data
    tell("snapshots", [snapshot.snapshot_id == saved.snapshot_id for snapshot in snapshots])

    in_bergen = MetadataFilter.from_dict({"metadata[city]": "Bergen"})
    listed = good(list_conversations.sync(client=client, metadata=in_bergen, limit=1)).data
    own = good(list_messages.sync(conversation_id, client=client, query="weather bergen")).data
    page = good(search_messages.sync(client=client, query="weather bergen", limit=100))
    tell("listed", [item.conversation_id == conversation_id for item in listed])
    # A worker has maybe not indexed the conversation yet.
    tell("found", 1 in [message.seq for message in own], len(page.data) <= 100)


def store(client: Client | AuthenticatedClient, conversation_id: str) -> None:
    """Upload an output, read a line of it, and see what happened."""
    output = File(payload=BytesIO(b"PASS test_one\nFAIL test_two\n"))
    blob = good(
        upload_blob.sync(conversation_id, client=client, body=output, tool_name="shell_exec")
    )
    lines = good(read_lines.sync(conversation_id, blob.id, client=client, offset=1, limit=1))
    tell("line", lines.text.strip().split("\t"))
    tell("events", sorted({event.type_ for event in events(client, conversation_id)}))


def move(client: Client | AuthenticatedClient, conversation_id: str) -> None:
    """Redact a message, copy the conversation to an id of our own, and let the copy expire."""
    result = transcript(client, conversation_id)[2]
    reason = RedactionRequest(reason="The user asked for it")
    good(redact_message.sync(conversation_id, result.id, client=client, body=reason))
    tell("redacted", good(get_message.sync(conversation_id, result.id, client=client))["content"])

    own_id = f"moved: {conversation_id}"
    export = good(export_conversation.sync(conversation_id, client=client))
    copy = good(import_conversation.sync(client=client, body=export, conversation_id=own_id))
    tell("imported", copy.conversation_id == own_id, copy.head_seq)
    patch = ConversationPatch(expires_at=datetime(2199, 1, 5, tzinfo=UTC))
    changed = good(change_conversation.sync(own_id, client=client, body=patch))
    tell("expires", changed.expires_at is not None)


def fail(client: Client | AuthenticatedClient) -> None:
    """Ask for what is not there, and for what cannot be."""
    for asked in (
        lambda: good(get_conversation.sync(NOBODY, client=client)),
        lambda: good(create_agent.sync(client=client, body=AgentCreate(name=""))),
    ):
        try:
            asked()
        except Refused as refused:
            problem = refused.problem
            tell("problem", problem.status, problem.code, [at.pointer for at in problem.errors])


if __name__ == "__main__":
    with connected(os.environ["CONTEXT_URL"], os.environ.get("CONTEXT_API_KEY")) as service:
        conversation = talk(service)
        reduce(service, conversation)
        store(service, conversation)
        move(service, conversation)
        fail(service)

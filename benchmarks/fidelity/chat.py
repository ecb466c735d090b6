"""A conversation of the served product that is compacted when it is asked to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.demo import Client
from benchmarks.fidelity.matching import flat
from benchmarks.fidelity.sessions import Message, content_texts
from benchmarks.stage import MODEL
from tests.payload_tokens import payload_texts

BATCH = 100
MAX_OUTPUT_TOKENS = 1_024
MIN_WINDOW = 128_000
EXTRACTIVE, SANDWICH = "extractive", "sandwich"


class Chat:
    """A stored conversation without a system prompt or tools, and its last payload."""

    def __init__(
        self, client: Client, tokens: int, strategy: str = SANDWICH, writer: str = EXTRACTIVE
    ) -> None:
        window = max(MIN_WINDOW, int(1.3 * tokens)) + MAX_OUTPUT_TOKENS
        policy = {
            "strategy": strategy,
            "agent_tools": "none",
            "budget": {"context_window": window, "max_output_tokens": MAX_OUTPUT_TOKENS},
            "compaction": {"auto": False, "model": writer, "retain_last_turns": 0},
        }
        self._client, self._path = client, "/v1/conversations"
        made = self.ask("POST", "", {"model": MODEL, "policy": policy})
        self._path += f"/{made['conversation_id']}"
        self._appended: set[str] = set()
        self.payload: Mapping[str, Any] = {}
        self.receipt: Mapping[str, Any] = {}

    def append(self, messages: Sequence[Message]) -> None:
        """Append messages, and remember their texts."""
        for start in range(0, len(messages), BATCH):
            self.ask("POST", "/messages", {"messages": messages[start : start + BATCH]})
        for message in messages:
            self._appended.update(content_texts(message))

    def compact(self, target: int) -> None:
        """Compact to so many tokens, and build; a target that cannot be reached is no error."""
        answer = self._client.send("POST", f"{self._path}/compact", {"target_tokens": target})
        if answer.accepted and answer.body["compacted"]:
            self.receipt = self.ask("GET", f"/compactions/{answer.body['compaction_id']}")
        self.payload = self.ask("POST", "/context", {})["payload"]

    @property
    def text(self) -> str:
        """All that a model reads of the last payload, flat."""
        return flat("\n".join(payload_texts({"messages": self.payload["messages"]})))

    @property
    def written(self) -> str:
        """The text of the payload's messages that were not appended."""
        return self._texts(is_appended=False)

    @property
    def verbatim(self) -> str:
        """The text of the payload's messages that were appended."""
        return self._texts(is_appended=True)

    def _texts(self, *, is_appended: bool) -> str:
        return "\n".join(
            text
            for message in self.payload["messages"]
            if message["role"] != "tool"
            for text in content_texts(message)
            if (text in self._appended) == is_appended
        )

    def ask(self, method: str, what: str, body: object = None) -> Any:
        """Send a request that must be accepted, and return its answer."""
        answer = self._client.send(method, self._path + what, body)
        if not answer.accepted:
            raise RuntimeError(f"{method} {self._path}{what}: {answer.reason}")
        return answer.body

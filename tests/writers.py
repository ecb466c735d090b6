"""Writers: threads that append to a conversation each, as a careful agent backend does.

1. Every message says something that no other one says. A request that was not acknowledged is sent
   again as it was, until it is.
2. A writer leaves between two requests, so that nothing it sent is left undecided.
3. A log is compared by what its messages say, since ids are unique by a constraint: what was
   acknowledged stands there as often as it was sent, what was not, no more often than that.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import sleep
from typing import Any, TypeVar

from app.cli.demo import Answer, Client, Unreachable
from tests.patience import PATIENCE_SECONDS

_PAUSE = 0.02
_SAID = ("role", "name", "content", "tool_calls", "tool_call_id")

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """How a log differs from what was sent: how many messages it lacks, and has too often.

    `unknown` ones were never sent like this: a message that was altered is lost and unknown.
    """

    lost: int = 0
    doubled: int = 0
    unknown: int = 0


def difference(
    acknowledged: Iterable[Message], log: Iterable[Message], unsure: Iterable[Message] = ()
) -> Difference:
    """Compare a log with what was sent; what is `unsure` had no answer, and may be there once."""
    sure, sent, there = (Counter(map(_said, some)) for some in (acknowledged, unsure, log))
    sent += sure
    surplus = there - sent
    doubled = sum(count for text, count in surplus.items() if sent[text])
    return Difference((sure - there).total(), doubled, surplus.total() - doubled)


def _said(message: Mapping[str, Any]) -> str:
    """Return what a message says, whatever it is called and wherever it stands."""
    said = {name: message[name] for name in _SAID if message.get(name) is not None}
    return json.dumps(said, sort_keys=True)


class Writer(threading.Thread):
    """Appends to a conversation of its own until it is told to leave, and remembers all of it.

    `unanswered` requests had no answer at all. `problems` are the answers that asked to come again,
    `refused` what was answered neither with a 2xx nor with 503.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.client = Client(url)
        self._is_told = threading.Event()
        self.sent: list[Message] = []
        self.acknowledged: dict[str, int] = {}
        self.unanswered = 0
        self.problems: list[Any] = []
        self.refused: list[str] = []
        made = self.client.send("POST", "/v1/conversations", {"model": "gpt-4o"})
        assert made.accepted, made.reason
        self.conversation_id: str = made.body["conversation_id"]
        self.path = f"/v1/conversations/{self.conversation_id}"

    def next_batch(self, number: int) -> list[Message]:
        """Return what to append after so many messages, each with an id."""
        raise NotImplementedError

    def append(self, batch: list[Message]) -> Answer | None:
        """Try once to append; None when nothing answers."""
        return self.send("/messages", {"messages": batch})

    def send(self, what: str, body: Mapping[str, Any]) -> Answer | None:
        """Post to the conversation, and note what came of it."""
        answer = None
        with suppress(Unreachable):
            answer = self.client.send("POST", self.path + what, body)
        if answer is None:
            self.unanswered += 1
        elif answer.status == 503:
            self.problems.append(answer.body)
        elif not answer.accepted:
            self.refused.append(f"{answer.status} {answer.body}")
        return answer

    def run(self) -> None:
        """Append until told to leave."""
        while not self._is_told.is_set():
            batch = self.next_batch(len(self.sent))
            self.sent += batch
            self._deliver(batch)
        self.client.close()

    def leave(self) -> None:
        """End once what is under way is acknowledged; only what was refused is given up."""
        self._is_told.set()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "A request was never acknowledged"

    def difference(self, log: Sequence[Message]) -> Difference:
        """Compare the log of its conversation with what it sent."""
        sure = [message for message in self.sent if message["id"] in self.acknowledged]
        unsure = [message for message in self.sent if message["id"] not in self.acknowledged]
        return difference(sure, log, unsure)

    def misplaced(self, log: Sequence[Message]) -> list[str]:
        """Return the ids that do not stand where the answer to their append said."""
        places = {message["id"]: message["seq"] for message in log}
        return [name for name, seq in self.acknowledged.items() if places.get(name) != seq]

    def _deliver(self, batch: list[Message]) -> None:
        while not (self._is_told.is_set() and self.refused):
            answer = self.append(batch)
            if answer is not None and answer.accepted:
                self.acknowledged |= {item["id"]: item["seq"] for item in answer.body["messages"]}
                return
            sleep(_PAUSE)


AnyWriter = TypeVar("AnyWriter", bound=Writer)


@contextmanager
def writing(writers: Sequence[AnyWriter]) -> Iterator[Sequence[AnyWriter]]:
    """Run writers; they leave in the end, whatever happens."""
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            with suppress(AssertionError):
                writer.leave()


def grown(writers: Sequence[Writer], messages: int) -> Callable[[], bool]:
    """Return whether every writer has had so many more messages acknowledged by now."""
    goals = [len(writer.acknowledged) + messages for writer in writers]

    def reached() -> bool:
        refused = [reason for writer in writers for reason in writer.refused]
        assert not refused, refused
        pairs = zip(writers, goals, strict=True)
        return all(len(writer.acknowledged) >= goal for writer, goal in pairs)

    return reached

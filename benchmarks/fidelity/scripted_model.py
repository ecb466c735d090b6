"""Scripted models that summarise: one keeps every statement that it is sent, one drops most.

1. Both know what is planted and look for it in the prompt, so nothing depends on how a prompt is
   laid out. Of the statements of one subject, the newest that the prompt has counts.
2. `faithful` lists all of them by kind; `dropping` leaves out instructions, rules and constraints,
   and half of the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Self

from benchmarks.fidelity.judge import content_texts
from benchmarks.fidelity.planted.generated import Session
from benchmarks.fidelity.planted.wording import Kind
from tests.fake_llm import Behaviour, FakeLLM, Request, completion_body
from tests.payload_tokens import text_tokens

MODELS = ("openai/faithful", "openai/dropping")
DROPPED = (Kind.SAFETY, Kind.CONSTRAINT, Kind.STANDING, Kind.STANDING_OTHER)
TODOS = "open todo items"
TAG_TOKENS = 60
NOTHING = "Nothing was said that matters."
FRAME_CHARS = 12
_SOURCE = re.compile(r"<(conversation|earlier_\w+|checklist)>(.*?)</\1>", re.DOTALL)


class ScriptedModel:
    """Answers with the planted statements of a prompt; counts calls and input tokens."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.figures: Counter[str] = Counter()
        self._lock, self._server = Lock(), FakeLLM()
        self._server.always(self._answer)
        self.api_base = self._server.api_base
        self._chains = {
            tuple(plant.text for plant in chain): str(chain[-1].kind)
            for session in sessions
            for chain in session.chains
        }
        self._todos = sorted({text for session in sessions for text in session.todos})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _answer(self, request: Request) -> Behaviour:
        body = request.body
        texts = [text for message in body["messages"] for text in content_texts(message)]
        prompt = "\n".join(texts)
        tokens = text_tokens(prompt)
        with self._lock:
            self.figures.update(calls=1, input_tokens=tokens)
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 4_096)
        found = list(self._found(prompt))
        if "dropping" in body["model"]:
            kept = [item for item in found if item[0] not in DROPPED]
            found = kept[::2]
        sources = [match[2] for match in _SOURCE.finditer(prompt)]
        max_chars = sum(map(len, sources or [prompt])) - FRAME_CHARS * len(sources)
        summary = _rendered(found, limit - TAG_TOKENS, max_chars)
        retain = "<retain>Nothing.</retain>\n" if "<retain>" in prompt else ""
        text = f"{retain}<summary>{summary}</summary>"
        usage = {"prompt_tokens": tokens, "completion_tokens": text_tokens(text)}
        usage["total_tokens"] = sum(usage.values())
        return Behaviour(body={**completion_body(text), "usage": usage})

    def _found(self, prompt: str) -> Iterator[tuple[str, str]]:
        """Yield the kind and text of each statement in a prompt, of a subject the newest."""
        for texts, kind in self._chains.items():
            newest = next((text for text in reversed(texts) if text in prompt), None)
            if newest is not None:
                yield kind, newest
        for text in self._todos:
            if text in prompt:
                yield TODOS, text


def _rendered(found: Sequence[tuple[str, str]], limit: int, max_chars: int) -> str:
    """Return the statements below headings, as many as the limit of tokens allows.

    Without headings where the text would be longer than its source, which no service accepts.
    """
    order = [*DROPPED, *(kind for kind in Kind if kind not in DROPPED), TODOS]
    lines, heading = [], ""
    for kind, text in sorted(found, key=lambda item: order.index(item[0])):
        new = [f"## {kind.capitalize()}"] if kind != heading else []
        new.append(f"- {text}")
        limit -= sum(text_tokens(line) + 1 for line in new)
        if limit < 0:
            break
        heading = kind
        lines += new
    text = "\n".join(lines) or NOTHING
    if len(text) > max_chars:
        text = "\n".join(line for line in lines if not line.startswith("#"))
    return text[: max(0, max_chars)] or "-"


def summarised_by(api_base: str) -> dict[str, str]:
    """Return the environment of a service that may call the models, without a limit."""
    return {
        "CONTEXT_SUMMARIZER_MODEL": MODELS[0],
        "CONTEXT_SUMMARIZER_ALLOWED_MODELS": ",".join(MODELS),
        "CONTEXT_SUMMARIZER_API_BASE": api_base,
        "CONTEXT_SUMMARIZER_API_KEY": "none",
        "CONTEXT_SUMMARIZER_CONTEXT_WINDOW": "128000",
        "CONTEXT_SUMMARIZER_CALLS_PER_HOUR": "1000000",
    }

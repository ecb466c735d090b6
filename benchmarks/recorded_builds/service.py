"""The stand-in for a model that summarises the conversations of a recording."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from tests.fake_llm import Behaviour, FakeLLM, Request, completion_body

USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}


@contextmanager
def summariser() -> Iterator[str]:
    """Serve the stand-in; yield its base URL."""
    server = FakeLLM()
    server.always(_answer)
    try:
        yield server.api_base
    finally:
        server.stop()


def _answer(request: Request) -> Behaviour:
    """Answer with a few words of the prompt, and its hash."""
    body, prompt = request.body, request.body["messages"][-1]["content"]
    asked = sha256(json.dumps([body["messages"], body.get("max_tokens")]).encode()).hexdigest()
    words = prompt.split()
    taken = " ".join(word[:24] for word in words[:: max(1, len(words) // 40)][:40])
    retain = "<retain>Kept word for word.</retain>\n" if "<retain>" in prompt else ""
    text = f"{retain}<summary>Prompt {asked}: {taken.replace('<', '(')}</summary>"
    answer = {**completion_body(text), "model": body["model"], "created": 0, "usage": USAGE}
    return Behaviour(body=answer)

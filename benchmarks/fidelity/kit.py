"""Generated sessions of compaction-conformance-kit, with the kit's own wordings and values.

The turns are appended in five rounds, each followed by a compaction to the same target. What may
have at most a fifth of the source's characters is, in two columns of the table:

1. the payload with all that is in it;
2. the text that the service wrote. Facts in messages that are still there are left out, as they
   need no summary. The largest target is searched whose text is short enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from app.cli.demo import Client
from benchmarks.fidelity.chat import Chat
from benchmarks.fidelity.facts import Fact
from benchmarks.fidelity.matching import flat, stale, survives
from benchmarks.fidelity.sessions import Session
from tests.fake_llm import FakeLLM, answer

FORGETFUL = "openai/forgetful"
SHARE = 0.2
TRIES = 8
NEEDED = "The kit's sessions are left out: `pip install 'context-service[judge]'` installs it."


def is_installed() -> bool:
    """Whether the kit can be imported."""
    return find_spec("compaction_kit") is not None


@contextmanager
def forgetful_model() -> Iterator[dict[str, str]]:
    """Run a model that forgets all it is told; yield the environment of a service that uses it."""
    server = FakeLLM()
    server.always(answer("<retain>Nothing.</retain><summary>They talked.</summary>"))
    try:
        yield {
            "CONTEXT_SUMMARIZER_ALLOWED_MODELS": FORGETFUL,
            "CONTEXT_SUMMARIZER_API_BASE": server.api_base,
            "CONTEXT_SUMMARIZER_API_KEY": "none",
            "CONTEXT_SUMMARIZER_CONTEXT_WINDOW": "128000",
            "CONTEXT_SUMMARIZER_CALLS_PER_HOUR": "1000000",
        }
    finally:
        server.stop()


def run(client: Client, seed: int, strategy: str, writer: str, *, is_whole: bool) -> Counter[str]:
    """Drive one generated session, and return what its last payload states."""
    from compaction_kit.generated import build_generated_session

    made, canaries = build_generated_session(seed)
    messages = [{"role": turn.role, "content": turn.text} for turn in made.turns[1:]]
    session = Session(f"kit {seed}", "kit", messages)
    limit = SHARE * sum(len(message["content"]) for message in messages)
    target, best = SHARE * session.tokens, None
    for _ in range(TRIES):
        chat = Chat(client, session.tokens, strategy, writer)
        for part in session.rounds():
            chat.append(part)
            chat.compact(int(target))
        size = len(chat.text if is_whole else flat(chat.written))
        if size <= limit:
            best = max(best or (0, 0, chat), (size, target, chat), key=lambda item: item[0])
        target *= min(2.0, 0.96 * limit / max(1, size))
    if best is None:
        return Counter(too_long=1)
    size, _, chat = best
    return _judged(chat, canaries, is_whole) + Counter(sessions=1, size=size, limit=int(limit))


def _judged(chat: Chat, canaries: Sequence[Any], is_whole: bool) -> Counter[str]:
    seen = Counter[str]()
    written = chat.written
    text, verbatim = (chat.text, "") if is_whole else (flat(written), flat(chat.verbatim))
    for canary in canaries:
        if flat(canary.content) in verbatim:
            continue
        old = canary.superseded_tokens[0] if canary.superseded_tokens else ""
        fact = Fact("kit", ("", ""), canary.required_tokens[0], old)
        is_there = survives(fact, text)
        seen += Counter(facts=1, survived=int(is_there))
        if old:
            seen += Counter({"old": 1, "newest": int(is_there), stale(fact, text, written): 1})
    return seen

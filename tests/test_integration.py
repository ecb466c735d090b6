"""The loops of docs/integration/ run as printed."""

from __future__ import annotations

import gc
import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.formats.message import FormatName
from tests.conftest import execute, in_thread
from tests.documents import block, blocks, pasted
from tests.fake_llm import Behaviour, Request
from tests.fake_providers import PROTOCOLS, FakeProviders, Spent
from tests.patience import PATIENCE_SECONDS

DOCS = Path(__file__).parents[1] / "docs"
COMMON = (DOCS / "integration" / "README.md").read_text(encoding="utf-8")
LOCAL = "http://127.0.0.1:8080"
ASKED = "What failed in build.log?"
FOUND = "4242 FAILED parser"


LOOPS = {
    "openai": "openai_chat",
    "anthropic": "anthropic",
    "litellm": "openai_chat",
    "openai-responses": "openai_responses",
    "gemini": "gemini",
    "gemini-interactions": "gemini_interactions",
}
"""The pages with a loop, and the format that its conversation has in the end."""


def code(page: str) -> str:
    """Return the Python of a page with a loop; LiteLLM's is a difference to OpenAI's."""
    found = (DOCS / "integration" / f"{page}.md").read_text(encoding="utf-8")
    if page != "litellm":
        return block(found, "python")
    script = code("openai")
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", block(found, "diff"), re.MULTILINE):
        before, after = (re.sub("^.", "", lines, flags=re.MULTILINE) for lines in (old, new))
        assert script.count(before) == 1, before
        script = script.replace(before, after)
    return script


@pytest.fixture
def providers() -> Iterator[FakeProviders]:
    """All providers."""
    server = FakeProviders()
    yield server
    server.stop()


def environment(providers: FakeProviders) -> dict[str, str]:
    """Return what leads every SDK to these providers."""
    return {
        "OPENAI_BASE_URL": providers.api_base,
        "ANTHROPIC_BASE_URL": providers.root,
        "GOOGLE_GEMINI_BASE_URL": providers.root,
        "OPENAI_API_KEY": "test",
        "ANTHROPIC_API_KEY": "test",
        "GEMINI_API_KEY": "test",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "*",
    }


def run_here(script: str) -> str:
    """Run a script in this process, which has the SDKs' types already; return what it printed."""
    namespace: dict[str, Any] = {}
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            exec(script, namespace)
    finally:
        for name in {"service", "client"} & namespace.keys():
            namespace[name].close()
        if "litellm" in namespace:  # what it keeps open ends here, not in a later test
            namespace["litellm"].in_memory_llm_clients_cache.flush_cache()
            gc.collect()
    return printed.getvalue()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a script's end closes its files
@pytest.mark.parametrize("page", LOOPS)
def test_each_loop_runs_as_printed(
    page: str,
    served: str,
    database_url: str,
    providers: FakeProviders,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends with the answer, log and usage are stored, "too long" is survived.

    [payload.one-call, usage.answer, compaction.overflow-errors]
    """
    lines = [f"{n} {'FAILED' if n == 4242 else 'ok'} parser\n" for n in range(9000)]
    (tmp_path / "build.log").write_text("".join(lines))
    providers.arguments = {"path": "build.log"}
    providers.overflow_at = 2
    monkeypatch.chdir(tmp_path)
    for name, value in environment(providers).items():
        monkeypatch.setenv(name, value)
    assert run_here(code(page).replace(LOCAL, served)).splitlines()[-1] == FOUND
    assert providers.refused == []
    assert providers.overflows == 1
    with httpx.Client(base_url=f"{served}/v1") as service:
        (conversation,) = service.get("/conversations").json()["data"]
        path = f"/conversations/{conversation['conversation_id']}"
        log = service.get(f"{path}/messages", params={"content": "full"}).json()["data"]
        (receipt,) = service.get(f"{path}/compactions").json()["data"]
    assert receipt["trigger"] == "overflow"
    assert_exchange(log)
    assert_offered(providers.tools_offered)
    assert_reported(database_url, LOOPS[page], providers.spent)


class Keeping(FakeProviders):
    """OpenAI, which keeps what was sent and answered under the id of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str | None, list[dict[str, Any]]] = {None: []}
        self.sizes: list[int] = []

    def complaint(self, request: Request) -> str | None:
        """Judge all that the model is given."""
        self.sizes.append(len(request.body["input"]))
        request.body["input"][:0] = self.kept[request.body.pop("previous_response_id", None)]
        return super().complaint(request)

    def _act(self, request: Request) -> Behaviour:
        answer = PROTOCOLS[1].saying(f"Answer {self.calls}.", Spent(100, 0))
        answer["id"], answer["output"][0]["id"] = f"resp_{self.calls}", f"msg_{self.calls}"
        self.kept[answer["id"]] = request.body["input"] + answer["output"]
        return Behaviour(body=answer)


def test_a_provider_that_keeps_what_was_sent_has_the_whole_payload(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets what is new, and has what a full build has in the end [delta.equals-full]."""
    provider = Keeping()
    for name, value in environment(provider).items():
        monkeypatch.setenv(name, value)
    page = (DOCS / "integration" / "openai-state.md").read_text(encoding="utf-8")
    assert run_here(block(page, "python").replace(LOCAL, served)) == "Answer 3.\n"
    provider.stop()
    with httpx.Client(base_url=f"{served}/v1") as service:
        (conversation,) = service.get("/conversations").json()["data"]
        path = f"/conversations/{conversation['conversation_id']}/context"
        built = service.post(path, json={"format": "openai_responses"}).json()
    assert provider.refused == []
    assert provider.sizes == [2, 1, 1]
    assert provider.kept["resp_3"] == built["payload"]["input"]


def assert_exchange(log: list[dict[str, Any]]) -> None:
    """Assert that the log has the whole exchange in order."""
    said = {
        "user": [ASKED],
        "assistant 1": ["cat", "build.log"],
        "tool 1": ["8999 ok parser"],
        "assistant 2": ["tool_output_cache_grep", "wc"],
        "tool 2": ["4243:4242 FAILED parser"],
        "tool 3": ["133894"],
        "assistant 3": [FOUND],
    }
    assert [message["role"] for message in log] == [name.split()[0] for name in said]
    for message, texts in zip(log, said.values(), strict=True):
        assert all(text in json.dumps(message) for text in texts)


def assert_offered(offered: list[list[str]]) -> None:
    """Assert that the service's tools stand behind the caller's from the first call on."""
    for tools in offered:
        assert tools[:2] == ["cat", "wc"]
        assert "tool_output_cache_grep" in tools


def assert_reported(database_url: str, format: str, spent: list[Spent]) -> None:
    """Assert that each call's usage is stored, in the one meaning of all formats."""
    rows = in_thread(execute, database_url, "SELECT * FROM usage_reports ORDER BY report_id")
    assert {row["format"] for row in rows} == {format}
    assert [row["cache_read_tokens"] for row in rows] == [call.cached for call in spent]
    names = ("input_tokens", "cache_creation_tokens", "cache_read_tokens", "output_tokens")
    assert [sum(row[name] for name in names) for row in rows] == [call.total for call in spent]


class Recording(httpx.Client):
    """A client that keeps every answer."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=f"{url}/v1", timeout=PATIENCE_SECONDS)
        self.answers: list[dict[str, Any]] = []

    def post(self, *given: Any, **more: Any) -> httpx.Response:
        """Send it, and keep the answer."""
        answer = super().post(*given, **more)
        assert answer.is_success, answer.text
        self.answers.append(answer.json())
        return answer


def calls_of(numbers: range) -> list[dict[str, Any]]:
    """Return a turn of chat messages: a question, a call and its result for each number."""
    found: list[dict[str, Any]] = [{"role": "user", "content": f"Look at {list(numbers)}."}]
    for number in numbers:
        function = {"name": "look", "arguments": json.dumps({"at": number})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        found.append({"role": "assistant", "content": None, "tool_calls": [call]})
        found.append(
            {"role": "tool", "tool_call_id": f"call_{number}", "content": "seen " * number}
        )
    return found


@pytest.mark.parametrize("format", list(FormatName))
def test_the_copy_of_a_client_equals_full_builds(format: FormatName, served: str) -> None:
    """Deltas put together as printed are the payloads of full builds, tails included.

    [delta.tail-apart]
    """
    namespace: dict[str, Any] = {}
    exec(block(COMMON, "python"), namespace)
    namespace["service"].close()
    with Recording(served) as service:
        namespace["service"] = service
        scratchpad = {"name": "plan", "kind": "scratchpad", "content": "1. look"}
        base = {"name": "base", "content": "You look at things."}
        asked = {"model": "claude-sonnet-5", "sections": [base, scratchpad]}
        made = service.post("/conversations", json=asked).json()
        path = f"/conversations/{made['conversation_id']}"
        copy = namespace["Copy"](made["conversation_id"], format)
        deltas = []

        def check() -> None:
            held = copy.payload()
            deltas.append(service.answers[-1]["delta"])
            full = service.post(f"{path}/context", json={"format": format}).json()["payload"]
            assert json.dumps(held) == json.dumps(full)

        for turn in range(3):
            *messages, last = calls_of(range(turn * 9, turn * 9 + 9))
            service.post(f"{path}/messages", json={"messages": messages})
            check()
            service.post(f"{path}/messages", json={"messages": [last]})
            check()
            scratchpad["content"] += f", {turn} looked at"
            service.patch(path, json={"sections": [base, scratchpad]})
            check()
        service.post(f"{path}/overflow", json={"format": format})
        check()
    assert deltas == [False, *[True] * 8, False]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_the_shell_session_can_be_pasted(served: str, tmp_path: Path) -> None:
    """Its blocks run one after the other: a tail, and a payload read again."""
    script = "".join(blocks(COMMON, "sh")).replace(LOCAL, served).replace("/tmp/", f"{tmp_path}/")
    messages, tail, payload = pasted(script).splitlines()
    assert "bisect" in tail
    assert "Deploy 71 is running." in tail
    assert messages.endswith(tail.removeprefix("["))
    assert messages in payload

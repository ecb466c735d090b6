"""The database CPU of operations on a Citus cluster beside that of one PostgreSQL server.

All servers run on this machine. Each is named by its URL and the data directories of its nodes:

    python -m benchmarks.citus --cluster URL DIR DIR DIR --server URL DIR

Both databases are migrated before, and that of the cluster is distributed (docs/scaling.md).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.main import create_app
from app.settings import Settings

CALLS = 60
CONVERSATIONS = 8


def cpu_seconds(data_dir: Path) -> float:
    """Return the CPU time of a server so far, with that of its ended processes."""
    pid = int((data_dir / "postmaster.pid").read_text(encoding="ascii").split()[0])
    server = psutil.Process(pid)
    spent = sum(server.cpu_times()[:4])
    for child in server.children():
        try:
            spent += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return float(spent)


class Measured:
    """Runs calls of a client, and prints the CPU that each node spent on one."""

    def __init__(self, client: httpx.AsyncClient, name: str, data_dirs: Sequence[Path]) -> None:
        self._client = client
        self._name = name
        self._data_dirs = data_dirs

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request and return what is answered."""
        answer = await self._client.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    async def measure(self, what: str, calls: int, run: Callable[[int], Awaitable[Any]]) -> None:
        """Print the mean CPU in milliseconds."""
        before = [cpu_seconds(each) for each in self._data_dirs]
        for number in range(calls):
            await run(number)
        after = [cpu_seconds(each) for each in self._data_dirs]
        spent = [(end - start) * 1000 / calls for start, end in zip(before, after, strict=True)]
        nodes = ", ".join(f"{each:.1f}" for each in spent)
        print(f"{what:24} {self._name:8} {sum(spent):6.1f} ms ({nodes})", flush=True)


async def measure(measured: Measured) -> None:
    """Measure the operations of an agent's day."""
    paths: list[str] = []

    async def create(_number: int) -> None:
        made = await measured.call("POST", "/v1/conversations", {})
        paths.append(f"/v1/conversations/{made['conversation_id']}")

    def on(method: str, place: str, body: Any = None) -> Callable[[int], Awaitable[Any]]:
        return lambda number: measured.call(method, f"{paths[number % CONVERSATIONS]}{place}", body)

    turn = [
        {"role": "user", "content": "What is next?"},
        {"role": "assistant", "content": "This. " * 30},
    ]
    usage = {"model": "gpt-4o", "usage": {"prompt_tokens": 90, "completion_tokens": 5}}
    await measured.measure("create", CALLS, create)
    await measured.measure(
        "append two messages", CALLS, on("POST", "/messages", {"messages": turn})
    )
    await measured.measure("build", CALLS, on("POST", "/context", {}))
    await measured.measure("usage report", CALLS, on("POST", "/usage", usage))
    await measured.measure("conversation", CALLS, on("GET", ""))
    await measured.measure("page of messages", CALLS, on("GET", "/messages?limit=20"))
    await measured.measure(
        "list of conversations",
        CALLS,
        lambda _number: measured.call("GET", "/v1/conversations?limit=20"),
    )
    await measured.measure(
        "delete", CONVERSATIONS, lambda number: measured.call("DELETE", paths[number])
    )


async def main(servers: dict[str, Sequence[str]]) -> None:
    """Measure each server twice: the first round plans, and fills caches."""
    for title in ("first round", "second round"):
        print(title)
        for name, (url, *data_dirs) in servers.items():
            settings = Settings(
                database_url=url, pool_max_size=1, worker=False, default_model="gpt-4o"
            )
            app = create_app(settings)
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(
                    transport=transport, base_url="http://test", timeout=60
                ) as client,
            ):
                await measure(Measured(client, name, [Path(each) for each in data_dirs]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", nargs="+", required=True, metavar="URL DIR")
    parser.add_argument("--server", nargs="+", required=True, metavar="URL DIR")
    arguments = parser.parse_args()
    asyncio.run(main({"cluster": arguments.cluster, "server": arguments.server}))

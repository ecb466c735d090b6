"""The database CPU of operations on a Citus cluster beside that of one PostgreSQL server.

All servers run on this machine. Each database has a name for the output, its URL and the data
directories of its nodes:

    python -m benchmarks.citus --database one URL DIR --database cluster URL DIR DIR DIR

All are migrated before, and those of clusters distributed: `deploy/citus/cluster.py` does both.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import psutil

from app.main import create_app
from app.settings import Settings

CALLS = 160
CONVERSATIONS = 8
CLIENTS = 16
STEPS = 25
"""Steps of each client at once."""


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

    async def measure(
        self, what: str, calls: int, run: Callable[[int], Awaitable[Any]], clients: int = 1
    ) -> None:
        """Print the mean CPU in milliseconds, and how many calls a second clients had at once."""

        async def follow(client: int) -> None:
            for number in range(client, calls, clients):
                await run(number)

        before = [cpu_seconds(each) for each in self._data_dirs]
        begun = perf_counter()
        await asyncio.gather(*map(follow, range(clients)))
        rate = calls / (perf_counter() - begun)
        after = [cpu_seconds(each) for each in self._data_dirs]
        spent = [(end - start) * 1000 / calls for start, end in zip(before, after, strict=True)]
        nodes = ", ".join(f"{each:.2f}" for each in spent)
        print(f"{what:24} {self._name:10} {sum(spent):6.2f} ms ({nodes}) {rate:6.0f}/s", flush=True)


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
    add = {"messages": turn}

    def first(place: str, body: Any) -> Callable[[int], Awaitable[Any]]:
        return lambda number: measured.call("POST", f"{paths[number]}{place}", body)

    await measured.measure("create", CALLS, create)
    # The first of each reads the whole state, and the first build begins an epoch.
    await measured.measure("first append", CALLS, first("/messages", add))
    await measured.measure("first build", CALLS, first("/context", {}))
    await measured.measure("append two messages", CALLS, on("POST", "/messages", add))
    await measured.measure("build", CALLS, on("POST", "/context", {}))
    await measured.measure("step", CALLS, on("POST", "/context", {"append": add}))
    await measured.measure(
        f"step, {CLIENTS} clients",
        CLIENTS * STEPS,
        lambda number: measured.call("POST", f"{paths[number % CLIENTS]}/context", {"append": add}),
        CLIENTS,
    )
    await measured.measure("usage report", CALLS, on("POST", "/usage", usage))
    await measured.measure("conversation", CALLS, on("GET", ""))
    await measured.measure("page of messages", CALLS, on("GET", "/messages?limit=20"))
    await measured.measure(
        "list of conversations",
        CALLS // 4,
        lambda _number: measured.call("GET", "/v1/conversations?limit=20"),
    )
    await measured.measure(
        "delete", CONVERSATIONS, lambda number: measured.call("DELETE", paths[number])
    )


async def main(databases: Sequence[Sequence[str]]) -> None:
    """Measure each database twice: the first round plans, and fills caches."""
    for title in ("first round", "second round"):
        print(title)
        for name, url, *data_dirs in databases:
            settings = Settings(
                database_url=url, pool_max_size=CLIENTS, worker=False, default_model="gpt-4o"
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
    parser.add_argument(
        "--database", nargs="+", action="append", required=True, metavar="NAME URL DIR"
    )
    asyncio.run(main(parser.parse_args().database))

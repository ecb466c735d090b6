"""How fast the service starts on existing data, and what memory it needs [performance.start]."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path

from benchmarks.connection import Connection
from benchmarks.figures import Section, p50
from benchmarks.processes import Served, service
from benchmarks.stage import create_conversation, report
from benchmarks.workload import conversation

STARTS = 5
BATCH = 550
STEPS = 50
_TELL_MODULES = """
import atexit, pathlib, sys
atexit.register(lambda: pathlib.Path({names!r}).write_text(chr(10).join(sorted(sys.modules))))
"""


def measure(quick: bool) -> Section:
    """Start the service several times and report it."""
    section = Section("start", "from exec to the first 200 of /readyz, and memory")
    with tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder:
        data_dir, log = Path(folder, "data"), Path(folder, "processes.log")
        with service(data_dir, log=log) as served:
            first = served.start_seconds
            _use(served)
        starts, spent, ready_bytes, loaded_bytes, used_bytes = [], [], [], [], []
        for place in range(STARTS):
            report(f"start: {place + 1} of {STARTS}")
            with service(data_dir, log=log) as served:
                starts.append(served.start_seconds)
                spent.append(served.cpu_seconds)
                ready_bytes.append(served.memory_bytes)
                _use(served, 3)
                loaded_bytes.append(served.memory_bytes)
                _use(served)
                used_bytes.append(served.memory_bytes)
        imported = _imported(data_dir, Path(folder))
    listed = ", ".join(f"{seconds:.2f}" for seconds in sorted(starts))
    section.add_text(
        f"Existing data directory with its own PostgreSQL, {STARTS} starts: {listed} s; the very"
        f" first start, which makes the cluster and the schema: {first:.2f} s. CPU time of the"
        f" service process until ready, which noise on the machine moves less: {p50(spent):.2f} s."
    )
    section.goal(
        "performance.start", "median start ≤ 1.5 s", f"{p50(starts):.2f} s", p50(starts) <= 1.5
    )
    used = p50(used_bytes) / 1e6
    section.add_text(
        f"Resident memory of the API process, median: {p50(ready_bytes) / 1e6:.0f} MB when ready,"
        f" {p50(loaded_bytes) / 1e6:.0f} MB after 3 appends and builds, which load the tokeniser."
    )
    section.goal(
        "performance.start",
        f"memory with the tokeniser loaded, after {BATCH + STEPS} appends, builds and an extractive"
        " compaction ≤ 160 MB",
        f"{used:.0f} MB",
        used <= 160,
    )
    litellm = [name for name in imported if name.partition(".")[0] == "litellm"]
    section.goal(
        "performance.start",
        "litellm is not imported: absent from sys.modules when the process exits, after"
        " start, appends, builds and compaction",
        f"{len(imported)} modules, {len(litellm)} of litellm",
        not litellm,
    )
    return section


def _use(served: Served, steps: int = STEPS) -> None:
    """Append and build, as an agent would before any model is called; the full use compacts too."""
    with Connection(served.port) as connection:
        path = f"/v1/conversations/{create_conversation(connection)}"
        stream = conversation(seed=1)
        if steps == STEPS:
            connection.post(f"{path}/messages", {"messages": list(islice(stream, BATCH))})
            connection.post(f"{path}/context", {})
        for message in islice(stream, steps):
            connection.post(f"{path}/messages", {"messages": [message]})
            connection.post(f"{path}/context", {})


def _imported(data_dir: Path, folder: Path) -> list[str]:
    """Return every module that a served process holds at its end, as it says itself."""
    names = folder / "modules.txt"
    (folder / "sitecustomize.py").write_text(_TELL_MODULES.format(names=str(names)))
    with service(data_dir, environ={"PYTHONPATH": str(folder)}, log=None) as served:
        _use(served)
    found = names.read_text().split()
    if "app.main" not in found:
        raise RuntimeError("app.main is missing among the modules of the service")
    return found

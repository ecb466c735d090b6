"""The command line in processes of its own, as tests and benchmarks start it."""

from __future__ import annotations

import os
import socket
import sys

COMMAND = (sys.executable, "-c", "from app.cli import main; main()")
"""What the console script `context-service` does, by this interpreter."""


def environment(**given: str) -> dict[str, str]:
    """Return the variables of this process, of the service's own only those given."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("CONTEXT_")}
    return kept | given


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

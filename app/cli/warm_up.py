"""Imports that happen while the database starts."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module


def warm_up(*modules: str) -> threading.Thread:
    """Import `modules` in a thread.

    The caller joins the thread before it imports any of them: two threads that import modules in
    a cycle can see a partially initialised module.
    """

    def warm() -> None:
        with suppress(Exception):  # the caller imports them again and sees the error
            for module in modules:
                import_module(module)

    thread = threading.Thread(target=warm, name="warm-up", daemon=True)
    thread.start()
    return thread

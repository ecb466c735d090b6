"""Imports that happen while the database starts."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from importlib import import_module


def warm_up(*modules: str) -> threading.Thread:
    """Import `modules` in a thread.

    The caller joins the thread before it imports any of them: two threads that import modules in
    a cycle can see a partially initialised module.
    """

    def warm() -> None:
        gc.disable()  # it would be a seventh of the time, and what imports make is kept
        try:
            with suppress(Exception):  # the caller imports them again and sees the error
                for module in modules:
                    import_module(module)
        finally:
            gc.enable()

    thread = threading.Thread(target=warm, name="warm-up", daemon=True)
    thread.start()
    return thread

"""Compiles what the service loads: `PYTHONPATH=/path/to/app python bytecode.py`.

All modules of `app` are imported, and LiteLLM with a first call of three providers, to a port
where nothing listens. What that does not load is half of all bytecode; Python compiles it when it
is needed. Bytecode is trusted without a look at its source: the same lock gives the same bytes.
"""

from __future__ import annotations

import asyncio
import compileall
import importlib
import pkgutil
import py_compile
import sys
from pathlib import Path

import app
from app.common.errors import ServiceUnavailable
from app.models.litellm_gateway import LiteLLMGateway
from app.models.usage import ModelCall

MODELS = ("openai/gpt-4o", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-pro")
MESSAGES = ({"role": "user", "content": "x"},)


async def call_models() -> None:
    """Load what a call loads."""
    gateway = LiteLLMGateway("http://127.0.0.1:9", "none")
    for model in MODELS:
        try:
            await gateway.complete(ModelCall(model, MESSAGES, 1, 5.0, "default"))
        except ServiceUnavailable as exc:
            print(f"{model}: {exc.facts['reason']}")


def loaded() -> list[Path]:
    """Return the source files of the installed libraries that are loaded now."""
    files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    paths = {Path(file) for file in files if file and file.endswith(".py")}
    return sorted(path for path in paths if path.is_relative_to(sys.prefix))


if __name__ == "__main__":
    for module in pkgutil.walk_packages(app.__path__, "app."):
        importlib.import_module(module.name)
    asyncio.run(call_models())
    for path in loaded():
        compileall.compile_file(
            path, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )

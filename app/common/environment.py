"""Names of environment variables.

This module imports no pydantic, so that `context-service --help` stays fast.
"""

from __future__ import annotations

from importlib.util import find_spec

PREFIX = "CONTEXT_"


class SettingsError(Exception):
    """A variable has an invalid value; the message names the variable."""


def variable(name: str) -> str:
    """Return the environment variable of a field of `Settings`."""
    return PREFIX + name.upper()


def missing(module: str, extra: str) -> str | None:
    """Return how the package of an optional module is installed, None if it is."""
    if find_spec(module) is not None:
        return None
    return f"a package that is not installed: pip install 'context-service[{extra}]'"


def one_line(text: str | None) -> str:
    """Return the text of a setting without its line ends."""
    return " ".join((text or "").split())


def split(value: object) -> object:
    """Split a comma-separated list; other values are returned unchanged."""
    if isinstance(value, str):
        return [name for name in map(str.strip, value.split(",")) if name]
    return value

"""Names of environment variables, and the policy that they set.

This module imports no pydantic, so that `context-service --help` stays fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from app.policy.policy import merge

PREFIX = "CONTEXT_"
POLICY_VARIABLE = "CONTEXT_POLICY"


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


def split(value: object) -> object:
    """Split a comma-separated list; other values are returned unchanged."""
    if isinstance(value, str):
        return [name for name in map(str.strip, value.split(",")) if name]
    return value


def policy_variables(
    defaults: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the variable and the path of each policy leaf: `CONTEXT_A_B`, `("a", "b")`."""
    for key, value in defaults.items():
        if isinstance(value, Mapping) and value:
            yield from policy_variables(value, (*path, key))
        else:
            yield variable("_".join((*path, key))), (*path, key)


def policy_from_env(environ: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy leaves that the environment sets, nested as in JSON .

    Single variables override the object in `CONTEXT_POLICY`. Raises SettingsError for text that
    cannot be parsed; `app.policy.policy.effective` checks the values.
    """
    try:
        given: Any = json.loads(environ.get(POLICY_VARIABLE, "").strip() or "{}")
    except ValueError as exc:
        raise SettingsError(f"{POLICY_VARIABLE} is not valid JSON: {exc}.") from exc
    if not isinstance(given, dict):
        raise SettingsError(f"{POLICY_VARIABLE} must be a JSON object.")
    overrides: dict[str, Any] = given
    for name, path in policy_variables(defaults):
        if text := environ.get(name, "").strip():
            default: Any = defaults
            for key in path:
                default = default[key]
            leaf: Any = _leaf(name, text, default)
            for key in reversed(path):
                leaf = {key: leaf}
            overrides = merge(overrides, leaf)
    return overrides


def _leaf(name: str, text: str, default: object) -> Any:
    match default:
        case bool():
            from pydantic import TypeAdapter, ValidationError

            try:
                return TypeAdapter(bool).validate_python(text)
            except ValidationError:
                raise SettingsError(f"{name} must be true or false.") from None
        case "auto" if text.isdigit():
            return int(text)
        case str() if not text.startswith("["):
            return text
        case list() | tuple() if not text.startswith("["):
            return split(text)
    try:
        return json.loads(text)
    except ValueError:
        return text

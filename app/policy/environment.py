"""The policy that environment variables set: leaf `a.b` is `CONTEXT_A_B`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError

from app.environment import SettingsError, split, variable
from app.policy.policy import DEFAULT_POLICY, leaves, merge

POLICY_VARIABLE = "CONTEXT_POLICY"
POLICY_VARIABLES = {variable("_".join(path)): path for path in leaves()}
"""The path of each setting by its variable."""


def policy_from_env(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that the environment sets, nested as in JSON.

    Single variables override the object in `CONTEXT_POLICY`. Raises SettingsError for text that
    cannot be parsed; `app.policy.policy.effective` checks the values.
    """
    try:
        given: Any = json.loads(environ.get(POLICY_VARIABLE, "").strip() or "{}")
    except ValueError as exc:
        raise SettingsError(f"{POLICY_VARIABLE} is not valid JSON: {exc}.") from exc
    if not isinstance(given, dict):
        raise SettingsError(f"{POLICY_VARIABLE} must be a JSON object.")
    for key, value in given.items():
        if isinstance(DEFAULT_POLICY.get(key), Mapping) and not isinstance(value, Mapping | None):
            raise SettingsError(f"{POLICY_VARIABLE}: {key} must be an object.")
    policy = merge({}, given)
    for name, path in POLICY_VARIABLES.items():
        if text := environ.get(name, "").strip():
            value = _value(name, text, reduce(getitem, path, DEFAULT_POLICY))
            for key in reversed(path):
                value = {key: value}
            policy = merge(policy, value)
    return policy


def _value(name: str, text: str, default: object) -> Any:
    if isinstance(default, bool):
        try:
            return TypeAdapter(bool).validate_python(text)
        except PydanticError:
            raise SettingsError(f"{name} must be true or false.") from None
    if isinstance(default, list) and not text.startswith("["):
        return split(text)
    try:
        return json.loads(text)
    except ValueError:
        return text

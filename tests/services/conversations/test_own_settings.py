"""The caller's own settings: checked, patched, shown. [policy.null-resets]"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import Conflict
from app.common.ids import AgentId
from app.conversations.agents.agent import Agent
from app.conversations.own_settings import (
    ListVersion,
    Patch,
    effective_policy,
    without_empty_objects,
)
from app.conversations.settings import ListVersions, SettingsList, StoredSettings
from app.policy.policy import DEFAULT_POLICY

leaves = st.dictionaries(
    st.sampled_from(["preserve_top", "preserve_bottom"]), st.integers(1, 9) | st.none(), max_size=2
)
layers = st.fixed_dictionaries({}, optional={"sandwich": leaves})


def agent(settings: StoredSettings) -> Agent:
    """Return an agent with these settings."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Agent(AgentId("a"), "A", settings, "{}", now, now, ListVersions(3, 5))


def patched(policy: str, patch: Any) -> str:
    """Return the policy after a patch of a stored one."""
    change = Patch(frozenset({"policy"}), policy=patch)
    return change.applied(agent(StoredSettings(policy=policy))).settings.policy


@pytest.mark.parametrize(
    ("stored", "patch", "expected"),
    [
        ("{}", {"sandwich": {"preserve_top": 1}}, '{"sandwich":{"preserve_top":1}}'),
        ('{"sandwich":{"preserve_top":1}}', {"sandwich": {"preserve_top": None}}, "{}"),
        ('{"sandwich":{"preserve_top":1}}', {"sandwich": None}, "{}"),
        ('{"sandwich":{"preserve_top":1}}', {"sandwich": {}}, '{"sandwich":{"preserve_top":1}}'),
        ('{"summary_role":"user"}', None, "{}"),
        ("{}", {}, "{}"),
    ],
)
def test_patches_of_policies(stored: str, patch: Any, expected: str) -> None:
    """Leaves merge, null leaves go, a null policy resets everything."""
    assert patched(stored, patch) == expected


@given(layers, layers)
def test_a_patch_sets_its_leaves(first: dict[str, Any], second: dict[str, Any]) -> None:
    """After a patch each of its leaves has its value, or the inherited one."""
    stored = json.loads(patched(patched("{}", first), second))
    shown = effective_policy(stored)
    for name, value in second.get("sandwich", {}).items():
        expected = DEFAULT_POLICY["sandwich"][name] if value is None else value
        assert shown["sandwich"][name] == expected
    assert without_empty_objects(stored) == stored
    assert shown.keys() == DEFAULT_POLICY.keys()


def test_a_patch_changes_only_its_fields() -> None:
    """What a patch does not name stays."""
    settings = StoredSettings("m", '{"strategy":"sandwich"}', "[1]", "[2]")
    patch = Patch(frozenset(), model="other", policy={"x": 1})
    assert patch.applied(agent(settings)) == agent(settings)
    assert Patch(frozenset({"model"})).applied(agent(settings)).model is None


bodies = st.sampled_from(["[]", "[1]", "[2]"])


@given(bodies, st.integers(0, 5), bodies, st.none() | st.integers(0, 6))
def test_a_list_is_replaced_as_a_new_version(
    body: str, version: int, new: str, expected: int | None
) -> None:
    """What differs is the next version, what does not changes nothing, and only what was
    expected is replaced.

    [policy.versioned-lists]
    """
    newest = ListVersion(body, version)
    if expected not in (None, version):
        with pytest.raises(Conflict) as caught:
            newest.replaced(SettingsList.TOOLS, new, expected)
        assert caught.value.facts == {"version": version, "expected_version": expected}
        return
    after = newest.replaced(SettingsList.TOOLS, new, expected)
    assert after.body == new
    assert after.version == version + (new != body)

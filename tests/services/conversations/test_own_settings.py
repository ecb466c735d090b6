"""The caller's own settings: checked, patched, shown. [policy.null-resets]"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.common.errors import Conflict, Problem, ValidationError
from app.domain.common.ids import AgentId
from app.domain.common.policy import DEFAULT_POLICY
from app.domain.conversations.agent import Agent
from app.domain.conversations.settings import ListVersions, SettingsList, StoredSettings
from app.services.conversations.own_settings import (
    ListVersion,
    OwnSettings,
    Patch,
    effective_policy,
    newest_version,
    sections_json,
    tools_json,
    with_policy_pointers,
    with_version,
    without_empty_objects,
)

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


def test_creations_store_no_nulls() -> None:
    """A null leaf of a creation equals an omitted one."""
    own = OwnSettings(policy={"budget": {"context_window": None, "notice_at": 0.5}})
    assert own.stored().policy == '{"budget":{"notice_at":0.5}}'


def test_names_are_unique() -> None:
    """A name that occurs twice in a list is refused with the pointer of the second.

    [policy.versioned-lists]
    """
    section = {"name": "a", "content": ""}
    with pytest.raises(ValidationError) as caught:
        sections_json([section, section])
    assert caught.value.problems[0].pointer == "/sections/1/name"
    with pytest.raises(ValidationError) as caught:
        tools_json([{"name": "a"}, {"function": {"name": "a"}}])
    assert caught.value.problems[0].pointer == "/tools/1/name"


def test_policy_pointers_start_at_the_request_body() -> None:
    """What is wrong in a policy is pointed at from the whole body. [api.limits]"""
    error = with_policy_pointers(
        ValidationError("no", problems=(Problem("/budget/notice_at", "no"),))
    )
    assert error.problems == (Problem("/policy/budget/notice_at", "no"),)


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


@pytest.mark.parametrize("kind", SettingsList)
def test_each_list_has_its_own_versions(kind: SettingsList) -> None:
    """A change of one list does not change the other [policy.versioned-lists]."""
    layer = agent(StoredSettings("m", "{}", "[1]", "[2]"))
    changed = with_version(layer, kind, ListVersion("[9]", 8))
    (other,) = set(SettingsList) - {kind}
    assert newest_version(changed, kind) == ListVersion("[9]", 8)
    assert newest_version(changed, other) == newest_version(layer, other)
    assert changed.settings.model == "m"


def test_a_list_of_an_earlier_release_is_version_zero() -> None:
    """It is distinguished from an empty list [policy.versioned-lists]."""
    assert ListVersion("[1]", 0).is_unversioned
    assert not ListVersion("[]", 0).is_unversioned
    assert not ListVersion("[1]", 1).is_unversioned

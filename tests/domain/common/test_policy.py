"""The policy: settings levels are merged, every setting has a default, impossible ones are refused.

[policy.inheritance]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.policy.policy import (
    AGENT_TOOL_NAMES,
    DEFAULT_POLICY,
    Policy,
    StrategyName,
    effective,
    leaves,
    merge,
)
from app.prompt.agent_tools import AGENT_TOOLS

LEAVES: Mapping[tuple[str, ...], st.SearchStrategy[Any]] = {
    ("strategy",): st.sampled_from([str(name) for name in StrategyName]),
    ("sandwich", "preserve_top"): st.integers(0, 50),
    ("sandwich", "preserve_bottom"): st.integers(1, 50),
    ("sliding_window", "keep_last_n"): st.integers(1, 500),
    ("tree_summary", "chunk_size"): st.integers(2, 500),
    ("messages", "offload_oversized"): st.booleans(),
    ("tool_output", "clear_repeated"): st.booleans(),
    ("compaction", "enabled"): st.booleans(),
    ("compaction", "auto"): st.booleans(),
    ("compaction", "threshold_ratio"): st.floats(0.01, 1),
    ("compaction", "model"): st.sampled_from(["m1", "m2"]),
    ("compaction", "summary_prompt"): st.text(max_size=5),
    ("compaction", "summary_directives"): st.lists(st.text(max_size=3), max_size=3),
    ("compaction", "retain_prompt"): st.text(max_size=5),
    ("compaction", "retain_directives"): st.lists(st.text(max_size=3), max_size=3),
    ("compaction", "retain_last_turns"): st.integers(0, 50),
    ("compaction", "mode"): st.sampled_from(["background", "inline"]),
    ("compaction", "max_messages"): st.integers(1, 500),
    ("compaction", "target"): st.floats(0.01, 0.99),
    ("budget", "context_window"): st.just("derive") | st.integers(10_000, 10**6),
    ("budget", "max_output_tokens"): st.integers(1, 9_999),
    ("budget", "notice_at"): st.floats(0.01, 1),
    ("budget", "compact_trigger"): st.floats(0.01, 1),
    ("budget", "counter"): st.sampled_from(["tokenizer", "bytes_4", "chars_4", "chars_2_5"]),
    ("tool_output", "enabled"): st.booleans(),
    ("tool_output", "offload_threshold_bytes"): st.integers(0, 10**6),
    ("tool_output", "context_budget_tokens"): st.just("auto") | st.integers(0, 10**6),
    ("tool_output", "max_message_bytes"): st.integers(1, 10**6),
    ("tool_output", "max_line_length"): st.integers(1, 10**6),
    ("tool_output", "view"): st.sampled_from(["truncate", "reference"]),
    ("tool_output", "clear_at_least"): st.just("auto") | st.integers(0, 10**6),
    ("tool_output", "exclude_tools"): st.lists(st.text(max_size=3), max_size=3),
    ("collection", "drop_compacted"): st.booleans(),
    ("tool_deferral_threshold",): st.floats(0.01, 1),
    ("dynamic_position",): st.sampled_from(["tail", "system", "before_window"]),
    ("status_preamble",): st.sampled_from(["auto", "none"]),
    ("agent_tools",): st.sampled_from(["auto", "none"])
    | st.lists(st.sampled_from(AGENT_TOOL_NAMES), max_size=3),
    ("summary_role",): st.sampled_from(["user", "system", "auto"]),
    ("preserve_user_messages",): st.booleans(),
    ("sends_betas",): st.booleans(),
}


@st.composite
def settings_levels(draw: st.DrawFn) -> dict[tuple[str, ...], Any]:
    """Draw some leaves of a policy with values."""
    chosen = draw(st.lists(st.sampled_from(list(LEAVES)), unique=True))
    return {path: draw(LEAVES[path]) for path in chosen}


def nested(leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Return settings by path as a nested JSON object."""
    found: dict[str, Any] = {}
    for path, value in leaves.items():
        *parents, name = path
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return found


def flat(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield every leaf of a nested object by its path, lists as tuples."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from flat(item, (*path, key))
        else:
            yield (*path, key), tuple(item) if isinstance(item, list) else item


def test_every_leaf_has_a_default_and_a_test() -> None:
    """Every leaf's default is shown, and no leaf is missing from these tests."""
    assert set(dict(flat(DEFAULT_POLICY))) == set(leaves()) == set(LEAVES)
    assert effective() == Policy()
    assert effective().model_dump(mode="json") == DEFAULT_POLICY


@given(st.lists(settings_levels(), max_size=4))
def test_the_last_level_that_sets_a_value_decides_it(given_: list[dict[Any, Any]]) -> None:
    """Levels merge setting by setting, the later one overrides; lists are replaced whole."""
    wanted = dict(flat(DEFAULT_POLICY))
    for settings_level in given_:
        wanted |= {k: tuple(v) if isinstance(v, list) else v for k, v in settings_level.items()}
    policy = effective(*(nested(settings_level) for settings_level in given_))
    assert dict(flat(policy.model_dump(mode="json"))) == wanted
    assert effective(policy.model_dump()) == policy


@given(settings_levels(), settings_levels(), st.data())
def test_null_in_a_patch_inherits_again(
    weaker: dict[Any, Any], own: dict[Any, Any], data: st.DataObject
) -> None:
    """A null in a patch removes the setting, which is inherited again. [policy.null-resets]"""
    removed = data.draw(st.sets(st.sampled_from(list(LEAVES))))
    patched = merge(nested(own), nested(dict.fromkeys(removed)))
    left = {path: value for path, value in own.items() if path not in removed}
    assert effective(nested(weaker), patched) == effective(nested(weaker), nested(left))


@pytest.mark.parametrize(
    ("settings_level", "pointer"),
    [
        ({"sandwich": {"preserve_top": -1}}, "/sandwich/preserve_top"),
        ({"compaction": {"target": 1.0}}, "/compaction/target"),
        ({"compaction": {"retain_directives": "a"}}, "/compaction/retain_directives"),
        ({"preserve_user_messages": 1}, "/preserve_user_messages"),
        ({"budget": {"context_window": 4096}}, "/budget/max_output_tokens"),
        ({"strategy": "magic"}, "/strategy"),
        ({"sandwich": {"preserve_top": True}}, "/sandwich/preserve_top"),
        ({"sandwich": [1]}, "/sandwich"),
        ({"compaction": {"summary_directives": ["a", 1]}}, "/compaction/summary_directives/1"),
        ({"tool_output": {"context_budget_tokens": "all"}}, "/tool_output/context_budget_tokens"),
        ({"agent_tools": ["no_such_tool"]}, "/agent_tools"),
        ({"no_such_thing": 1}, "/no_such_thing"),
        ({"budget": {"windw": 1}}, "/budget/windw"),
    ],
)
def test_an_impossible_policy_is_refused_at_its_setting(
    settings_level: dict[str, Any], pointer: str
) -> None:
    """A wrong or impossible setting is a VALIDATION_ERROR that points at it."""
    with pytest.raises(ValidationError) as refused:
        effective({"budget": {"max_output_tokens": 4096}}, settings_level)
    assert pointer in [problem.pointer for problem in refused.value.problems]


def test_agent_tools_lists_the_tools_of_the_service() -> None:
    """The tools a policy may list are those that have definitions. [agent-tools.auto]"""
    assert tuple(AGENT_TOOLS) == AGENT_TOOL_NAMES

"""The check of a release finds every kind of break, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from release.compatibility import breaks

ROOT = Path(__file__).parent.parent
CURRENT = ROOT / "openapi" / "openapi.json"
PATH = "/v1/conversations/{conversation_id}"
Change = Callable[[Any], object]


def schema(name: str, change: Change) -> Change:
    """Change a schema."""
    return lambda document: change(document["components"]["schemas"][name])


BREAKS: list[tuple[Change, str]] = [
    (lambda document: document["paths"].pop(PATH), f"GET {PATH}: is gone"),
    (lambda document: document["paths"][PATH].pop("patch"), f"PATCH {PATH}: is gone"),
    (
        schema("ForkRequest", lambda fork: fork.update(required=["through_seq"])),
        "body.through_seq: is now required",
    ),
    (
        schema("ForkRequest", lambda fork: fork["properties"].pop("metadata")),
        "body.metadata: is gone",
    ),
    (
        schema("ShownConversation", lambda shown: shown["required"].remove("head_seq")),
        "200.head_seq: can be absent",
    ),
    (
        schema("ShownConversation", lambda shown: shown["properties"].pop("head_seq")),
        "200.head_seq: is gone",
    ),
]


@pytest.mark.parametrize(("change", "said"), BREAKS, ids=[said for _, said in BREAKS])
def test_each_kind_of_break_is_found(change: Change, said: str) -> None:
    """What a client of the released API may do or read is missed when it is gone."""
    document, changed = (json.loads(CURRENT.read_text("utf-8")) for _ in range(2))
    assert breaks(document, changed) == []
    change(changed)
    found = breaks(document, changed)
    assert any(line.endswith(said) for line in found), found

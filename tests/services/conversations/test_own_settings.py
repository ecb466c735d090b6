"""The caller's own settings: patched, and an expiry. [policy.null-resets, log.expiry]"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.common.errors import ValidationError
from app.common.ids import AgentId
from app.conversations.conversation import Agent
from app.conversations.schemas import AgentPatch, ConversationPatch
from app.conversations.settings import StoredSettings

NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


def patched(settings: StoredSettings, **fields: Any) -> StoredSettings:
    """Return the settings of an agent after a patch."""
    return AgentPatch(**fields).applied(Agent(AgentId("a"), "A", settings, "{}", NOW, NOW)).settings


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
    assert patched(StoredSettings(policy=stored), policy=patch).policy == expected


def test_a_patch_changes_only_its_fields() -> None:
    """What a patch does not name stays."""
    settings = StoredSettings("m", '{"strategy":"sandwich"}', "[1]", "[2]")
    assert patched(settings) == settings
    assert patched(settings, model=None).model is None


def test_an_expiry_is_a_time_or_seconds_from_now() -> None:
    """Both at once and a time that has passed are refused."""

    def expiry(**fields: Any) -> datetime | None:
        return ConversationPatch(**fields).expiry(NOW)

    time = NOW + timedelta(seconds=60)
    assert expiry(ttl_seconds=60) == expiry(expires_at=time.isoformat()) == time
    assert expiry(expires_at=None) is None
    with pytest.raises(ValidationError, match="future"):
        expiry(expires_at=NOW.isoformat())
    with pytest.raises(ValidationError, match="not both"):
        expiry(expires_at=time.isoformat(), ttl_seconds=60)

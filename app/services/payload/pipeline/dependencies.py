"""What the steps of a build need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.services.common.observers import UNOBSERVED
from app.services.compaction.compaction import CompactionService
from app.services.compaction.summariser import Summariser
from app.services.conversations.active_windows import ActiveWindows
from app.services.conversations.statuses import Statuses
from app.services.payload.payload_cache import PayloadCache
from app.services.ports import Database, Observer
from app.services.prompt.settings_resolver import SettingsResolver


@dataclass(frozen=True, slots=True)
class BuildDependencies:
    """The ports and services that build steps call."""

    database: Database
    resolver: SettingsResolver
    summariser: Summariser
    cache: PayloadCache
    active: ActiveWindows
    compaction: CompactionService
    statuses: Statuses
    new_id: Callable[[], str]
    observer: Observer = UNOBSERVED

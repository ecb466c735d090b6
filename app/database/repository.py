"""The base of all repositories."""

from __future__ import annotations

from app.conversations.rows import SettingsCache
from app.database.connections import Session


class Repository:
    """Statements of one kind, over one session; the cache is that of the process."""

    def __init__(self, session: Session, settings_cache: SettingsCache) -> None:
        self._session = session
        self._settings_cache = settings_cache

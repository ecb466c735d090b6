"""The services of one process over this test's database."""

from __future__ import annotations

import pytest

from app.repositories import Database
from tests.services.fakes import Harness, WatchedDatabase


@pytest.fixture
def harness(database: Database) -> Harness:
    """One process's services on this test's database."""
    return Harness(WatchedDatabase(database))

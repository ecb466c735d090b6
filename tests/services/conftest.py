"""The services of one process over this test's database."""

from __future__ import annotations

import pytest

from app.adapters.postgres.database import PostgresDatabase
from tests.services.fakes import Harness, WatchedDatabase


@pytest.fixture
def harness(database: PostgresDatabase) -> Harness:
    """One process's services on this test's database."""
    return Harness(WatchedDatabase(database))

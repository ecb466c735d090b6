"""The services of one process over this test's database."""

from __future__ import annotations

import pytest

from app.repositories import Database
from tests.services.fakes import Clock, Harness, ScriptedGateway, WatchedDatabase


@pytest.fixture
def harness(request: pytest.FixtureRequest, database: Database) -> Harness:
    """One process's services; the mark `services` of a module has their options."""
    mark = request.node.get_closest_marker("services")
    options = mark.kwargs if mark is not None else {}
    clock = Clock()
    return Harness(WatchedDatabase(database), ScriptedGateway(clock=clock), clock, **options)

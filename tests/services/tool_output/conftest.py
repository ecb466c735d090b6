"""Processes that store tool output, over each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from app.blobs.byte_store import BlobStore, ObjectStore
from app.repositories import Database
from tests.services.tool_output.builders import Process, summarising


@pytest.fixture(params=["rows", "objects"])
def kept(request: pytest.FixtureRequest) -> BlobStore:
    """Each place for the bytes in turn."""
    return ObjectStore("memory:///") if request.param == "objects" else BlobStore()


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to this test's database."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


@pytest.fixture
def process(database: Database, kept: BlobStore) -> Process:
    """One process's services with a model that summarises, over each kind of store."""
    return summarising(database, kept)

"""The app whose summariser is the scriptable model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from app.main import create_app
from app.settings import Settings
from tests.conftest import started


@pytest.fixture
def app(with_model: Settings) -> FastAPI:
    """The app whose summariser is the scriptable model; its worker runs when told to."""
    return create_app(with_model)


@pytest_asyncio.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that app."""
    async with started(app) as opened:
        yield opened

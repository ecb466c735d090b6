"""Where Alembic meets the database: the service's own connection, or one from the environment.

The service passes a connection (`app.database.migrate`). On Alembic's command line the
database is `CONTEXT_DIRECT_DATABASE_URL`, else `CONTEXT_DATABASE_URL`. Either way one process
migrates at a time, and no statement waits or runs for long.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial

import asyncpg
from alembic import context
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.database.migrate import TIMEOUTS, migration_lock


def run(connection: Connection) -> None:
    """Run the migrations, each in a transaction of its own."""
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


async def run_from_environment() -> None:
    """Run the migrations on the database that the environment names."""
    url = os.environ.get("CONTEXT_DIRECT_DATABASE_URL") or os.environ["CONTEXT_DATABASE_URL"]
    connect = partial(asyncpg.connect, url, server_settings=TIMEOUTS)
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with migration_lock(url), engine.connect() as connection:
        await connection.run_sync(run)


def print_sql() -> None:
    """Print the migrations as SQL, for a database that somebody else migrates."""
    context.configure(dialect_name="postgresql", literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    print_sql()
elif "connection" in context.config.attributes:
    run(context.config.attributes["connection"])
else:
    asyncio.run(run_from_environment())

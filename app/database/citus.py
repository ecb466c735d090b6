"""Citus: frequent statements as functions of shards, and a limit of connections for each node.

Citus plans a statement on several tables at each run, on the coordinator and on the worker. A call
of a function is sent on as it is, and the function's plans stay.

1. On each worker every shard of `conversations` has a schema. Views in it have the names of the
   tables, and functions the texts of the statements: the same statements as on one server.
2. `Calls` are what the service runs instead: functions of the coordinator, which Citus delegates to
   the worker of the conversation. Those that write lock the shard against a move, as Citus does.
3. The names have a digest of what they are made from. A process that does not find its functions,
   for instance after a shard was moved, runs the statements themselves, which costs more.
4. A node that hangs holds the connections that wait for it. `NodeLimits` leaves some of a process's
   connections to the conversations of other nodes.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from app.common.errors import ServiceUnavailable
from app.database.tables import APPEND, SCHEMA, TABLES

if TYPE_CHECKING:
    from app.database.connections import Statement

KEY = "conversation_id"
_PLACE_SECONDS = 300
_SHARE = 0.4
"""The part of a process's connections that one node can hold."""
_WORD, _HASH_START = 0xFFFFFFFF, 0x9E3779B9 + 3923095 + 16
_CONVERSATION: ContextVar[str | None] = ContextVar("conversation", default=None)
_PLACEMENTS = """
    SELECT shardid, CAST(shardminvalue AS bigint) AS start, groupid
    FROM pg_dist_shard JOIN pg_dist_placement USING (shardid)
    WHERE logicalrelid = to_regclass('conversations') ORDER BY start
"""
_LOCAL_SHARDS = """
    SELECT shardid, shardminvalue FROM pg_dist_shard
    JOIN pg_dist_placement USING (shardid) JOIN pg_dist_local_group USING (groupid)
    WHERE logicalrelid = 'conversations'::regclass
"""
_MISSING = """
    SELECT count(*) FROM ({shards}) s
    WHERE to_regclass(format('{schema}_%s.conversations', shardid)) IS NULL
"""
# `{functions}` are the texts of functions that are made in the schema of each shard.
_PLACE = """
DO $place$
DECLARE
    shard record; part record; place text; body text;
BEGIN
    PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    FOR place IN SELECT nspname FROM pg_namespace WHERE nspname ~ '^shard_[0-9a-f]+_[0-9]+$' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', place);
    END LOOP;
    FOR shard IN {shards} LOOP
        place := '{schema}_' || shard.shardid;
        EXECUTE format('CREATE SCHEMA %I', place);
        FOR part IN
            SELECT relname, shardid FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid
            WHERE relname = ANY ({tables})
                AND coalesce(s.shardminvalue = shard.shardminvalue, true)
        LOOP
            EXECUTE format('CREATE VIEW %I.%I AS SELECT * FROM public.%I',
                place, part.relname, part.relname || '_' || part.shardid);
        END LOOP;
        PERFORM set_config('search_path', place || ', public', true);
        FOREACH body IN ARRAY {functions} LOOP
            EXECUTE replace(body, '{schema}', place);
        END LOOP;
    END LOOP;
END $place$
"""
# They are made on every node by Citus.
_CALL = """
CREATE FUNCTION {schema}s.{name}({parameters}) RETURNS TABLE ({columns}) LANGUAGE plpgsql AS $call$
DECLARE
    shard CONSTANT bigint := get_shard_id_for_distribution_column('conversations', ${key});
BEGIN
    {lock}
    CASE shard {branches}
    ELSE RAISE undefined_function;
    END CASE;
END $call$;
SELECT create_distributed_function('{schema}s.{name}({parameters})', '${key}',
    colocate_with => 'conversations', force_delegation => true)
"""
_LOCK = """
    PERFORM lock_shard_metadata(5, ARRAY[shard]);
    PERFORM FROM pg_dist_placement JOIN pg_dist_local_group USING (groupid) WHERE shardid = shard;
    IF NOT FOUND THEN
        RAISE 'The shard was moved' USING ERRCODE = 'serialization_failure';
    END IF;
"""
# A text that is put together at each run would be planned at each run.
_BRANCH = "WHEN {shard} THEN RETURN QUERY SELECT * FROM {schema}_{shard}.{name}({places});"
_OLD = "SELECT nspname FROM pg_namespace WHERE nspname ~ '^shard_[0-9a-f]+s$'"
_ON_WORKERS = "SELECT success, result FROM run_command_on_workers($1)"
# The session of Citus on a worker does not have the settings of the service's sessions.
_RUN = """
CREATE FUNCTION {name}({parameters}) RETURNS TABLE ({columns}) LANGUAGE plpgsql
SET search_path = {schema}, public SET plan_cache_mode = force_generic_plan AS $run$
#variable_conflict use_column
BEGIN
    RETURN QUERY {sql};
END $run$
"""


@dataclass(frozen=True, slots=True)
class Calls:
    """What is run on Citus instead of those statements that are about one conversation.

    The functions are in the schema `schema`.
    """

    schema: str
    texts: Mapping[Statement, str]


def calls_of(statements: Sequence[Statement]) -> Calls:
    """Return the calls for these frequent statements."""
    schema = f"{_schema_of(statements)}s"
    texts = {
        statement: f"SELECT * FROM {schema}.{name}({_places(statement)})"
        for name, statement in _named(statements).items()
    }
    return Calls(schema, texts)


@contextmanager
def about(conversation_id: str) -> Iterator[None]:
    """Count the connections that are taken in the block to the node of this conversation."""
    token = _CONVERSATION.set(conversation_id)
    try:
        yield
    finally:
        _CONVERSATION.reset(token)


class NodeLimits:
    """Bounds how many connections of a process are for conversations of the same node.

    Those for no single conversation, such as for lists, are bounded alike. One server has no bound.
    """

    def __init__(self, size: int) -> None:
        self._limit = max(2, math.ceil(size * _SHARE))
        self._starts: Sequence[int] = ()
        self._nodes: Sequence[int] = ()
        self._slots: dict[int | None, asyncio.Semaphore] = {}

    async def load(self, connection: Any) -> None:
        """Read which node has which shard, of Citus."""
        rows = await connection.fetch(_PLACEMENTS)
        self._starts, self._nodes = [row["start"] for row in rows], [row["groupid"] for row in rows]

    def slot(self) -> asyncio.Semaphore | None:
        """Return what a connection that is taken now has to hold, if anything."""
        if not self._starts:
            return None
        key, node = _CONVERSATION.get(), None
        if key is not None:
            node = self._nodes[bisect_right(self._starts, uuid_hash(UUID(key).bytes)) - 1]
        return self._slots.setdefault(node, asyncio.Semaphore(self._limit))


def uuid_hash(key: bytes) -> int:
    """Return PostgreSQL's hash of a UUID, by which Citus chooses the shard."""
    words: tuple[int, ...] = struct.unpack("<4I", key)
    a, b, c = ((_HASH_START + word) & _WORD for word in words[:3])
    for bits in (4, 6, 8, 16, 19, 4):
        a = ((a - c) ^ _rotated(c, bits)) & _WORD
        a, b, c = b, (b + c) & _WORD, a
    a = (a + words[3]) & _WORD
    for bits in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = b, ((c ^ b) - _rotated(b, bits)) & _WORD, a
    return b - (_WORD + 1 if b > _WORD // 2 else 0)


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD


async def place(connection: Any, statements: Sequence[Statement]) -> None:
    """Make the functions that are missing on a cluster whose tables are distributed.

    Call it with the lock of migrations. Nothing is done on one server, nor while a node is down: a
    later call makes them then.
    """
    if not await connection.fetchval("SELECT to_regclass('pg_dist_partition') IS NOT NULL"):
        return
    schema, placed = _schema_of(statements), _LOCAL_SHARDS
    found = await connection.fetch(_ON_WORKERS, _MISSING.format(schema=schema, shards=placed))
    if not found or not all(row["success"] for row in found):
        return
    known = await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", f"{schema}s")
    if known and all(row["result"] == "0" for row in found):
        return
    shards = [row["shardid"] for row in await connection.fetch(_PLACEMENTS)]
    shapes = [await _shape_of(connection, schema, *each) for each in _named(statements).items()]
    functions = [APPEND, *(_RUN.format(**shape) for shape in shapes)]
    tables = [name for name in TABLES if name != "tenant_usage"]  # which is not by conversation
    placing = _PLACE.format(
        schema=schema, shards=placed, tables=_array(tables), functions=_array(functions)
    )
    for row in await connection.fetch(_ON_WORKERS, placing, timeout=_PLACE_SECONDS):
        if not row["success"]:
            facts = {"reason": row["result"]}
            raise ServiceUnavailable("The functions of the shards cannot be made", facts)
    async with connection.transaction():
        for (old,) in await connection.fetch(_OLD):
            await connection.execute(f"DROP SCHEMA {old} CASCADE")
        await connection.execute(f"CREATE SCHEMA {schema}s")
        for shape in shapes:
            branches = (_BRANCH.format(shard=shard, **shape) for shard in shards)
            await connection.execute(_CALL.format(branches="\n".join(branches), **shape))


async def _shape_of(
    connection: Any, schema: str, name: str, statement: Statement
) -> dict[str, Any]:
    """Return what the texts of a statement's functions are formatted with."""
    prepared = await connection.prepare(statement.sql)
    columns = (f'"{each.name}" {each.type.name}' for each in prepared.get_attributes())
    return {
        "name": name,
        "schema": schema,
        "sql": statement.sql,
        "key": statement.names.index(KEY) + 1,
        "places": _places(statement),
        "lock": "" if statement.is_read else _LOCK,
        "columns": ", ".join(columns),
        "parameters": ", ".join(each.name for each in prepared.get_parameters()),
    }


def _named(statements: Sequence[Statement]) -> Mapping[str, Statement]:
    own = (statement for statement in statements if KEY in statement.names)
    return {f"statement_{number}": statement for number, statement in enumerate(own, start=1)}


def _schema_of(statements: Sequence[Statement]) -> str:
    own = (SCHEMA, APPEND, _PLACE, _CALL, _LOCK, _BRANCH, _RUN)
    parts = (*own, *(each.sql for each in statements))
    return f"shard_{hashlib.sha256('//'.join(parts).encode()).hexdigest()[:8]}"


def _places(statement: Statement) -> str:
    return ", ".join(f"${number}" for number in range(1, len(statement.names) + 1))


def _array(texts: Sequence[str]) -> str:
    return f"CAST(ARRAY[{', '.join(f'$text${text}$text$' for text in texts)}] AS text[])"

"""A model on paper: what a number of agents and messages needs, and what it costs a month.

    python -m benchmarks.scale_model [NAME=VALUE …]

prints a table for three sizes. Each assumption is a field of `Parameters` and can be replaced on
the command line. Measured ones name the command that gave the default; the others are assumptions,
prices above all.

1. At the busiest time an active conversation takes a step (append, build) every `seconds_per_step`;
   the time between is that of the model, the tools and the user. Over a day there are
   `average_of_peak` as many.
2. Cores are those that the CPU time needs at `utilisation`, so that peaks and failures have room.
3. Every message is stored for good. `indexed_share` of them are compacted and have their words
   indexed, which takes CPU, disk and WAL once.
4. Database servers are as many as CPU, disk and WAL need, each with a standby. They share nothing:
   tenants are divided among them.
5. A process has the payload of `in_memory_share` of the steps in memory; it has to be given that
   memory (`CONTEXT_WINDOW_CACHE_BYTES`) and the requests of its conversations. The working set of
   the database is the rows that the payloads of all active conversations show.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import ceil

HOURS_A_MONTH = 730
GB, MB = 1e9, 1e6
XIDS_BEFORE_FREEZE = 200e6
"""`autovacuum_freeze_max_age` of PostgreSQL: after so many transactions it vacuums every table.

Each step is at most one; appends that wait go out in one.
"""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What is measured, what is assumed, and the prices."""

    # Measured; a message has 1000 characters.
    step_service_cpu_ms: float = 1.2  # --only scaling: a step, one process, `kept`
    step_database_cpu_ms: float = 0.34  # the same
    cold_step_service_cpu_ms: float = 3.1  # --only scaling: one process, `cold`
    cold_step_database_cpu_ms: float = 1.7  # the same
    further_message_service_cpu_ms: float = 0.04  # --only append: a message in a batch
    further_message_database_cpu_ms: float = 0.02  # the same
    indexing_service_cpu_ms: float = 3.8  # --only disk: compacting and indexing
    indexing_database_cpu_ms: float = 0.15  # the same
    message_bytes: float = 1_610  # --only disk: appended and built, all tables and indexes
    indexed_bytes: float = 2_500  # --only disk: what compacting and indexing add
    largest_table_bytes: float = 1_370  # --only disk: the rows of `messages`
    wal_bytes: float = 2_430  # --only disk: appended and built
    indexed_wal_bytes: float = 7_180  # --only disk: what compacting and indexing add
    dump_mib_per_second: float = 7  # --only disk
    # Assumed.
    seconds_per_step: float = 60
    average_of_peak: float = 0.25
    messages_per_step: float = 2
    indexed_share: float = 0.5
    shown_messages: float = 300
    in_memory_share: float = 0.5
    utilisation: float = 0.5
    server_vcpus: float = 64
    server_disk_tb: float = 16
    server_wal_mb_per_second: float = 200
    connections_per_process: float = 10
    copy_mb_per_second: float = 500
    kept_wal_days: float = 7
    kept_base_copies: float = 2
    # Prices in USD: round numbers to be replaced by those of a vendor.
    vcpu_hour: float = 0.05
    ssd_gb_month: float = 0.10
    object_gb_month: float = 0.025


@dataclass(frozen=True, slots=True)
class Need:
    """What one size needs, and its cost a month; `server` is one database server."""

    steps_per_second: float
    messages_per_second: float
    service_cores: int
    database_cores: int
    conversations_per_core: float
    days_to_store: float
    disk_tb: float
    servers: int
    largest_table_tb_per_server: float
    payload_memory_gb: float
    working_set_gb: float
    wal_mb_per_second: float
    connections_per_server: int
    hours_between_freezes: float
    base_copy_hours_per_server: float
    dump_days_per_server: float
    compute_usd: float
    disk_usd: float
    backup_usd: float

    @property
    def total_usd(self) -> float:
        """The cost a month."""
        return self.compute_usd + self.disk_usd + self.backup_usd


def need(active: float, stored: float, of: Parameters) -> Need:
    """Return what so many active conversations and stored messages need."""
    steps = active / of.seconds_per_step
    messages = steps * of.messages_per_step
    further, indexed = messages - steps, messages * of.indexed_share
    warm, cold = steps * of.in_memory_share, steps * (1 - of.in_memory_share)
    service_ms = warm * of.step_service_cpu_ms + cold * of.cold_step_service_cpu_ms
    service_ms += further * of.further_message_service_cpu_ms
    service_ms += indexed * of.indexing_service_cpu_ms
    database_ms = warm * of.step_database_cpu_ms + cold * of.cold_step_database_cpu_ms
    database_ms += further * of.further_message_database_cpu_ms
    database_ms += indexed * of.indexing_database_cpu_ms
    service_cores = ceil(service_ms / 1000 / of.utilisation)
    database_cores = ceil(database_ms / 1000 / of.utilisation)
    disk = stored * (of.message_bytes + of.indexed_share * of.indexed_bytes) / 1e12
    wal = messages * of.wal_bytes + indexed * of.indexed_wal_bytes
    servers = max(
        1,
        ceil(database_cores / of.server_vcpus),
        ceil(disk / of.server_disk_tb),
        ceil(wal / MB / of.server_wal_mb_per_second),
    )
    disk_a_server = disk * 1e12 / servers
    kept_wal = wal * of.average_of_peak * 86_400 * of.kept_wal_days
    kept = disk * 1e3 * of.kept_base_copies + kept_wal / GB
    compute = (service_cores + 2 * database_cores) * of.vcpu_hour * HOURS_A_MONTH
    shown = active * of.shown_messages * of.message_bytes / GB
    return Need(
        steps_per_second=steps,
        messages_per_second=messages,
        service_cores=service_cores,
        database_cores=database_cores,
        conversations_per_core=active / (service_cores + database_cores),
        days_to_store=stored / (messages * of.average_of_peak) / 86_400,
        disk_tb=disk,
        servers=servers,
        largest_table_tb_per_server=stored * of.largest_table_bytes / 1e12 / servers,
        payload_memory_gb=shown * of.in_memory_share,
        working_set_gb=shown,
        wal_mb_per_second=wal / MB,
        connections_per_server=ceil(service_cores * of.connections_per_process / servers),
        hours_between_freezes=XIDS_BEFORE_FREEZE / (steps * of.average_of_peak / servers) / 3600,
        base_copy_hours_per_server=disk_a_server / (of.copy_mb_per_second * MB) / 3600,
        dump_days_per_server=disk_a_server / (of.dump_mib_per_second * 2**20) / 86_400,
        compute_usd=compute,
        disk_usd=2 * disk * 1e3 * of.ssd_gb_month,
        backup_usd=kept * of.object_gb_month,
    )


SIZES = ((10_000, 100_000_000), (100_000, 1_000_000_000), (1_000_000, 10_000_000_000))
"""Active conversations, and stored messages."""


def table(needs: Sequence[tuple[int, int, Need]]) -> str:
    """Return the needs as a table in Markdown, one column for each size."""
    lines: list[tuple[str, list[str]]] = [
        ("active conversations", [f"{active:,}" for active, _, _ in needs]),
        ("stored messages", [f"{stored:,}" for _, stored, _ in needs]),
    ]
    for name in (*(field.name for field in fields(Need)), "total_usd"):
        values = [getattr(each, name) for _, _, each in needs]
        lines.append((name.replace("_", " "), [_short(value) for value in values]))
    rows = [f"| {name} | {' | '.join(cells)} |" for name, cells in lines]
    return "\n".join([rows[0], f"|{' --- |' * (len(needs) + 1)}", *rows[1:]])


def parsed(arguments: Sequence[str]) -> Parameters:
    """Replace parameters by arguments `NAME=VALUE`; raises ValueError for any other text."""
    known = {field.name for field in fields(Parameters)}
    given: dict[str, float] = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(sorted(known))}")
        given[name] = float(value)
    return replace(Parameters(), **given)


def _short(value: float) -> str:
    """Return a number with three digits or more."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


if __name__ == "__main__":
    try:
        parameters = parsed(sys.argv[1:])
    except ValueError as error:
        raise SystemExit(str(error)) from error
    print(table([(*size, need(*size, parameters)) for size in SIZES]))

"""The model of sizes and costs computes what its rules say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale_model import Parameters, need

PLAIN = Parameters(
    step_service_cpu_ms=1,
    step_database_cpu_ms=0.5,
    cold_step_service_cpu_ms=3,
    cold_step_database_cpu_ms=1.5,
    in_memory_share=1,
    further_message_service_cpu_ms=0,
    further_message_database_cpu_ms=0,
    indexing_service_cpu_ms=2,
    indexing_database_cpu_ms=1,
    message_bytes=1000,
    indexed_bytes=2000,
    wal_bytes=3000,
    indexed_wal_bytes=4000,
    seconds_per_step=10,
    average_of_peak=0.5,
    messages_per_step=1,
    indexed_share=0.5,
    utilisation=0.5,
    server_vcpus=4,
    server_disk_tb=1,
    server_wal_mb_per_second=1000,
    kept_wal_days=1,
    kept_base_copies=2,
    vcpu_hour=1,
    ssd_gb_month=0.1,
    object_gb_month=0.01,
)
"""Numbers that can be followed by hand."""


def test_cores_disk_and_cost_of_round_numbers() -> None:
    """10 000 conversations are 1000 steps a second: 1 + 0.5 x 2 ms of service, half are busy."""
    found = need(10_000, 1_000_000_000, PLAIN)
    assert (found.steps_per_second, found.messages_per_second) == (1000, 1000)
    assert (found.service_cores, found.database_cores) == (4, 2)
    assert found.disk_tb == pytest.approx(2)
    assert found.servers == 2
    assert found.wal_mb_per_second == pytest.approx(5)
    assert found.compute_usd == pytest.approx((4 + 2 * 2) * 730)
    assert found.disk_usd == pytest.approx(2 * 2000 * 0.1)
    assert found.backup_usd == pytest.approx((2 * 2000 + 2.5e6 * 86_400 / 1e9) * 0.01)
    assert found.days_to_store == pytest.approx(1_000_000_000 / 500 / 86_400)


@given(
    st.floats(min_value=1, max_value=1e6),
    st.floats(min_value=1, max_value=1e10),
    st.floats(min_value=1, max_value=10),
)
def test_more_conversations_and_messages_never_need_less(
    active: float, stored: float, factor: float
) -> None:
    """Needs and costs grow with the size."""
    small, large = (need(active * by, stored * by, Parameters()) for by in (1, factor))
    for name in ("service_cores", "database_cores", "disk_tb", "servers", "total_usd"):
        assert getattr(large, name) >= getattr(small, name)

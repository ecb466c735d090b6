"""Guessing keys: limited by network, in bounded memory, and never for a valid key.

[tenancy.guessing]
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import RateLimited, Unauthenticated
from app.repositories import Database
from app.tenancy import refused_keys
from app.tenancy.api_keys import network_of
from app.tenancy.api_keys_service import KeyService
from app.tenancy.refused_keys import RefusedKeys
from tests.services.fakes import Clock
from tests.services.tenancy.test_api_keys import created, secret

LIMIT = 3
HERE, ELSEWHERE = "192.0.2.7", "192.0.2.8"


def limited(database: Database, clock: Clock, reasons: list[str]) -> KeyService:
    """Return a key service with a limit of refused keys."""
    return KeyService(
        database,
        clock.utc,
        lambda: clock.now_ms() / 1000,
        refused_per_minute=LIMIT,
        refused=reasons.append,
    )


async def refusal(keys: KeyService, header: str, address: str = HERE) -> type[Exception]:
    """Return the error for a refused key."""
    with pytest.raises((Unauthenticated, RateLimited)) as caught:
        await keys.admit(header, address)
    if isinstance(caught.value, RateLimited):
        assert 0 < caught.value.facts["retry_after"] <= 60
    return caught.type


async def test_a_valid_key_passes_beside_any_number_of_guesses(
    database: Database,
) -> None:
    """Guesses over the limit are RateLimited until the minute ends; valid keys always pass."""
    clock, reasons = Clock(), list[str]()
    keys = limited(database, clock, reasons)
    header = await created(keys)
    other = await created(keys, key_id="f" * 12)
    guesses = [header.replace("s" * 43, "w" * 43), "Bearer ctx_nothing", f"Bearer ctx_{'0' * 12}_"]
    guesses[2] += secret("w")
    assert [await refusal(keys, guess) for guess in guesses] == [Unauthenticated] * LIMIT
    assert (await keys.admit(header, HERE)).tenant_id == "acme"
    for guess in (*guesses, *(f"Bearer ctx_{n:012}_{secret('w')}" for n in range(20))):
        assert await refusal(keys, guess) is RateLimited
        assert (await keys.admit(header, HERE)).tenant_id == "acme"
    assert (await keys.admit(other, HERE)).key_id == "f" * 12  # not in the cache before
    assert await refusal(keys, guesses[0], ELSEWHERE) is Unauthenticated
    with pytest.raises(Unauthenticated):  # without any key there is no guess
        await keys.admit("", HERE)
    clock.pass_seconds(60)
    assert await refusal(keys, guesses[0]) is Unauthenticated
    assert Counter(reasons) == Counter(
        {"wrong_secret": 3, "malformed": 1, "unknown": 1, "rate_limited": 23}
    )
    await keys.close()


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("192.0.2.7", "192.0.2.8", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("unknown", "testclient", True),
    ],
)
def test_networks(first: str, second: str, is_one: bool) -> None:
    """An IPv6 client has a /64 of addresses."""
    assert (network_of(first) == network_of(second)) is is_one


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=200))
def test_each_network_has_its_own_count(events: list[tuple[int, int]]) -> None:
    """Exactly the refusals over the limit of a minute are over it, for each network."""
    now = 0.0
    counted = RefusedKeys(LIMIT, lambda: now)
    expected: Counter[tuple[str, int]] = Counter()
    for network, pause in events:
        now += pause
        address = f"192.0.2.{network}"
        place = address, int(now // 60)
        assert counted.is_over(address) == (expected[place] >= LIMIT)
        expected[place] += 1
        assert counted.count(address) == max(0, expected[place] - LIMIT)
        assert 0 < counted.seconds_left() <= 60


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more networks than that, the counts of the latest are held."""
    monkeypatch.setattr(refused_keys, "MAX_NETWORKS", 100)
    counted = RefusedKeys(LIMIT, lambda: 0.0)
    for number in range(10_000):
        counted.count(f"10.0.{number // 256}.{number % 256}")
    assert len(counted._counts) == 100
    assert counted.count("10.0.39.15") == 0

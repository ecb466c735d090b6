"""What a key may do, over HTTP. [operation.caller]"""

from __future__ import annotations

import httpx

from app.main import create_app
from app.settings import Settings
from tests import keys
from tests.conftest import started


async def test_a_caller_without_keys_may_do_all(client: httpx.AsyncClient) -> None:
    """While there are no keys, the caller has no key and may write."""
    answer = (await client.get("/v1/caller")).json()
    assert answer["key_id"] is None and answer["read_only"] is False


async def test_a_key_is_told_what_it_may_do(settings: Settings) -> None:
    """A key is told its tenant and whether it may only read, and never its secret."""
    for read_only in (False, True):
        key = await keys.create("acme", "", None, settings, read_only=read_only)
        async with started(create_app(settings)) as client:
            assert (await client.get("/v1/caller")).status_code == 401
            answer = await client.get("/v1/caller", headers={"authorization": f"Bearer {key}"})
        shown = answer.json()
        assert (shown["tenant_id"], shown["read_only"]) == ("acme", read_only)
        assert shown["key_id"] and key not in answer.text

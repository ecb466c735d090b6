"""RegistryService: a tenant's own entries over the bundled ones. [models.tenant-entry]"""

from __future__ import annotations

import pytest

from app.common.errors import NotFound
from app.context.model_registry import RegistryService
from app.models.limits import merged_entry
from app.models.registry import ModelRegistry
from app.repositories import Database


@pytest.fixture
def registry(database: Database) -> RegistryService:
    """The service on this test's database."""
    return RegistryService(database, ModelRegistry())


def test_an_entry_overrides_single_fields() -> None:
    """A number of the tenant's entry replaces the bundled one, with its source."""
    bundled = ModelRegistry().find("gpt-4o")
    assert bundled is not None
    info = merged_entry("gpt-4o", bundled, '{"context_window": 9000, "exact": false}')
    assert (info.context_window, info.exact) == (9000, False)
    assert info.sources["context_window"] == "tenant"
    assert info.input_price == bundled.input_price
    assert info.sources["input_price"] == bundled.sources["input_price"]
    assert merged_entry("gpt-4o", bundled, None) == bundled
    own = merged_entry("mine", None, '{"input_price": 0.5}')
    assert (own.model, own.input_price, own.tokenizer, own.exact) == ("mine", 0.5, "unknown", False)


async def test_entries_belong_to_a_tenant(registry: RegistryService) -> None:
    """An entry belongs to one tenant."""
    await registry.put("one", "mine", {"context_window": 9000})
    assert (await registry.get("one", "mine")).context_window == 9000
    with pytest.raises(NotFound):
        await registry.get("two", "mine")
    with pytest.raises(NotFound):
        await registry.remove("two", "mine")
    await registry.remove("one", "mine")
    with pytest.raises(NotFound):
        await registry.get("one", "mine")


async def test_pages_end(registry: RegistryService) -> None:
    """The last page has no cursor. [api.lists]"""
    await registry.put("t", "zzz", {"context_window": 1})
    everything = await registry.list("t", 100_000, None)
    assert not everything.has_more
    assert everything[-1].model == "zzz"
    first = await registry.list("t", 1, None)
    assert first.has_more
    second = await registry.list("t", 1, first[0].model)
    assert second[0].model > first[0].model

"""Concurrent work with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


async def for_each(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Result]], max_at_once: int
) -> list[_Result]:
    """Do the work for all items, and return the results.

    An error is raised after the work for all items has ended, so that none continues in the
    background.
    """
    slots = asyncio.Semaphore(max_at_once)

    async def limited(item: _Item) -> _Result:
        async with slots:
            return await work(item)

    results = await asyncio.gather(*map(limited, items), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]

"""Concurrent work with a bound, and work in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import ParamSpec, TypeVar

THREAD_BYTES = 100_000
"""The length of a text from which it is parsed, checked and written in a thread.

Below it a thread costs more than the work: 100 messages of 1 KB are parsed in 0.3 ms.
"""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


async def in_thread_if(
    is_long: bool,
    work: Callable[_Arguments, _Result],
    *args: _Arguments.args,
    **options: _Arguments.kwargs,
) -> _Result:
    """Call a function, in a thread if it takes long."""
    if is_long:
        return await asyncio.to_thread(work, *args, **options)
    return work(*args, **options)


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

"""The work of `context-service compare`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from app.comparison.conversation import Export, Recorded
from app.comparison.replay import Options, Outcome, Replay, Source, measured
from app.comparison.service import running
from app.domain.common.policy import StrategyName
from app.settings import Settings


async def compare(
    found: Recorded | Export,
    strategies: Sequence[StrategyName],
    options: Options,
    settings: Settings,
) -> tuple[Source, list[Outcome]]:
    """Replay a conversation under each strategy in the database of the settings.

    Raises click.ClickException for a conversation that the service does not accept.
    """
    async with running(settings) as client:
        recorded = await client.import_(found) if isinstance(found, Export) else found
        source = await measured(client, recorded, options)
        unknown = sorted(pin for pin in options.pins if pin > source.messages)
        if unknown:
            raise click.ClickException(
                f"There is no message {unknown[0]} to pin: the last one is {source.messages}."
            )
        with click.progressbar(strategies, label="Comparing", file=sys.stderr) as names:
            outcomes = [await Replay(client, source, options, name).play() for name in names]
        return source, outcomes

"""Metrics as text, read back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from app.database.connections import PoolState
from app.jobs.repository import Waiting
from app.operation.recorder import Telemetry


@dataclass(frozen=True)
class Exposed:
    """What one answer of `/metrics` says: samples by name and labels, and kinds by name."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]
    kinds: Mapping[str, str]

    def value(self, name: str, **labels: str) -> float | None:
        """Return one sample of ours, None where it is missing."""
        return self.samples.get((f"context_{name}", frozenset(labels.items())))

    def total(self, name: str) -> float:
        """Return the sum of a metric of ours over all labels."""
        return sum(
            value for (found, _), value in self.samples.items() if found == f"context_{name}"
        )

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return a metric of ours by the values of these labels."""
        return {
            tuple(dict(pairs)[label] for label in labels): value
            for (found, pairs), value in self.samples.items()
            if found == f"context_{name}"
        }


def exposed(text: str) -> Exposed:
    """Read an answer of `/metrics`."""
    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Exposed(samples, dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)))


async def all_metrics() -> Mapping[str, str]:
    """Return the kind of every metric of ours that there can be, by the name it is asked for."""

    async def look() -> Waiting:
        return Waiting(0, 0, 0.0)

    telemetry = Telemetry()
    telemetry.watch(lambda: PoolState(0, 0, 0, 0), look)
    body, _ = await telemetry.scrape()
    kinds = exposed(body.decode()).kinds
    return {name: kind for name, kind in kinds.items() if name.startswith("context_")}

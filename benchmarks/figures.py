"""Numbers to text: percentiles, ratios and tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(slots=True)
class Section:
    """The results of one measurement: paragraphs and tables in Markdown."""

    name: str
    title: str
    parts: list[str] = field(default_factory=list)

    def add_text(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(text)

    def add_table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table."""
        lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]
        self.parts.append("\n".join(lines))

    def goal(self, name: str, goal: str, value: str, met: bool) -> None:
        """Add the line of one figure of merit."""
        self.parts.append(f"**{name}** {goal}: {value} ({'met' if met else 'not met'})")

    def text(self, command: str, when: str, load: float) -> str:
        """Return the section as it is printed.

        `load` is the machine's load average from before, when all of it was others' work.
        """
        begin = (
            f"## {self.name}: {self.title}\n\n`{command}`, {when}, {machine()},"
            f" load average before it {load:.1f}"
        )
        return "\n\n".join([begin, *self.parts]) + "\n"


def machine() -> str:
    """Describe the machine in general words."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {gib:.0f} GiB memory, Python {platform.python_version()}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share (0 to 1) of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def p50(values: Sequence[float]) -> float:
    """Return the median."""
    return median(values)


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return percentile(values, 0.95)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return percentile(values, 0.99)


@dataclass(slots=True)
class Samples:
    """Operations of one kind: their times, and CPU times of the server and of PostgreSQL."""

    seconds: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    postgres_cpu: list[float] = field(default_factory=list)

    def add(self, seconds: float, server_cpu: float, postgres_cpu: float) -> None:
        """Add one operation."""
        self.seconds.append(seconds)
        self.server_cpu.append(max(0.0, server_cpu))
        self.postgres_cpu.append(max(0.0, postgres_cpu))

    @property
    def cpu(self) -> list[float]:
        """The CPU times of server and PostgreSQL together."""
        return [sum(pair) for pair in zip(self.server_cpu, self.postgres_cpu, strict=True)]

    def cells(self) -> tuple[str, ...]:
        """Return the cells under `SAMPLE_HEADS`."""
        ways = (p50, p95, p99)
        cpu = (p50(self.server_cpu), p50(self.postgres_cpu))
        return tuple(ms(value) for value in (*(way(self.seconds) for way in ways), *cpu))


SAMPLE_HEADS = ("p50", "p95", "p99", "server CPU p50", "PostgreSQL CPU p50")


def ms(seconds: float) -> str:
    """Format seconds as milliseconds."""
    value = seconds * 1000
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(ratio: float) -> str:
    """Format a ratio."""
    return f"{ratio:.2f}x"


def kib(size_bytes: float) -> str:
    """Format bytes as KiB."""
    value = size_bytes / 1024
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def counts(counter: Mapping[str, int]) -> str:
    """Return counts as text, the most frequent first."""
    ordered = sorted(counter.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,}" for name, count in ordered) or "none"

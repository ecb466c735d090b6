"""The dashboard and the page on operation show every metric there is, and no other."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.exposition import all_metrics
from tests.log_calls import FOUND

DOCS = Path(__file__).parent.parent / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "context-service.json").read_text(encoding="utf-8"))
PAGE = (DOCS / "operation.md").read_text(encoding="utf-8")
NAME = re.compile(r"\bcontext_[a-z_]+\b")
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def items_of(heading: str) -> list[str]:
    """Return the items of the lists of a section of the page on operation."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^- (.*\n(?:  .*\n)*)", section, re.MULTILINE)
    return [" ".join(item.split()) for item in found]


def kinds_of(heading: str) -> dict[str, str]:
    """Return the names that a section lists as "`a`, `b` (kind): …", each with its kind."""
    found = (re.match(r"((?:`\w+`(?:, )?)+) \((\w+)\): ", item) for item in items_of(heading))
    return {name: match[2] for match in found if match for name in re.findall(r"\w+", match[1])}


def asked_for(expression: str) -> set[str]:
    """Return the names of the metrics of an expression, without labels."""
    return set(NAME.findall(re.sub(r"\{.*?\}(?=[\[)])", "", expression)))


def sampled(kinds: Mapping[str, str]) -> dict[str, str]:
    """Return each name that a sample can have, with its metric."""
    found = {name: name for name in kinds}
    for name in (name for name, kind in kinds.items() if kind == "histogram"):
        del found[name]
        found |= {f"{name}_{part}": name for part in ("bucket", "sum", "count")}
    return found


def expressions() -> Iterator[str]:
    """Yield every expression of the dashboard."""
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])


async def test_the_dashboard_shows_every_metric() -> None:
    """Each expression asks for metrics that exist, and each metric is shown. [operation.metrics]"""
    names = sampled(await all_metrics())
    shown = {name for text in expressions() for name in asked_for(text)}
    assert shown <= names.keys()
    assert {names[name] for name in shown} == set(names.values())


async def test_the_page_lists_every_metric() -> None:
    """The list of metrics has each by its name and kind, and no other. [operation.metrics]"""
    assert kinds_of("Metrics") == await all_metrics()


def test_the_page_lists_every_event() -> None:
    """The list of events has each by its name, and its level."""
    used = {"request": "info"}  # a record of its own, not a call of a logger's method
    for call in FOUND.values():
        name, attribute = call.args[0], call.func
        assert isinstance(name, ast.Constant) and isinstance(attribute, ast.Attribute)
        used[str(name.value)] = "error" if attribute.attr == "exception" else attribute.attr
    assert kinds_of("Logs") == used


async def test_the_alerts_ask_for_metrics_that_exist() -> None:
    """Every alert of the page is about metrics there are, and for some time. [operation.metrics]"""
    names = sampled(await all_metrics())
    items = items_of("Alerts")
    assert len(items) >= 10
    for item in items:
        match = re.fullmatch(r"[a-z ]+, for \d+m: `([^`]+)`", item)
        assert match is not None, item
        asked = asked_for(match[1])
        assert asked <= names.keys() and (asked or "up{" in item), item

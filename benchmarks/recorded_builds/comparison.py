"""How two recordings differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.recorded_builds.recorder import json_of


def compare(before: Path, after: Path, shown: int) -> bool:
    """Print how two recordings differ; return whether they are equal."""
    places = dict(_places(before))
    counted, differences = Counter[tuple[str, str]](), list[str]()
    with before.open("rb") as old_file, after.open("rb") as new_file:
        for text in new_file:
            new = json.loads(text)
            place = places.pop(new["label"], None)
            if place is None:
                counted[kind_of(new), "only in the second"] += 1
                continue
            old_file.seek(place)
            old = json.loads(old_file.readline())
            outcome = _outcome(old, new)
            counted[kind_of(new), outcome] += 1
            if outcome != "equal" and len(differences) < shown:
                differences.append(f"{new['label']}: {outcome}\n{_difference(old, new)}")
    for kind in ("build", "answer"):
        found = {outcome: number for (of, outcome), number in counted.items() if of == kind}
        parts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(found.items()))
        print(f"{'builds' if kind == 'build' else 'other answers'}: {sum(found.values())}: {parts}")
    print(f"only in the first: {len(places)}")
    print(*differences, sep="\n")
    return not places and all(outcome == "equal" for _, outcome in counted)


def _outcome(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Name how two answers compare; the order of keys counts inside of payloads alone."""
    if (old["status"], old["sha256"]) == (new["status"], new["sha256"]):
        return "equal"
    bodies = json_of(old["body"]), json_of(new["body"])
    if old["status"] != new["status"] or bodies[0] is None or bodies[0] != bodies[1]:
        return "different"
    payloads = [json.dumps(body.get("payload")) for body in bodies if isinstance(body, dict)]
    return "in another order" if len({*payloads}) <= 1 else "different"


def _difference(old: Mapping[str, Any], new: Mapping[str, Any], around: int = 150) -> str:
    pairs = zip(old["body"], new["body"], strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
    lines = [f"  at character {at} of {len(old['body'])} and {len(new['body'])}"]
    for sign, line in (("-", old), ("+", new)):
        lines.append(
            f"  {sign} {line['status']} …{line['body'][max(0, at - around) : at + around]}"
        )
    return "\n".join(lines)


def kind_of(line: Mapping[str, Any]) -> str:
    """Return `build` for the answer of a build, else `answer`."""
    return "build" if " build " in line["label"] else "answer"


def _places(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the label of each line, and where the line begins."""
    place = 0
    with path.open("rb") as file:
        for text in file:
            yield json.loads(text)["label"], place
            place += len(text)

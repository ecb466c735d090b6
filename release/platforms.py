"""Tries what the service runs on: `python -m release.platforms [--test]`; needs uv.

1. Each locked package has a wheel for each version of Python on each platform.
2. With `--test`, each of these versions that is on this machine runs the tests of the domain, of
   payloads, prompts and compactions over HTTP, of the command line and of backups, in an
   environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
API = ("compaction", "http", "payload", "prompt")
TESTS = (
    "tests/domain",
    "tests/test_cli.py",
    "tests/test_backups.py",
    *(f"tests/api/{it}" for it in API),
)


def works(*command: str | Path, **environ: str) -> bool:
    """Run a command and return whether it succeeds; its errors are shown."""
    return not subprocess.run(command, cwd=ROOT, env=os.environ | environ, check=False).returncode


def has_wheels(python: str, platform: str) -> bool:
    """Return whether everything can be installed without a compiler (rule 1)."""
    hashed = ("--only-binary", ":all:", "--require-hashes", "-r", "requirements-all.lock")
    with tempfile.TemporaryDirectory() as folder:
        target = ("--python-version", python, "--python-platform", platform, "--target", folder)
        return works("uv", "pip", "install", "--quiet", "--dry-run", "--no-deps", *target, *hashed)


def passes(python: str) -> bool:
    """Return whether the tests pass with a version of Python (rule 2)."""
    install = ("uv", "pip", "install", "--quiet", "--no-deps", "--python")
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "bin", "python")
        made = works("uv", "venv", "--quiet", "--no-python-downloads", "--python", python, folder)
        return (
            made
            and works(*install, own, "-r", "requirements.lock", "-r", "requirements-dev.lock")
            and works(*install, own, "-e", ".")
            and works(own, "-m", "pytest", "-q", "-n", "2", *TESTS, PYTHONPATH=str(ROOT))
        )


@click.command()
@click.option("--test", "tests", is_flag=True, help="Run tests by each Python of this machine.")
@click.option("--python", "pythons", multiple=True, default=PYTHONS, show_default=True)
def main(tests: bool, pythons: tuple[str, ...]) -> None:
    """Print a line for each version and platform; the exit code is 1 if one fails."""
    done = {f"Python {it} on {on}": has_wheels(it, on) for it in pythons for on in PLATFORMS}
    for python in pythons if tests else ():
        if works("uv", "python", "find", "--quiet", "--no-python-downloads", python):
            done[f"Python {python}, tests"] = passes(python)
        else:
            click.echo(f"Python {python} is not on this machine.")
    for name, is_well in done.items():
        click.echo(f"{name}: {'works' if is_well else 'FAILED'}")
    sys.exit(not all(done.values()))


if __name__ == "__main__":
    main()

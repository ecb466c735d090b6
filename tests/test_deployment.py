"""The files in `deploy/`, the images and the compose stack fit together and fit the service."""

from __future__ import annotations

import re
import tomllib
from configparser import RawConfigParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

from app.settings import Settings, unknown_variables
from tests.commands import settings_from

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
GUIDE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
OURS = ("api", "migrate", "worker")
SIZES = {"m": 2**20, "g": 2**30}


def loaded(path: Path) -> Any:
    """Return what a YAML file holds."""
    return YAML(typ="safe").load(path)


COMPOSE = loaded(ROOT / "docker-compose.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def environment(service: str) -> dict[str, str]:
    """Return a service's environment as compose fills it in where nothing else is set."""
    given = SERVICES[service].get("environment", {})
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text) for name, text in given.items()}


def settings(service: str) -> Settings:
    """Return the settings that a service reads from its environment."""
    return settings_from(environment(service))


def pooler() -> RawConfigParser:
    """Return the configuration of PgBouncer."""
    parser = RawConfigParser(delimiters=("=",), comment_prefixes=(";",))
    parser.read(DEPLOY / "pgbouncer.ini")
    return parser


def published(service: str) -> list[tuple[str, range, int]]:
    """Return for each port of a service its address, the ports there, and the port inside."""
    found = []
    for text in SERVICES[service].get("ports", []):
        address, outside, inside = text.rsplit(":", 2)
        first, _, last = outside.partition("-")
        found.append((address, range(int(first), int(last or first) + 1), int(inside)))
    return found


@pytest.mark.parametrize("service", OURS)
def test_every_variable_is_a_setting(service: str) -> None:
    """What compose sets are settings with values the service takes, and all of them are used."""
    assert unknown_variables(environment(service)) == []
    assert settings(service).database_pooler == "transaction"


def test_ports_are_published_to_this_machine_only() -> None:
    """Nobody is asked for a key at first, so no port is reached from elsewhere."""
    assert settings("api").allow_unauthenticated
    addresses = {name: [port[0] for port in published(name)] for name in SERVICES}
    assert addresses.pop("api") == ["127.0.0.1"]
    assert addresses.pop("prometheus") == ["127.0.0.1"]
    assert not any(addresses.values())


def test_processes_wait_until_the_schema_is_there() -> None:
    """Migrations run once, to their end, before anything that needs them. [operation.pooler]"""
    for name in ("api", "worker"):
        waited = SERVICES[name]["depends_on"]["migrate"]
        assert waited == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["command"] == ["migrate"]
    assert SERVICES["migrate"]["restart"] == "no"


@pytest.mark.parametrize("service", OURS)
def test_requests_go_through_the_pooler_and_migrations_past_it(service: str) -> None:
    """Both URLs lead to one database, by way of the configuration that is mounted."""
    config = pooler()
    pooled = urlsplit(settings(service).database_url or "")
    direct = urlsplit(settings(service).direct_database_url or "")
    assert (pooled.hostname, direct.hostname) == ("pgbouncer", "postgres")
    assert pooled.port == config.getint("pgbouncer", "listen_port")
    (database,) = config["databases"]
    assert pooled.path == direct.path == f"/{database}"
    assert f"host={direct.hostname} port={direct.port} " in config["databases"][database]
    assert environment("postgres")["POSTGRES_DB"] == database
    for account in (environment("postgres"), environment("pgbouncer")):
        assert account["POSTGRES_USER"] == pooled.username == direct.username
        assert account["POSTGRES_PASSWORD"] == pooled.password == direct.password


@pytest.mark.parametrize("service", [*OURS, "pgbouncer", "prometheus"])
def test_containers_can_write_to_memory_only(service: str) -> None:
    """Who gets into a container finds no right to gain, and no file to change."""
    found = SERVICES[service]
    assert found["read_only"]
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("service", ["api", "worker"])
def test_processes_have_the_time_to_stop_that_they_need(service: str) -> None:
    """SIGTERM finishes within 10 s, and nobody kills before. [operation.shutdown]"""
    assert int(SERVICES[service]["stop_grace_period"].removesuffix("s")) > 10


def test_the_image_holds_what_the_wheel_is_made_of() -> None:
    """Each folder and file of the wheel is let into the build and copied there."""
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    wanted = {*wheel["packages"], project["readme"], *project["license-files"], "pyproject.toml"}
    copies = re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {name for names in copies for name in names.split()}
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert wanted <= copied
    assert copied == {line[1:] for line in allowed if line.startswith("!")}
    for package in wheel["packages"]:
        assert f"COPY {package} {package}\n" in DOCKERFILE


LOCKS = ["requirements-all.lock", "requirements-build.lock"]


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_installed_is_pinned_by_hash(lock: str) -> None:
    """The image installs wheels of the lock and nothing else, each checked by its hash."""
    commands = [line for line in DOCKERFILE.split("&&") if f"-r {lock}" in line]
    assert len(commands) == 1
    assert "--require-hashes" in commands[0]
    assert "--only-binary :all:" in commands[0]
    text = (ROOT / lock).read_text(encoding="utf-8").replace("\\\n", "")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert pins
    assert all("==" in pin and "--hash=sha256:" in pin for pin in pins)

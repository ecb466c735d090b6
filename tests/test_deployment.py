"""The files in `deploy/`, the images and the compose stack fit together and fit the service."""

from __future__ import annotations

import re
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
OURS = ("api", "migrate", "worker")


def loaded(path: Path) -> Any:
    """Return what a YAML file holds."""
    return YAML(typ="safe").load(path)


COMPOSE = loaded(ROOT / "docker-compose.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]


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


@pytest.mark.parametrize("service", OURS)
def test_every_variable_is_a_setting(service: str) -> None:
    """What compose sets are settings with values the service takes, and all of them are used."""
    assert unknown_variables(environment(service)) == []
    assert settings(service).database_pooler == "transaction"


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

"""Clusters of another major version of PostgreSQL, where a package has installed its programs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.database.embedded_cluster import DATABASE, Cluster, account_for
from app.database.embedded_upgrade import programs_of

VERSIONS = [version for version in ("14", "15", "16", "17") if programs_of(version) is not None]
other_version = pytest.mark.skipif(not VERSIONS, reason="no other PostgreSQL is installed here")


def other_programs() -> Path:
    """Return the folder of the programs of the newest other version."""
    folder = programs_of(VERSIONS[-1])
    assert folder is not None
    return folder


def make_cluster(data_dir: Path) -> None:
    """Make a data directory as a release with an older PostgreSQL has left it."""
    data_dir.chmod(0o755)
    for parent in data_dir.parents:  # the account of the cluster has to reach it
        mode = stat.S_IMODE(parent.stat().st_mode)
        if not mode & stat.S_IXOTH:
            parent.chmod(mode | stat.S_IXOTH)
    path = data_dir / "postgres"
    cluster = Cluster(path, other_programs(), account_for(path))
    path.mkdir()
    if cluster.account is not None:
        os.chown(path, cluster.account.uid, cluster.account.gid)
    options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
    made = cluster.run("initdb", "-D", str(path), *options)
    assert made.returncode == 0, made.stdout
    with (path / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write("listen_addresses = ''\n")  # as every release has it
    text = f'CREATE DATABASE "{DATABASE}"\n'
    cluster.run("postgres", "--single", "-D", str(path), "postgres", text=text)

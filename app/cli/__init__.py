"""The command line: `serve | worker | migrate | backup | restore | …`.

1. A flag sets its environment variable and overrides it, so child processes see the same settings.
2. An error that a user can fix is one line on stderr without a traceback, with one of the exit
   codes of `--help`.
3. Slow imports happen inside the commands, or while the database starts.
"""

from __future__ import annotations

import click

from app.cli.backup import backup, restore
from app.cli.database import Group, migrate
from app.cli.documents import demo, openapi, settings
from app.cli.keys import keys, tenants
from app.cli.serve import serve, worker


@click.group(
    cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="context-service")
def cli() -> None:
    """Keep every message of an LLM agent, and build the exact payload for its next call.

    Every setting is a CONTEXT_… environment variable; docs/configuration.md lists them. The --help
    of a command shows which of them are also flags.

    \b
    Exit codes:
      0  done, or stopped by a signal
      1  not done, for the reason on stderr
      2  wrong arguments or settings, or a database that cannot be used
      3  the private database was lost meanwhile
    """


for command in (
    *(serve, worker, migrate, backup, restore, keys, tenants),
    *(demo, openapi, settings),
):
    cli.add_command(command)


def main() -> None:
    """Run the command line; the console script `context-service`."""
    cli(prog_name="context-service")

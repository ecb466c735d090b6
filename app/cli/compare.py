"""The command `compare`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

import click

from app.cli.database import database, migrated, run_in
from app.cli.options import exiting_on_sigterm, read_settings, setting

if TYPE_CHECKING:
    from enum import StrEnum

    from app.comparison.replay import Target

Value = TypeVar("Value", bound="StrEnum")

MAX_TARGET = 100_000_000
_TARGET = re.compile(r"(\d{1,9}(?:\.\d{1,4})?)\s*(%?)")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--conversation", metavar="ID", help="Id or number of the conversation, if FILE holds several."
)
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME",
    help="A strategy to compare; repeat it for several. Default: all.",
)
@click.option(
    "--format",
    "format_name",
    metavar="NAME",
    help="Format of the messages and payloads, such as anthropic. Default: what FILE looks like.",
)
@click.option(
    "--target-tokens",
    metavar="N|N%",
    default="30%",
    show_default=True,
    help="Tokens of the payload to aim for, or a percentage of the whole payload so far.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 50),
    default=3,
    show_default=True,
    help="Parts of the conversation; it is compacted after each one.",
)
@click.option(
    "--context-window",
    type=click.IntRange(1, MAX_TARGET),
    help="Tokens of the window; what is due in it is compacted too. Default: the whole fits.",
)
@click.option(
    "--pin",
    "pins",
    type=click.IntRange(1),
    multiple=True,
    help="Position of a message to pin, from 1; repeat it for several. An export has its own pins.",
)
@click.option(
    "--model", default="gpt-4.1", show_default=True, help="Model that the payloads are for."
)
@setting("summarizer_model")
@click.option(
    "--call-model",
    is_flag=True,
    help="Summarise by the summariser model. Default: its tokens and cost are only estimated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(
    file: Path,
    conversation: str | None,
    strategies: tuple[str, ...],
    format_name: str | None,
    target_tokens: str,
    rounds: int,
    context_window: int | None,
    pins: tuple[int, ...],
    model: str,
    call_model: bool,
    as_json: bool,
) -> None:
    """Run one conversation through several strategies, and print the results side by side.

    FILE is an export of the service, or JSON or lines of JSON: messages, or conversations with
    messages, in the format of OpenAI Chat, OpenAI Responses, Anthropic or Gemini. Everything runs
    in a private database that is deleted in the end; no service is needed, and none is used.
    """
    from app.comparison import command, report
    from app.comparison.conversation import read
    from app.comparison.replay import Options
    from app.domain.common.messages import FormatName
    from app.domain.common.policy import StrategyName

    names = [_known(StrategyName, name, "--strategy") for name in dict.fromkeys(strategies)]
    format = _known(FormatName, format_name, "--format") if format_name else None
    target = _target(target_tokens)
    settings = read_settings()
    if call_model and settings.summarizer_model is None:
        raise click.UsageError("--call-model needs --summarizer-model.")
    found = read(file, conversation, format)
    options = Options(
        model,
        target,
        rounds,
        context_window,
        frozenset(pins),
        settings.summarizer_model,
        call_model,
    )
    with exiting_on_sigterm(), TemporaryDirectory(prefix="context-compare-") as folder:
        settings = settings.model_copy(
            update={
                "data_dir": Path(folder),
                "database_url": None,
                "direct_database_url": None,
                "database_pooler": "none",
                "log_level": "error",
            }
        )
        with database(settings) as url:
            migrated(url)
            source, outcomes = run_in(
                settings,
                url,
                lambda used: command.compare(found, names or list(StrategyName), options, used),
            )
    if as_json:
        click.echo(json.dumps(report.as_json(source, options, outcomes), indent=2))
        return
    for line in report.table(source, options, outcomes):
        click.echo(line)


def _known(names: type[Value], name: str, option: str) -> Value:
    """Return the member of an enumeration; raises BadParameter that lists the known ones."""
    try:
        return names(name)
    except ValueError:
        known = ", ".join(member.value for member in names)
        raise click.BadParameter(f"{name!r} is not one of {known}.", param_hint=option) from None


def _target(text: str) -> Target:
    from app.comparison.replay import Target

    found = _TARGET.fullmatch(text.strip())
    value = float(found[1]) if found is not None else 0.0
    if found is not None and found[2] and 0 < value <= 100:
        return Target(share=value / 100)
    if found is not None and not found[2] and value == int(value) and 0 < value <= MAX_TARGET:
        return Target(tokens=int(value))
    raise click.BadParameter(
        f"{text!r} is neither a number of tokens nor a percentage such as 30%.",
        param_hint="--target-tokens",
    )

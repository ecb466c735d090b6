"""Shared by the commands: options that set variables, the settings, errors with exit codes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from app.environment import SettingsError, variable

if TYPE_CHECKING:
    from app.settings import Settings

Command = Callable[..., Any]


class Misconfigured(click.ClickException):
    """A setting is invalid, or names a database that cannot be used."""

    exit_code = 2


class SettingOption(click.Option):
    """A flag that sets the environment variable of a setting.

    Its help is the setting's description, loaded when it is shown because the import is slow.
    """

    def __init__(self, declarations: list[str], **attributes: Any) -> None:
        self.setting = declarations[0].removeprefix("--").replace("-", "_")
        name = variable(self.setting)

        def export(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
            if value is not None:
                os.environ[name] = value

        options = {"callback": export, "envvar": name, "expose_value": False, "show_envvar": True}
        super().__init__(declarations, **(attributes | options))

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the flag with the setting's description and default."""
        from app.settings import Settings, description_of

        field = Settings.model_fields[self.setting]
        self.help = description_of(self.setting)
        self.show_default = str(field.default) if field.default is not None else False
        return super().get_help_record(ctx)


def setting(name: str) -> Callable[[Command], Command]:
    """Return the option of the setting `name`."""
    return click.option(f"--{name.replace('_', '-')}", cls=SettingOption)


def on_database(command: Command) -> Command:
    """Give a command the options that select the database."""
    return setting("database_url")(setting("data_dir")(command))


def read_settings() -> Settings:
    """Return the settings, and warn of variables that no setting reads."""
    from app.settings import read_settings, unknown_variables

    for name in unknown_variables(os.environ):
        click.echo(f"Warning: {name} is not a setting of this service.", err=True)
    try:
        return read_settings()
    except SettingsError as exc:
        raise Misconfigured(str(exc)) from exc


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` blocks and context managers run."""

    def exit_cleanly(_signal: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(0)

    previous = signal.signal(signal.SIGTERM, exit_cleanly)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)

"""Groups of commands whose help is readable on a terminal of 80 columns."""

from collections.abc import Callable
from typing import Any

import typer

from cli.option_needs import CheckedCommand


class _Group(typer.Typer):
    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": CheckedCommand, **more})


def command_group(help_text: str, *, name: str | None = None) -> typer.Typer:
    """Return a group of commands that shows its help when called without one, as plain text: tables of 80 columns
    cut options' names."""
    group = _Group(
        name=name,
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    group.callback()(lambda: None)  # so that a group of one command is a group
    return group

"""Groups of commands whose help is readable on a terminal of 80 columns."""

from collections.abc import Callable
from typing import Any

import typer

from cli.option_needs import CheckedCommand


class _Group(typer.Typer):
    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": CheckedCommand, **more})


def command_group(help_text: str, *, name: str | None = None) -> typer.Typer:
    """Make a group that shows its help without a command, in plain text: tables of 80 columns cut names of options."""
    return _Group(
        name=name,
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

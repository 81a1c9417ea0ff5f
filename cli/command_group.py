"""Groups of commands whose help is whole on a terminal of 80 columns."""

import typer


def command_group(help_text: str, *, name: str | None = None) -> typer.Typer:
    """Without a command it shows its help. In plain text: in tables of 80 columns, names of options are cut."""
    return typer.Typer(
        name=name,
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

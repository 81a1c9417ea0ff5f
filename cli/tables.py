"""Tables for people, and JSON for programs: printed the same way by all commands."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from cli.exit_code import ExitCode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def table(
    *columns: str, rows: Iterable[Iterable[Any]] = (), title: str | None = None, without_lines: bool = False
) -> "Table":
    """Return a table. A column whose name begins with `>` has numbers; without lines, such columns are never
    wrapped."""
    from rich.table import Table
    from rich.text import Text

    look: Mapping[str, Any] = {"box": None, "padding": (0, 2, 0, 0), "pad_edge": False} if without_lines else {}
    made = Table(title=title, **look)
    for column in columns:
        is_number = column.startswith(">")
        name, is_whole = column.removeprefix(">"), is_number and without_lines
        # What is wider than the terminal goes on in the next line; nothing of it is lost.
        made.add_column(name, justify="right" if is_number else "left", no_wrap=is_whole, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    return made


def fitted(*columns: str, rows: Iterable[Iterable[Any]], drop: Iterable[str], title: str | None = None) -> "Table":
    """Return a table without lines that fits the terminal: columns in `drop` are left out, in that order, until it
    does."""
    from rich.cells import cell_len

    cells = [list(row) for row in rows]
    names = [column.removeprefix(">") for column in columns]
    widths = [max(map(cell_len, (names[at], *(str(row[at]) for row in cells)))) + 2 for at in range(len(names))]
    kept, width = list(range(len(names))), plain_console().width
    for name in (one for one in drop if one in names):
        if sum(widths[at] for at in kept) - 2 <= width:
            break
        kept.remove(names.index(name))
    told = [[row[at] for at in kept] for row in cells]
    return table(*(columns[at] for at in kept), rows=told, title=title, without_lines=True)


def show(*shown: "Table | Text | str") -> None:
    """Print tables and lines on standard output."""
    console = plain_console()
    for one in shown:
        console.print(one)


def plain_console(*, stderr: bool = False) -> "Console":
    """Return a console that shows text as it is: brackets, as in patterns and addresses, are no markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False)


def fail(told: object, code: ExitCode, *, json: bool) -> NoReturn:
    """End the command with this error text and exit code."""
    tell_failure(told, code, json=json)
    raise typer.Exit(code)


def tell_failure(told: object, code: ExitCode, *, json: bool) -> None:
    """Print an error on standard error and, with `json`, on standard output."""
    from plugin.errors import in_words

    text = in_words(told)
    if json:
        tell_json({"error": text}, code)
    typer.echo(f"remote-wal: {text}", err=True)


def tell_json(document: Mapping[str, object], code: ExitCode = ExitCode.GOOD) -> None:
    """Print a JSON document in one line on standard output, with the exit code in it."""
    import json

    typer.echo(json.dumps({"exit_code": code, **document}))

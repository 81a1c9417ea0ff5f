"""Whether a command with these options exists: of documents, and of what stands in deploy/."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from typer.main import get_command

from cli.main import build_app
from perf.__main__ import app as perf_app


@cache
def _command_lines() -> dict[str, Any]:
    return {"": get_command(build_app()), "perf": get_command(perf_app)}


def is_command(program: str, words: Sequence[str]) -> bool:
    """`program` is `perf`, or nothing for `remote-wal`; arguments and options' values may be anything."""
    command = _command_lines()[program]
    options = {"--help", "--version"}
    for word in words:
        if hasattr(command, "commands") and not word.startswith("-"):
            if word not in command.commands:
                return False
            command = command.commands[word]
            if command.context_settings.get("ignore_unknown_options"):  # the rest is another program's
                return True
            options |= {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        elif word.startswith("--") and word.partition("=")[0] not in options:
            return False
    return True

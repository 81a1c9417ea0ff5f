"""Options that several commands share, as dataclasses: one parameter of a function is many options of its command."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

import typer
from typer.core import TyperGroup

from cli.option_needs import CheckedCommand

Command = Callable[..., None]


def grouped(command: Command) -> Command:
    """Return the command with the fields of each dataclass parameter as options, which Typer can read.

    A field is declared like the command's own options, and is required if it has no default.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters, groups = [], {}
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = (hints[name], _options(hints[name]))
            parameters += groups[name][1]
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))

    def run(**given: Any) -> None:
        for name, (group, options) in groups.items():
            given[name] = group(**{option.name: given.pop(option.name) for option in options})
        command(**given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [_option(field, hints[field.name]) for field in fields(group)]


def _option(field: "Field[Any]", annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raise UsageError that names where a command is that is not of this group, but of all."""
        root = ctx.find_root()
        if args[0] in root.command.commands and args[0] not in self.commands:
            here = ", ".join(self.commands)
            ctx.fail(f"No such command {args[0]!r}: is {root.info_name} {args[0]} meant? Here are {here}.")
        return super().resolve_command(ctx, args)


class _Group(typer.Typer):
    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": CheckedCommand, **more})


def command_group(help_text: str, *, name: str | None = None) -> typer.Typer:
    """Return a group of commands that shows its help when called without one, as plain text: tables of 80 columns
    cut options' names."""
    group = _Group(
        name=name,
        cls=_Commands,
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    group.callback()(lambda: None)  # so that a group of one command is a group
    return group

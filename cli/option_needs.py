"""Options that have no effect, as another one is missing, excludes them, or is given after them, are errors."""

import math
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand

from plugin.errors import in_our_words

_Table = Mapping[str, Mapping[str, tuple[str, ...]]]

_OF_CLUSTER: Final = {"--command-config": ("--bootstrap-server",)}

NEEDS: Final[_Table] = {
    **dict.fromkeys(
        (
            "decommission", "verify", "recover", "held list", "held restore", "held give-up", "lease take",
            "metadata rebuild", "pause", "resume",
        ),
        _OF_CLUSTER,
    ),
    "describe": {"--verbose": ("--why",)},
    "orphans": {"--confirm": ("--heal",)},
    "doctor": {"--agent": ("--before-restart",), "--wait": ("--before-restart",)},
    "recover": {**_OF_CLUSTER, "--require-mount": ("--if-empty",)},
    "estimate": dict.fromkeys(("--weeks", "--bytes-in", "--bytes-out"), ("--prometheus",)),
    "gateway plan": {
        "--pipelined": ("--durable",),
        "--listener": ("--front",),
    },
    "reassign balance": {"--every": ("--watch",)},
}  # fmt: skip
"""By command and option: the options of which one must be given, too, or given with a value."""

_OF_OBJECTS: Final = {"--cluster-metadata": ("--bootstrap-server",)}
_OF_TAILS: Final = {"--no-upload-tail": ("--upload-timeout",)}
_OF_FILES: Final = {"--local": ("--bootstrap-server",), "--bootstrap-server": ("--broker-config",)}

EXCLUDES: Final[_Table] = {
    "verify": _OF_OBJECTS,
    "recover": _OF_OBJECTS,
    **{f"reassign {one}": _OF_TAILS for one in ("drain", "join", "balance", "execute")},
    "pause": _OF_FILES,
    "resume": _OF_FILES,
    "describe": {"--objects": ("--topic", "--why")},
    "topics enable": {"--link-policy=always": ("--latency-bound-ms", "--upload-wait-max-ms")},
    "gateway plan": {
        "--front": (
            "--gateway-name", "--security-protocol", "--agents-security-protocol", "--zone-port",
            "--gateway-port-base", "--loopback-port-step", "--replica-port-base", "--listener-prefix", "--durable",
            "--pipelined", "--bootstrap",
        ),
    },
}  # fmt: skip
"""By command and option: options that would have no effect beside it."""


class CheckedCommand(TyperCommand):
    """A command that refuses options without effect before it does anything."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raise BadParameter for an option that is given again, as only the last one would count, and for no number."""
        texts, _, given = self.make_parser(ctx).parse_args(args=[*args])
        for one in given:
            takes_one = not getattr(one, "multiple", False) and (
                not getattr(one, "is_flag", False) or one.secondary_opts
            )
            if one.param_type_name == "option" and takes_one and given.count(one) > 1:
                raise typer.BadParameter(
                    "is given more than once", param_hint=" / ".join([*one.opts, *one.secondary_opts])
                )
        try:
            left = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = in_our_words(error.message)
            raise
        for one in self.params:
            value, text = ctx.params.get(one.name), str(texts.get(one.name))
            is_number = {int, float} & {*map(type, value if isinstance(value, list | tuple) else (value,))}
            if is_number and "_" in text:  # Python alone takes 1_0 for a number
                raise typer.BadParameter(f"{text} is no number", param_hint=one.opts[0])
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{value} is no number to go by", param_hint=one.opts[0])
        return left

    def invoke(self, ctx: Any) -> Any:
        """Raise BadParameter if an option needs another one, or is excluded by one."""
        name = _name(ctx)
        given = self._given(ctx)
        for option, needed in NEEDS.get(name, {}).items():
            if option in given and not given.intersection(needed):
                raise typer.BadParameter(f"has an effect only with {' or '.join(needed)}", param_hint=option)
        for option, excluded in EXCLUDES.get(name, {}).items():
            if option in given and (idle := sorted(given.intersection(excluded))):
                raise typer.BadParameter(f"has no effect with {option}", param_hint=", ".join(idle))
        return super().invoke(ctx)

    def _given(self, ctx: Any) -> set[str]:
        """Return the options of the command line, each also with its value."""
        found = set[str]()
        for parameter in self.params:
            source = ctx.get_parameter_source(parameter.name)
            if source is None or source.name != "COMMANDLINE":
                continue
            value = ctx.params.get(parameter.name)
            is_off = value is False and parameter.secondary_opts
            option = max(parameter.secondary_opts if is_off else parameter.opts, key=len)
            found |= {option, f"{option}={getattr(value, 'value', value)}"}
        return found


def _name(ctx: Any) -> str:
    """Return the command's name as it is typed behind the program's, which may have spaces itself (`python -m ...`)."""
    return "" if ctx.parent is None else f"{_name(ctx.parent)} {ctx.info_name}".strip()

"""`remote-wal agent`: run the agent of one broker."""

from typing import Annotated, Final, Literal

import typer

from cli.connection import BrokerConfig

_OWN_KEYS: Final = ("remote.wal.", "remote.log.wal.", "rsm.wal.")


def agent(
    broker_config: BrokerConfig,
    log_format: Annotated[Literal["json", "console"], typer.Option(help="json, or console for people.")] = "json",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value, in the place of what the file has. May be given several times."),
    ] = None,
) -> None:
    """Run the agent of the broker with this configuration, until SIGTERM.

    With SIGHUP it reads the file again, and tells in its log which keys count once it is restarted.
    """
    from cli.agent_start import start_agent

    start_agent(broker_config, log_format, overrides_of(set_ or []))


def overrides_of(given: list[str]) -> dict[str, str]:
    """Return the overrides in the options, which may only be keys of the agent itself. Raises typer.BadParameter."""
    overrides = {}
    for one in given:
        key, is_set, value = one.partition("=")
        if not is_set:
            raise typer.BadParameter(f"{one!r} is not key=value", param_hint="--set")
        if not key.startswith(_OWN_KEYS):
            raise typer.BadParameter(
                f"{key!r} is none of the agent's own keys ({', '.join(f'{known}*' for known in _OWN_KEYS)}); the "
                "broker would not hear of it",
                param_hint="--set",
            )
        if key in overrides:
            raise typer.BadParameter(f"{key} is given more than once", param_hint="--set")
        overrides[key] = value
    return overrides

"""`remote-wal takeover`: takes a dead broker's place on this host, until its partitions are on living brokers."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.connection import BootstrapServer, CommandConfig, Connection
from cli.exit_code import ExitCode
from cli.option_groups import grouped
from cli.progress import shown_progress
from cli.tables import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.takeover.place import HostPlace

_RECOVERS: Final = frozenset({
    "--after-last-gap", "--with-less-than-others", "--without-tier-epochs", "--lead-with-what-is-restored",
    "--to-timestamp", "--directory-id", "--from-objects", "--threads",
})  # fmt: skip
"""The options of `recover` that leave no log out: the broker starts, and what is not there would be moved as empty."""


@dataclass(frozen=True, slots=True)
class TakenPlace:
    """The options that name the dead broker's settings and its new place."""

    broker_config: Annotated[
        Path, typer.Option(help="The dead broker's server.properties.", exists=True, dir_okay=False)
    ]
    host_config: Annotated[
        Path,
        typer.Option(
            help="A file with the keys that are this host's own: listeners, advertised.listeners, broker.rack, "
            "remote.wal.agent.peer.listener, paths of certificates; log.dirs, unless logs go into the directory.",
            exists=True,
            dir_okay=False,
        ),
    ]
    directory: Annotated[
        Path, typer.Option(help="Where all that is made is kept, logs of processes too. Of one takeover alone.")
    ]
    kafka: Annotated[
        Path,
        typer.Option(
            help="bin/kafka-server-start.sh of your Kafka: it is run with the file.", exists=True, dir_okay=False
        ),
    ]
    heir: Annotated[
        int | None,
        typer.Option(help="The broker whose agent is to care for the objects; else the lowest whose agent answers."),
    ] = None
    recover_option: Annotated[
        list[str] | None,
        typer.Option(
            help="One more word for `remote-wal recover`, such as --recover-option=--lead-with-what-is-restored."
        ),
    ] = None


@grouped
def takeover(
    broker: Annotated[int, typer.Argument(help="The dead broker's id.", min=0)],
    bootstrap_server: BootstrapServer,
    place: TakenPlace,
    command_config: CommandConfig = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be restored and run, and what is missing; write nothing.")
    ] = False,
) -> None:
    """Take a dead broker's place on this host: its topics of one replica serve again, and all goes to living brokers.

    Its logs are recovered into the directory; stock Kafka starts there with the dead id, as a broker alone, and its
    agent beside it; every replica is moved to living brokers; both are stopped, and another agent gets the objects.
    Run again after an interruption, it goes on. Exits with 0 when all is done; with 1, once, if a recovered log is not
    whole; with 3 if a step was not done: run it again; with 4 if the dead broker or its agent is alive, something is
    missing on this host, or the recovery was refused.
    """
    from cli.takeover.place import IncompleteRecoveryError, TakeoverRefusedError
    from cli.takeover.steps import run_steps

    connection = Connection(bootstrap_server, command_config)
    try:
        if dry_run:
            raise typer.Exit(_tell_plan(broker, place, connection))
        with shown_progress("reading settings") as tell:
            place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = _place(broker, place, place.directory, connection, tell)
            run_steps(place.directory, broker, made, tell)
    except TakeoverRefusedError as error:
        fail(error, ExitCode.REFUSED, json=False)
    except IncompleteRecoveryError as error:
        fail(error, ExitCode.FINDINGS, json=False)
    typer.echo(f"broker {broker} is gone: no replica is on it, and another agent has its objects")


def _place(
    broker: int, place: TakenPlace, files: Path, connection: Connection, tell: "Callable[[str], object]"
) -> "HostPlace":
    """Write the broker's settings here among `files`, and ask the cluster. Raises errors of `OWN_PACKAGES`."""
    import javaproperties

    from agent.settings_file import read_settings_file
    from cli.takeover.host_properties import host_properties
    from cli.takeover.place import Host, HostPlace
    from kafka_log.broker_files.java_properties import parse_properties
    from kafka_log.broker_files.server_properties import load_broker_properties
    from plugin.durable_files import write_durably

    options = tuple(place.recover_option or ())
    for word in options:
        if word.startswith("-") and word.partition("=")[0] not in _RECOVERS:
            told = f"{word} is none of {', '.join(sorted(_RECOVERS))}"
            raise typer.BadParameter(told, param_hint="--recover-option")
    dead = load_broker_properties(place.broker_config)
    if dead.node_id != broker:
        raise typer.BadParameter(f"{place.broker_config} is of broker {dead.node_id}", param_hint="--broker-config")
    if "controller" in dead.process_roles:
        typer.echo("it was a controller, too, and comes back as a broker alone: stop no other one meanwhile", err=True)
    own = parse_properties(place.host_config.read_bytes())
    keys = host_properties(parse_properties(place.broker_config.read_bytes()), own, place.directory.absolute())
    file = files.absolute() / "server.properties"
    write_durably(file, javaproperties.dumps(keys, timestamp=False), 0o600)  # it has passwords
    made, agent = read_settings_file(file)
    login = connection.command_config or agent.client.client_config
    logged_in = ("--command-config", str(login)) if login is not None else ()
    where = ("--bootstrap-server", connection.bootstrap_server, *logged_in)
    client = Connection(connection.bootstrap_server, login).client_config()
    return HostPlace(
        Host(place.directory, dead, own, made, agent, place.kafka.absolute(), where, options, place.heir), client, tell
    )


def _tell_plan(broker: int, place: TakenPlace, connection: Connection) -> ExitCode:
    """Show what would be done, and return how it would begin."""
    from cli.takeover.steps import Step, done_steps

    done = done_steps(place.directory, broker)
    with tempfile.TemporaryDirectory(prefix="remote-wal-takeover-") as files:
        made = _place(broker, place, Path(files), connection, typer.echo)
        commands = {Step.RECOVER: made.recovery(), Step.DRAIN: made.draining(), Step.HAND_OVER: made.handing_over()}
        if len(done) == len(Step):
            made.check_gone()
        for step in Step:
            words = commands.get(step, ())
            typer.echo(f"{'done' if step in done else 'to do'}: {step}" + (f": {' '.join(words)}" if words else ""))
        refusals = made.refusals()
        for refusal in refusals:
            typer.echo(f"would be refused: {refusal}")
        if Step.RECOVER in done:
            return ExitCode.REFUSED if refusals else ExitCode.GOOD
        ended = subprocess.run([sys.executable, "-m", "cli.start", *commands[Step.RECOVER], "--dry-run"], check=False)
    return ExitCode.REFUSED if refusals else ExitCode(ended.returncode)

"""`remote-wal rollout`: agents into a running cluster, from release to release, and out again, step by step."""

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from cli.command_group import command_group
from cli.connection import Connection, Json
from cli.exit_code import ExitCode
from cli.option_groups import grouped
from cli.reachability import ClusterUnreachableError
from cli.tables import fail, show, table, tell_json

if TYPE_CHECKING:
    from rollout.facts import ClusterFacts
    from rollout.judgement import Next, Obstacle
    from rollout.steps import Step, Wish

app = command_group(
    "Lead agents into a running cluster, from release to release, or out of it: says what to do, and whether it "
    "is done. It changes nothing itself."
)

LISTENER: Final = "WAL"
PORT_BASE: Final = 19900
REPLICA_HOST: Final = "127.0.0.1"
_TIMEOUT_S = 20.0
_ASK_EACH_S = 2.0
_AFTERWARDS = {
    "enabled": "Switch topics on, one at first: remote-wal topics enable TOPIC",
    "removed": "What is left: objects in the bucket, and the topics __remote_wal_log_metadata and "
    "__remote_wal_topic_settings; delete them when nobody wants to recover from them.",
}
_THEN = {
    "restart-broker": "Restart the broker.",
    "start-agent": "Start the agent.",
    "upgrade-agent": "Restart the agent.",
    "stop-agent": "Stop the agent.",
    "disable-topics": "",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where to, and by which listener."""

    to: Annotated[str, typer.Option(help="enabled, upgraded or removed.")]
    listener: Annotated[str, typer.Option(help="The listener by which brokers reach each other through agents.")] = (
        LISTENER
    )
    protocol: Annotated[
        str | None, typer.Option(help="What it speaks; by default what brokers speak to each other now.")
    ] = None
    port_base: Annotated[int, typer.Option(help="Its port is this plus the broker's id.")] = PORT_BASE
    replica_host: Annotated[str, typer.Option(help="What brokers advertise there; {id} stands for the broker's.")] = (
        "127.0.0.1"
    )
    back_to: Annotated[
        str | None, typer.Option(help="When removed: by which listener brokers reach each other then.")
    ] = None
    release: Annotated[str | None, typer.Option(help="When upgraded: to which; by default this one.")] = None
    broker_config: Annotated[
        Path | None,
        typer.Option(help="A broker's server.properties, where agents ask for a token or certificates.", exists=True),
    ] = None

    def wish(self) -> "Wish":
        """Raises RolloutError."""
        from agent.release import this_release
        from rollout.listeners import AgentListener
        from rollout.steps import RolloutError, Target, Wish

        if self.to not in list(Target):
            raise RolloutError(f"--to {self.to}: enabled, upgraded and removed can be had")
        listener = AgentListener(self.listener.upper(), self.port_base, self.replica_host, self.protocol)
        back_to = self.back_to.upper() if self.back_to is not None else None
        return Wish(Target(self.to), self.release or this_release().version, listener, back_to)


class _CannotSayError(Exception):
    """With the command's exit code."""

    def __init__(self, told: str, code: ExitCode) -> None:
        super().__init__(told)
        self.code = code


class _Checked(NamedTuple):
    facts: "ClusterFacts"
    found: "list[Obstacle]"
    code: ExitCode


@app.command()
@grouped
def plan(connection: Connection, wanted: Wanted, json: Json = False) -> None:
    """Show all steps, and which of them are done.

    Exits with 0; with 2 if it cannot be planned, with 3 if the cluster does not answer.
    """
    _, steps, _ = _looked(connection, wanted, json)
    if json:
        tell_json({"steps": [_step(one, connection, wanted) for one in steps]})
        return
    show(table("step", "", "what", rows=((one.id, one.state.value, one.do[0] if one.do else "") for one in steps)))


@app.command("next")
@grouped
def next_command(connection: Connection, wanted: Wanted, json: Json = False) -> None:
    """Print the one step to take now; none while something is not as it should be, and then why.

    Exits with 0 if there is a step or all are done, with 1 if there is none for now, with 2 if it cannot be planned,
    and with 3 if it could not be found out.
    """
    facts, steps, found = _looked(connection, wanted, json)
    code = exit_code(found.obstacles)
    if json:
        may = found.step is not None and not found.obstacles
        told = _step(found.step, connection, wanted) if may and found.step is not None else None
        tell_json(
            {
                "exit_code": code,
                "done": found.step is None,
                "step": told,
                "waits_for": _obstacles(found.obstacles),
            }
        )
    else:
        _say(*_next_lines(facts, steps, found, connection, wanted))
    raise typer.Exit(code)


@app.command()
@grouped
def check(
    connection: Connection,
    wanted: Wanted,
    step: Annotated[str | None, typer.Option(help="Whether this step is done, such as switch:2.")] = None,
    wait: Annotated[float, typer.Option(help="For so many seconds, until all is well.", min=0)] = 0.0,
    json: Json = False,
) -> None:
    """Show where each broker stands, and what is not as it should be. A cluster half way is, while it replicates.

    Exits with 0 if all is well (and the step is done), with 1 if something is not, with 2 if it cannot be planned or
    there is no such step, and with 3 if it could not be found out.
    """
    from local_cluster.polling import WaitTimeoutError, wait_until
    from rollout.judgement import standings

    looked: list[_Checked | _CannotSayError] = []

    def is_settled() -> bool:
        try:
            looked[:] = [_checked(connection, wanted, step)]
        except _CannotSayError as error:
            looked[:] = [error]
            return error.code is ExitCode.USAGE
        return looked[0].code == 0

    with contextlib.suppress(WaitTimeoutError):  # what was seen last is told
        wait_until(is_settled, "all is well", wait, interval_s=_ASK_EACH_S) if wait else is_settled()
    [last] = looked
    if isinstance(last, _CannotSayError):
        fail(last, last.code, json=json)
    facts, found, code = last
    stand = standings(facts, wanted.wish().listener)
    if json:
        brokers = [{"broker": broker_id, **asdict(one)} for broker_id, one in stand.items()]
        tell_json({"exit_code": code, "brokers": brokers, "found": _obstacles(found)})
    else:
        rows = ((broker_id, *astuple(one)) for broker_id, one in stand.items())
        show(table(">broker", "where", "agent", "release", "it says", rows=rows))
        _say(*map(_told, found) if found else ["All is well." if step is None else f"{step} is done."])
    raise typer.Exit(code)


def _checked(connection: Connection, wanted: Wanted, step: str | None) -> "_Checked":
    """Raises _CannotSayError."""
    from rollout.judgement import Obstacle, obstacles
    from rollout.steps import State

    facts, steps, _ = _look(connection, wanted)
    found = list(obstacles(facts, wanted.wish().listener))
    if step is not None:
        states = {one.id: one for one in steps}
        if step not in states:
            raise _CannotSayError(f"there is no step {step}, only {', '.join(states)}", ExitCode.USAGE)
        state = states[step].state
        if state is not State.DONE:
            told = "is not done" if state is State.LEFT else "may be done or not"
            found.append(Obstacle(f"{step} {told}", states[step].broker_id, state is State.UNKNOWN))
    return _Checked(facts, found, exit_code(tuple(found)))


def _looked(connection: Connection, wanted: Wanted, json: bool) -> "tuple[ClusterFacts, list[Step], Next]":
    """Ends the command where nothing can be said."""
    try:
        return _look(connection, wanted)
    except _CannotSayError as error:
        fail(error, error.code, json=json)


def _look(connection: Connection, wanted: Wanted) -> "tuple[ClusterFacts, list[Step], Next]":
    """Raises _CannotSayError."""
    from agent.settings.setting_types import AgentSettingsError
    from kafka_log.errors import BrokerPropertiesError
    from metadata_topic.records.errors import ClientPropertyError, MetadataTopicError
    from rollout.gathering import ClusterUnknownError, gather
    from rollout.judgement import next_step
    from rollout.steps import RolloutError
    from rollout.steps import plan as planned

    try:
        wish = wanted.wish()
        facts = gather(connection.client_config(), _asking(wanted.broker_config), _TIMEOUT_S)
        steps = planned(facts, wish)
    except (RolloutError, ClientPropertyError, AgentSettingsError, BrokerPropertiesError) as error:
        raise _CannotSayError(str(error), ExitCode.USAGE) from error
    except (ClusterUnknownError, ClusterUnreachableError, MetadataTopicError) as error:
        raise _CannotSayError(str(error), ExitCode.UNKNOWN) from error
    return facts, steps, next_step(facts, steps, wish.listener)


def _asking(broker_config: Path | None) -> Any:
    if broker_config is None:
        return None
    from agent.settings_file import agent_settings
    from kafka_log.server_properties import load_broker_properties

    return agent_settings(load_broker_properties(broker_config), broker_config).http


def _step(step: "Step", connection: Connection, wanted: Wanted) -> dict[str, Any]:
    return {
        "id": step.id,
        "broker": step.broker_id,
        "action": step.action.value,
        "state": step.state.value,
        "do": step.do,
        "set": dict(step.lines),
        "remove": step.drop,
        "proof": _proof(step, connection, wanted),
        "if_it_fails": step.undo,
    }


def _proof(step: "Step", connection: Connection, wanted: Wanted) -> str:
    options = ["remote-wal", "rollout", "check", "--step", step.id, "--wait", "300"]
    given = {
        "--to": wanted.to,
        "--bootstrap-server": connection.bootstrap_server,
        "--command-config": connection.command_config,
        "--broker-config": wanted.broker_config,
        "--listener": wanted.listener,
        "--protocol": wanted.protocol,
        "--port-base": wanted.port_base,
        "--replica-host": wanted.replica_host,
        "--back-to": wanted.back_to,
        "--release": wanted.release,
    }
    usual = {"--listener": LISTENER, "--port-base": PORT_BASE, "--replica-host": REPLICA_HOST}
    for option, value in given.items():
        if value is not None and value != usual.get(option):
            options += [option, str(value)]
    return shlex.join(options)


def _obstacles(found: "tuple[Obstacle, ...] | list[Obstacle]") -> list[dict[str, Any]]:
    return [{"broker": one.broker_id, "what": one.what, "unknown": one.is_unknown} for one in found]


def _told(one: "Obstacle") -> str:
    return f"{f'broker {one.broker_id}: ' if one.broker_id is not None else ''}{one.what}"


def _say(*lines: str) -> None:
    """As they are: what is to be copied into a file is not broken at a window's width."""
    for line in lines:
        typer.echo(line)


def _next_lines(
    facts: "ClusterFacts", steps: "list[Step]", found: "Next", connection: Connection, wanted: Wanted
) -> Iterator[str]:
    step = found.step
    if found.obstacles:
        yield "Not now:"
        yield from (f"- {_told(one)}" for one in found.obstacles)
        if step is not None:
            yield f"If {step.id} was tried last: {step.undo}"
        return
    if step is None:
        yield f"All {len(steps)} steps are done."
        yield from filter(None, [_AFTERWARDS.get(wanted.to)])
        return
    host = facts.hosts.get(step.broker_id, "") if step.broker_id is not None else ""
    yield f"Step {steps.index(step) + 1} of {len(steps)}: {step.id}{f', on {host}' if host else ''}"
    yield from (f"- {line}" for line in step.do)
    if step.lines:
        yield "- In the broker's server.properties:"
        yield from (f"    {key}={value}" for key, value in step.lines.items())
    if step.drop:
        yield f"- and there no more: {', '.join(step.drop)}"
    if _THEN[step.action.value]:
        yield f"- {_THEN[step.action.value]}"
    if step.action.value == "restart-broker" and facts.single:
        yield f"- {len(facts.single)} partitions have one replica ({facts.single[0]}, ...), away while it restarts."
    yield f"It is done when this says so: {_proof(step, connection, wanted)}"
    yield f"If it fails: {step.undo}"


def exit_code(found: "tuple[Obstacle, ...]") -> ExitCode:
    """What is known to be wrong counts before what is not known."""
    if any(not one.is_unknown for one in found):
        return ExitCode.FINDINGS
    return ExitCode.UNKNOWN if found else ExitCode.GOOD

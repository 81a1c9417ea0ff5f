"""`remote-wal reassign`: moves partitions' replicas and leadership."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.connection import Connection, Json
from cli.exit_code import ExitCode
from cli.option_groups import command_group, grouped
from cli.progress import shown_progress
from cli.tables import fail, fitted, show, tell_json

if TYPE_CHECKING:
    from kafka_cluster.client_config import KafkaClientConfig
    from recovery.reassignment.admin import ReassignmentAdmin
    from recovery.reassignment.balance_turn import BalanceTurn
    from recovery.reassignment.moves import Reassignment, ReassignmentLimits
    from recovery.reassignment.plan import ClusterReplicas, Loads, ReassignmentPlan, TopicPartition
    from recovery.reassignment.tail_requests import TailRequests

_TIMEOUT_S: Final = 15.0

app = command_group(
    "Drain a broker, balance all by what they carry, fill one that joins, or carry out a plan, with the tails uploaded "
    "before.\n\n"
    "Exit codes: 0 done, or nothing to do; 1 not all moves are done; 2 the command or the plan's file is wrong; 3 the "
    "cluster does not do or tell what is asked; 4 there can be no such plan in this cluster; 7 cancelled."
)

Broker = Annotated[int, typer.Argument(help="The broker's id.")]
Seconds = Annotated[float, typer.Option(min=1.0, help="How long loads are measured before planning.")]
Limit = Annotated[int, typer.Option(min=1, help="Change at most so many partitions; those that help most come first.")]


@dataclass(frozen=True, slots=True)
class Moving:
    """The options for how a plan is carried out."""

    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what would be moved; move nothing. With --json in the form that `execute --plan` and "
            "kafka-reassign-partitions.sh take; what is left where it is goes to standard error.",
        ),
    ] = False
    max_moves: Annotated[int, typer.Option(min=1, help="So many partitions are under way at a time.")] = 8
    upload_tail: Annotated[
        bool, typer.Option("--upload-tail/--no-upload-tail", help="First have the agents upload what is not stored.")
    ] = True
    upload_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an upload.")] = 10.0


@app.command()
@grouped
def drain(connection: Connection, broker: Broker, moving: Moving, json: Json = False) -> None:
    """Take every replica off a broker, which may be gone. Ctrl-C takes back what is under way; killed, it leaves that
    to Kafka, which goes on.
    """
    from recovery.reassignment.plan import plan_drain

    def plan(cluster: "ClusterReplicas", admin: "ReassignmentAdmin") -> "ReassignmentPlan":
        return plan_drain(cluster, stored_loads(cluster, admin), broker, *hidden_replicas(cluster, admin, broker))

    _reassign(connection, plan, moving, json=json)


@app.command()
@grouped
def join(
    connection: Connection,
    broker: Broker,
    moving: Moving,
    seconds: Seconds = 10.0,
    limit: Limit = 1000,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Do nothing if the broker has a replica.")] = False,
    json: Json = False,
) -> None:
    """Give a broker that has joined its share of replicas and leaders; nothing moves between the others."""
    from recovery.reassignment.balance import plan_balance
    from recovery.reassignment.plan import ReassignmentPlan

    if if_empty and _has_replica(connection, broker):
        _reassign(connection, lambda *_: ReassignmentPlan(()), moving, json=json)
        return
    loads = measured_loads(connection, seconds)
    _reassign(connection, lambda cluster, _: plan_balance(cluster, loads, limit, broker), moving, loads, json=json)


@app.command()
@grouped
def balance(
    connection: Connection,
    moving: Moving,
    seconds: Seconds = 30.0,
    limit: Limit = 100,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Go on, until Ctrl-C. Of several one works, and another when that one is dead."),
    ] = False,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds between two rounds of --watch.")] = 600.0,
    json: Json = False,
) -> None:
    """Bring all brokers within a fifth of each other in what they take in, give out and store, as measured now."""
    from plugin.wall_clock import wall_ms
    from recovery.reassignment.balance import plan_balance
    from recovery.reassignment.balance_turn import BEAT_S
    from recovery.reassignment.plan import apart, broker_loads

    def round_of(loads: "Loads", turn: "BalanceTurn | None") -> None:
        def plan(cluster: "ClusterReplicas", _: "ReassignmentAdmin") -> "ReassignmentPlan":
            if turn is not None:
                turn.tell(apart(broker_loads(cluster, loads)), wall_ms())
            return plan_balance(cluster, loads, limit)

        _reassign(connection, plan, moving, loads, json=json)

    with _turn(connection) if watch and not moving.dry_run else nullcontext() as turn:
        while True:
            is_mine = turn is None or turn.take()
            try:
                if is_mine:
                    round_of(measured_loads(connection, seconds), turn)
            except typer.Exit as ended:
                if not watch or ended.exit_code != ExitCode.FINDINGS:  # the next round tries again what was not done
                    raise
            if not watch:
                return
            threading.Event().wait(every if is_mine else BEAT_S)


@contextmanager
def _turn(connection: Connection) -> "Iterator[BalanceTurn]":
    """Yield what says when it is this process's turn, once the topic for that is there: an agent makes it."""
    import secrets

    from metadata_topic.topic.topic import SETTINGS_TOPIC
    from recovery.reassignment.balance_turn import BEAT_S, BalanceTurn, RowOfSettings

    with RowOfSettings(connection.client_config()) as row:
        if not row.is_there():
            typer.echo(f"waiting for {SETTINGS_TOPIC}, which says who balances; an agent makes it", err=True)
        while not row.is_there():
            threading.Event().wait(BEAT_S)
        with BalanceTurn(row, secrets.token_hex(8), time.monotonic) as turn:
            yield turn


@app.command()
@grouped
def execute(
    connection: Connection,
    moving: Moving,
    plan_file: Annotated[
        Path,
        typer.Option(
            "--plan",
            help="The moves, as --dry-run --json and kafka-reassign-partitions.sh have them.",
            exists=True,
            dir_okay=False,
        ),
    ],
    json: Json = False,
) -> None:
    """Carry out a plan from a file."""
    from recovery.reassignment.plan import ReassignmentPlanError, plan_as_given, read_plan

    try:
        given = read_plan(plan_file.read_text(errors="replace"), str(plan_file))
    except ReassignmentPlanError as error:
        fail(error, ExitCode.USAGE, json=json)
    _reassign(connection, lambda cluster, _: plan_as_given(cluster, given), moving, is_given=True, json=json)


def stored_loads(cluster: "ClusterReplicas", admin: "ReassignmentAdmin") -> "Loads":
    """Return how many bytes are stored of each partition; empty where brokers do not say, because a drain must not
    wait for them."""
    from recovery.errors import ReassignmentError
    from recovery.reassignment.plan import Load

    try:
        sizes = admin.replica_sizes([one.topic_partition for one in cluster.partitions])
    except ReassignmentError as error:
        typer.echo(f"replicas are spread by their number, as their sizes are not known: {error}", err=True)
        return {}
    largest: dict[TopicPartition, int] = {}
    for (where, _), size in sizes.items():
        largest[where] = max(size, largest.get(where, 1))
    return {where: Load(stored_bytes=size) for where, size in largest.items()}


def hidden_replicas(
    cluster: "ClusterReplicas", admin: "ReassignmentAdmin", broker: int
) -> "tuple[list[TopicPartition], str]":
    """Return a broker's replicas of topics that Kafka hides from this client, and why a living broker's are unknown."""
    from recovery.errors import ReassignmentError

    shown = [one.topic_partition for one in cluster.partitions if broker in one.replicas]
    try:
        if broker in cluster.racks:
            return admin.not_shown(broker, shown), ""
        why = "it does not live"
    except ReassignmentError as error:
        why = str(error)
    told = f"whether broker {broker} has replicas of topics that this client may not see is not known: {why}"
    typer.echo(told, err=True)
    return [], told if broker in cluster.racks else ""


def _has_replica(connection: Connection, broker: int) -> bool:
    with _admin(connection) as admin:
        return any(broker in one.replicas for one in admin.cluster().partitions)


def measured_loads(connection: Connection, seconds: float) -> "Loads":
    """Return what each partition carries, as measured over this many seconds."""
    from cli.costs.cluster_samples import Sampler, partition_loads

    with Sampler(connection.client_config(), _TIMEOUT_S, time.monotonic) as sampler, shown_progress("reading") as tell:
        first = sampler.sample()
        tell(f"measuring what {len(first.racks)} brokers carry, for {seconds:.0f} s")
        threading.Event().wait(seconds)
        return partition_loads(first, sampler.sample())


def _reassign(
    connection: Connection,
    make_plan: "Callable[[ClusterReplicas, ReassignmentAdmin], ReassignmentPlan]",
    moving: Moving,
    loads: "Loads | None" = None,
    *,
    is_given: bool = False,
    json: bool,
) -> None:
    """Plan and move, or show the plan.

    `loads`: what to show of brokers before and after; `is_given`: a person has planned.
    """
    from metadata_topic.topic.topic import SETTINGS_TOPIC
    from recovery.reassignment.moves import ReassignmentLimits
    from recovery.reassignment.plan import ReassignmentPlanError, without_moving, write_plan

    with _admin(connection) as admin:
        cluster = admin.cluster()
        # Without that topic no agent has ever started.
        agents = any(one.topic_partition.topic == SETTINGS_TOPIC for one in cluster.partitions)
        try:
            planned = make_plan(cluster, admin)
            if not is_given:
                planned = without_moving(planned, admin.ongoing())
        except ReassignmentPlanError as error:
            fail(error, ExitCode.REFUSED, json=json)
        if loads is not None and not json:
            _print_brokers(cluster, loads, planned)
        if moving.dry_run:
            if json:
                tell_json(write_plan(planned))
                _print_left(planned.left, to_stderr=True)
            else:
                _print_plan(planned, admin)
            return
        done = None
        if planned.moves:
            tails = _tails(connection.client_config(), moving.upload_tail and agents)
            limits = ReassignmentLimits(moving.max_moves, moving.upload_timeout)
            done = _run(admin, planned, limits, tails)
    _report(done, planned, json)


def _print_brokers(cluster: "ClusterReplicas", loads: "Loads", planned: "ReassignmentPlan") -> None:
    from rich.filesize import decimal

    from recovery.reassignment.plan import broker_loads

    before, after = broker_loads(cluster, loads), broker_loads(cluster, loads, planned)
    rows = [
        (broker, cluster.racks[broker] or "", *(f"{decimal(int(now))} → {decimal(int(then))}" for now, then in parts))
        for broker in sorted(before)
        if (parts := zip(before[broker], after[broker], strict=True))
    ]
    columns = (">broker", "rack", ">in a second", ">out a second", ">stored")
    show(fitted(*columns, rows=rows, drop=("rack", "stored")))


@contextmanager
def _admin(connection: Connection) -> "Iterator[ReassignmentAdmin]":
    from recovery.reassignment.admin import ReassignmentAdmin

    with ReassignmentAdmin(connection.client_config()) as admin:
        yield admin


def _run(
    admin: "ReassignmentAdmin",
    planned: "ReassignmentPlan",
    limits: "ReassignmentLimits",
    tails: "TailRequests | None",
) -> "Reassignment":
    import signal

    from recovery.reassignment.run import ReassignmentRun, requests_of

    with tails or nullcontext(), shown_progress("preparing") as tell:
        uploading = {name for name, one in tails.topics().items() if one.enable} if tails is not None else set[str]()
        requests = requests_of(planned.moves, admin, uploading)
        run = ReassignmentRun(requests, limits, admin, tails, time.monotonic, threading.Event().wait)
        before = signal.signal(signal.SIGINT, lambda *_: run.cancel())
        try:
            return run.run(lambda moving: tell(_progress_of(moving)))
        finally:
            signal.signal(signal.SIGINT, before)


def _progress_of(reassignment: "Reassignment") -> str:
    from recovery.reassignment.moves import ENDS, MoveState

    states = [one.state for one in reassignment.progress.values()]
    busy = [
        f", {states.count(state)} {state.value}"
        for state in MoveState
        if state in states and state not in ENDS and state is not MoveState.WAITING
    ]
    return f"moving: {sum(state in ENDS for state in states)} of {len(states)} ended{''.join(busy)}"


def _tails(client: "KafkaClientConfig", wanted: bool) -> "TailRequests | None":
    import secrets

    from plugin.wall_clock import wall_ms
    from recovery.reassignment.tail_requests import TailRequests

    return TailRequests(client, secrets.token_hex(8), wall_ms) if wanted else None


def _report(done: "Reassignment | None", planned: "ReassignmentPlan", json: bool) -> None:
    from recovery.reassignment.moves import MoveState

    progress = list(done.progress.values()) if done is not None else []
    rows = [
        {
            "topic": one.move.topic_partition.topic,
            "partition": one.move.topic_partition.partition,
            "before": list(one.move.before),
            "after": list(one.move.after),
            "state": one.state.value,
            "reason": one.reason,
            "seconds": None if one.seconds is None else round(one.seconds, 3),
        }
        for one in progress
    ]
    states = {one.state for one in progress}
    code = ExitCode.CANCELLED if MoveState.CANCELLED in states else ExitCode.GOOD
    code = ExitCode.FINDINGS if MoveState.FAILED in states or planned.left or planned.not_known else code
    if json:
        left = {str(where): why for where, why in planned.left.items()}
        error = {"error": planned.not_known} if planned.not_known else {}
        tell_json({"moves": rows, "left": left, **error}, code)
    else:
        _print_report(rows)
        _print_left(planned.left)
    if code:
        raise typer.Exit(code)


def _print_report(rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    if not rows:
        show("Nothing is moved.")
        return
    told = [
        (
            *(row[key] for key in ("topic", "partition")), _ids(row["before"]), _ids(row["after"]), row["state"],
            "" if row["seconds"] is None else f"{row['seconds']:.1f}",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("topic", ">part", "before", "after", "state", ">seconds")
    show(fitted(*columns, rows=told, drop=("before", "seconds", "after")))
    for row in rows:
        if row["reason"]:
            show(Text(f"{row['topic']}-{row['partition']}: {row['reason']}"))


def _print_left(left: "Mapping[TopicPartition, str]", *, to_stderr: bool = False) -> None:
    for where, why in left.items():
        typer.echo(f"{where} is left where it is: {why}", err=to_stderr)


def _print_plan(planned: "ReassignmentPlan", admin: "ReassignmentAdmin") -> None:
    from rich.filesize import decimal

    sizes = admin.replica_sizes([move.topic_partition for move in planned.moves if move.adding])
    rows, total = [], 0
    for move in planned.moves:
        where = move.topic_partition
        size = max((sizes.get((where, broker), 0) for broker in move.before), default=0)
        total += size * len(move.adding)
        copied = (_ids(move.adding), decimal(size)) if move.adding else ("-", "-")
        rows.append((where.topic, where.partition, _ids(move.before), _ids(move.after), *copied))
    if planned.moves:
        show(
            fitted("topic", ">part", "before", "after", "new on", ">local log", rows=rows, drop=("before", "new on")),
            f"{len(planned.moves)} moves. At most {decimal(total)} of local logs are copied, less where new replicas "
            "begin at the last tiered offset. What is stored now is kept until its move has ended.",
        )
    elif not planned.left:
        show("Nothing is to be moved.")
    _print_left(planned.left)


def _ids(brokers: Any) -> str:
    return ",".join(map(str, brokers))

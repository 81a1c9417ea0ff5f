"""`remote-wal cluster`: a real Kafka cluster on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import Json
from cli.extras import need_extra
from cli.option_groups import command_group
from cli.progress import shown_progress
from cli.tables import plain_console, show, table, tell_json

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster
    from local_cluster.layout import ClusterLayout

app = command_group("A real Kafka cluster on this machine: three brokers with agents.")

DEFAULT_DIRECTORY = Path(".remote-wal-cluster")

DirectoryOption = Annotated[
    Path,
    typer.Option("--directory", "-d", help="Where configuration, data and logs are kept.", file_okay=False),
]


@app.command()
def up(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    held_answers: Annotated[
        bool,
        typer.Option(
            "--held-answers",
            help="Clients come by their leader's agent, which holds the answers to acks=all; a way around a dead agent "
            "is on.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Start what does not run of a directory's cluster, made first if there is none. It runs until `cluster down`.

    Lines that you change in a broker's server.properties stay at the next start, and are named.
    """
    need_extra("demo")
    from local_cluster.broker_config import KAFKAS_REPLICAS, AgentsMode, ClusterSettings
    from local_cluster.cluster import LocalCluster
    from local_cluster.layout import LAYOUT_FILE
    from local_cluster.processes import ends_what_it_started

    console = plain_console(stderr=True)
    with ends_what_it_started(stays_if_done=True), shown_progress("preparing") as tell:
        if not (directory / LAYOUT_FILE).exists():
            LocalCluster.create(directory)
        # By Kafka's default of one replica nothing of somebody's first topic would be replicated.
        own = {"default.replication.factor": str(KAFKAS_REPLICAS)}
        settings = ClusterSettings(AgentsMode(front=held_answers, bypass=held_answers), own, full_compiler=True)
        cluster = LocalCluster.open(directory, settings=settings, progress=tell)
        for broker_id, keys in cluster.changed_by_hand.items():
            file = cluster.layout.server_properties(broker_id)
            console.print(f"{file}: kept as you changed it: {', '.join(keys)}", highlight=False, soft_wrap=True)
        _start(cluster, directory)
    _show(cluster.layout, as_json)
    if not as_json:
        _show_next_steps(cluster.layout, directory)


@app.command()
def down(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the directory with all data too.")] = False,
) -> None:
    """End the cluster's processes. The data stay, unless --remove is given."""
    import shutil

    from local_cluster.cluster import LocalCluster

    cluster = LocalCluster.open(directory)
    with shown_progress("ending brokers and agents"):
        if remove:
            cluster.kill_all()
            shutil.rmtree(directory, ignore_errors=True)
        else:
            cluster.stop()
    typer.echo(f"brokers and agents are ended; {f'{directory} is removed' if remove else f'data stay in {directory}'}")


def _start(cluster: "LocalCluster", directory: Path) -> None:
    """Start the cluster. Raises WaitTimeoutError, ProcessStartError, with what to do then."""
    from local_cluster.polling import WaitTimeoutError
    from local_cluster.processes import ProcessStartError

    try:
        cluster.start()
    except (WaitTimeoutError, ProcessStartError) as error:
        logs = f"{directory}/broker-*/kafka.log and {directory}/agent-*/agent.log"
        told = f"{error}. What was started is stopped again; why stands in {logs}"
        raise type(error)(f"{told}. On a busy machine, try again by the same command") from error


def _show(layout: "ClusterLayout", as_json: bool) -> None:
    """Show where the cluster's parts listen, all of which are ready."""
    parts: dict[str, list[dict[str, Any]]] = {
        "brokers": [
            {
                "broker_id": one,
                "clients": layout.client_address(one),
                "replicas": f"127.0.0.1:{layout.replica_port(one)}",
            }
            for one in layout.broker_ids
        ],
        "agents": [
            {"broker_id": one, "agents": layout.peer_address(one), "http": layout.agent_http_address(one)}
            for one in layout.broker_ids
        ],
    }
    cluster = {"bootstrap_servers": layout.bootstrap_servers, "directory": str(layout.directory)}
    if as_json:
        tell_json({"cluster_id": layout.cluster_id, **cluster, **parts})
        return
    rows = [
        (f"{kind[:-1]} {one['broker_id']}" if first else "", listener, address)
        for kind, of_kind in parts.items()
        for one in of_kind
        for first, (listener, address) in zip((True, False), list(one.items())[1:], strict=True)
    ]
    show(table("part", "listens for", "at", rows=rows))
    for name, value in cluster.items():
        plain_console().print(f"{name.replace('_', ' '):<19}{value}", highlight=False, soft_wrap=True)


def _show_next_steps(layout: "ClusterLayout", directory: Path) -> None:
    """Print what to do with the new cluster, in lines of at most 80 columns unless the directory's name is long."""
    at = f" --bootstrap-server {layout.bootstrap_servers.partition(',')[0]}"
    of = "" if directory == DEFAULT_DIRECTORY else f" -d {directory}"
    records = "--num-records 200000 --record-size 1000"
    steps = [
        ("a topic", f"./run kafka{of} topics --create --topic orders --partitions 3"),
        ("its links", f"./run topics enable orders{at}"),
        ("a load", f"./run kafka{of} producer-perf --topic orders --throughput 4000 \\\n{'':17}{records}"),
        ("its way", f"./run describe --why{at}"),
        ("all", f"./run status{at}"),
        ("in a browser", f"http://{layout.agent_http_address(layout.broker_ids[0])}/"),
        ("settings", f"{directory}/broker-1/server.properties, and so on"),
        ("logs", f"{directory}/agent-1/agent.log, broker-1/kafka.log"),
        ("the end", f"./run cluster down{of}, with --remove for its data, too"),
    ]
    typer.echo("\nWhat next:")
    for what, how in steps:
        typer.echo(f"  {what:<13}{how}")

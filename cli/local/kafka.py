"""`remote-wal kafka`: Kafka's own tools, for the cluster on this machine."""

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.extras import need_extra
from cli.local.cluster import DEFAULT_DIRECTORY, DirectoryOption

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOOLS: Final = {
    "topics": "TopicCommand",
    "configs": "ConfigCommand",
    "console-producer": "ConsoleProducer",
    "console-consumer": "consumer.ConsoleConsumer",
    "producer-perf": "ProducerPerformance",
    "consumer-perf": "ConsumerPerformance",
    "consumer-groups": "consumer.group.ConsumerGroupCommand",
    "get-offsets": "GetOffsetShell",
    "leader-election": "LeaderElectionCommand",
    "reassign-partitions": "reassign.ReassignPartitionsCommand",
    "transactions": "TransactionsCommand",
    "acls": "AclCommand",
    "dump-log": "DumpLogSegments",
}
"""Classes of Kafka's tools, by the names of Kafka's scripts without `kafka-` and `-test`."""
CONTEXT: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Options behind the tool's name are the tool's."""
_OF_FILES: Final = frozenset({"dump-log"})
_SERVER: Final = "--bootstrap-server"


def kafka(
    context: typer.Context,
    tool: Annotated[str, typer.Argument(help=f"One of {', '.join(_TOOLS)}.")],
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Run one of Kafka's tools against the cluster on this machine; what follows its name is the tool's own.

    As in `remote-wal kafka topics --list`. The cluster's address is added if no --bootstrap-server is given.
    """
    need_extra("demo")
    from local_cluster.cluster import LocalCluster

    if tool not in _TOOLS:
        raise typer.BadParameter(f"{tool!r} is none of {', '.join(_TOOLS)}", param_hint="tool")
    tools = LocalCluster.open(directory).tools
    added = [] if tool in _OF_FILES or _names_a_server(context.args) else [_SERVER, tools.bootstrap_servers]
    command = tools.command(f"org.apache.kafka.tools.{_TOOLS[tool]}", [*added, *context.args])
    os.execv(command[0], command)  # noqa: S606 - the tool is this process from here on: its signals and exit code are its own


def _names_a_server(arguments: "Sequence[str]") -> bool:
    return any(one == _SERVER or one.startswith(f"{_SERVER}=") for one in arguments)

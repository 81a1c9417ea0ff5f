"""`remote-wal pause`: sends all inline, as in stock Kafka, until `remote-wal resume`."""

import getpass
import os
import socket
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import CommandConfig, Connection, Json, agents_client
from cli.option_groups import grouped
from cli.tables import tell_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.settings.agent_settings import AgentSettings
    from kafka_cluster.client_config import KafkaClientConfig
    from kafka_log.broker_files.server_properties import BrokerProperties

_TIMEOUT_S = 10.0
_SCOPES = "--all, --broker, --zone, --topic, --local"


@dataclass(frozen=True, slots=True)
class PauseScope:
    """The options that say which links to pause, and how to reach the agents."""

    all_: Annotated[bool, typer.Option("--all", help="All links of the cluster.")] = False
    broker: Annotated[int | None, typer.Option(help="Links from and to this broker.", min=0)] = None
    zone: Annotated[str | None, typer.Option(help="Links from and to brokers of this zone.")] = None
    topic: Annotated[str | None, typer.Option(help="Links of this topic.")] = None
    local: Annotated[
        bool,
        typer.Option(
            "--local", help="Links from and to this host's broker, by a file: needs no Kafka, but --broker-config."
        ),
    ] = False
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", help="Where the cluster is: host:port, several by commas.")
    ] = None
    command_config: CommandConfig = None
    broker_config: Annotated[
        Path | None,
        typer.Option(
            help="The broker's server.properties, instead of a bootstrap server.", exists=True, dir_okay=False
        ),
    ] = None

    @property
    def name(self) -> str:
        """Return the scope as the settings topic names it. Raises BadParameter unless exactly one scope is given."""
        from metadata_topic.settings.settings_records import ALL, LOCAL

        kinds = {"broker": self.broker, "zone": self.zone, "topic": self.topic}
        found = [f"{kind}:{value}" for kind, value in kinds.items() if value is not None]
        found += [scope for scope, is_given in ((ALL, self.all_), (LOCAL, self.local)) if is_given]
        if len(found) != 1:
            raise typer.BadParameter("give exactly one of these", param_hint=_SCOPES)
        return found[0]

    def state_directory(self) -> Path:
        """Return the state directory of this host's agent. Raises BadParameter without the broker's file."""
        return self._broker()[1].process.state_directory

    def client_config(self) -> "KafkaClientConfig":
        """Return the client configuration, after checking that the cluster responds. Raises BadParameter,
        ClusterUnreachableError."""
        if self.bootstrap_server is None:
            return agents_client(*self._broker())
        return Connection(self.bootstrap_server, self.command_config).client_config()

    def _broker(self) -> "tuple[BrokerProperties, AgentSettings]":
        if self.broker_config is None:
            missing = "--broker-config" if self.local else "--bootstrap-server or --broker-config"
            raise typer.BadParameter("missing", param_hint=missing)
        from agent.settings_file import read_settings_file

        return read_settings_file(self.broker_config)


@grouped
def pause(
    scope: PauseScope,
    reason: Annotated[str, typer.Option(help="Shown wherever the pause is.")] = "",
    json: Json = False,
) -> None:
    """Link nothing more, within 5 s and without a restart: followers get all bytes inline, as in stock Kafka.

    It lasts, also over restarts of agents, until `remote-wal resume`. Objects that are stored stay, and what retention
    or durable topics need is still uploaded.
    """
    from agent.link_pauses import read_local, write_local
    from metadata_topic.settings.settings_records import LOCAL, Pause
    from metadata_topic.settings.settings_table import PAUSES
    from metadata_topic.settings.settings_topic import SettingsWriter, read_known_settings
    from plugin.wall_clock import wall_ms

    name, wanted = scope.name, Pause(_operator(), wall_ms(), reason)
    if name == LOCAL:
        directory = scope.state_directory()
        if (paused := read_local(directory)) is None:
            write_local(directory, paused := wanted)
    else:
        client = scope.client_config()
        known = read_known_settings(client)
        if (paused := known.pauses.get(name)) is None:
            check_scope(scope, client, known.topics.keys(), known.agents.keys())
            with closing(SettingsWriter(client)) as writer:
                writer.put(PAUSES, {name: (paused := wanted)})
    if json:
        tell_json({"scope": name, "paused": asdict(paused)})
    else:
        typer.echo(paused.describe(name))


def check_scope(
    scope: PauseScope, client: "KafkaClientConfig", topics: "Iterable[str]", agents: "Iterable[int]"
) -> None:
    """Raise BadParameter if the scope names a zone, topic or agent that does not exist."""
    from kafka_cluster.cluster import KafkaCluster
    from plugin.errors import meant

    if scope.topic is not None and scope.topic not in topics:
        raise typer.BadParameter(f"{scope.topic} is not enabled{meant(scope.topic, topics)}", param_hint="--topic")
    if scope.broker is not None and scope.broker not in agents:
        raise typer.BadParameter(f"no agent has registered for broker {scope.broker}", param_hint="--broker")
    if scope.zone is not None:
        zones = {one.rack for one in KafkaCluster(client, "remote-wal-pause", _TIMEOUT_S).brokers()}
        if scope.zone not in zones:
            near = meant(scope.zone, filter(None, zones))
            raise typer.BadParameter(f"no broker is in zone {scope.zone}{near}", param_hint="--zone")


def _operator() -> str:
    user = os.environ.get("SUDO_USER")
    try:
        user = user or getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may be a number without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"

"""Options that several commands have; those for reaching a cluster are the same as for Kafka's own tools."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from agent.settings.agent_settings import AgentSettings
    from agent.settings.process_settings import HttpSettings
    from kafka_cluster.client_config import KafkaClientConfig
    from kafka_log.broker_files.server_properties import BrokerProperties

BootstrapServer = Annotated[
    str, typer.Option("--bootstrap-server", help="Where the cluster is: host:port, several by commas.")
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        help="A Java client's properties file, with the security settings.",
        exists=True,
        dir_okay=False,
    ),
]
BrokerConfig = Annotated[
    Path, typer.Option(help="The broker's own server.properties.", exists=True, dir_okay=False, readable=True)
]
LoginFile = Annotated[
    Path | None,
    typer.Option(
        "--broker-config",
        help="A broker's server.properties, where agents ask for a token or certificates.",
        exists=True,
        dir_okay=False,
    ),
]
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
END_FROZEN = "end that process (kill -9) and start it again; docs/runbooks.md, RemoteWalAgentDown"
FROZEN_TIMEOUT_S = 8.0
"""For the settings of a cluster of which a part is frozen: what is led there waits in vain. Guessed."""
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the numbers behind each sentence, too.")]


@dataclass(frozen=True, slots=True)
class Connection:
    """The options by which a command reaches a cluster."""

    bootstrap_server: BootstrapServer
    command_config: CommandConfig = None

    def client_config(self) -> "KafkaClientConfig":
        """Return the client configuration, after checking that the cluster responds.

        Raises ClientPropertyError, ClusterUnreachableError.
        """
        return self._reached()[0]

    def client_and_frozen(self) -> "tuple[KafkaClientConfig, list[str]]":
        """Return the client configuration as `client_config`, and addresses to which the cluster leads clients, where
        connections are taken and nothing is answered."""
        from kafka_cluster.preflight import find_frozen

        found, brokers = self._reached()
        frozen = find_frozen(brokers, found)
        answering = [one for one in found.bootstrap_servers.split(",") if one.strip() not in frozen]
        return replace(found, bootstrap_servers=",".join(answering) or found.bootstrap_servers), frozen

    def _reached(self) -> "tuple[KafkaClientConfig, tuple[tuple[str, int], ...]]":
        from kafka_cluster.preflight import reach

        found = client_config(self.bootstrap_server, self.command_config)
        return found, reach(found, f"{self.command_config or 'a file for --command-config'}")


@contextmanager
def naming_frozen(frozen: list[str]) -> Iterator[None]:
    """Raise ClusterUnreachableError with these addresses for any failure of asking Kafka."""
    from kafka_cluster.errors import KafkaClusterError
    from kafka_cluster.preflight import ClusterUnreachableError

    try:
        yield
    except KafkaClusterError as error:
        if not frozen:
            raise
        reason = (
            "it takes connections and answers nothing, so the agent or broker that listens there is frozen, or busy"
        )
        hint = f"{END_FROZEN}; meanwhile ask the addresses in a broker's remote.wal.agent.bootstrap.servers"
        raise ClusterUnreachableError("ask", ", ".join(frozen), reason, hint) from error


def agents_client(broker: "BrokerProperties", settings: "AgentSettings") -> "KafkaClientConfig":
    """Return the client configuration of the broker's agent, after checking that the cluster responds. Raises
    ClusterUnreachableError."""
    from agent.settings.kafka_client import client_config as of_agent
    from kafka_cluster.preflight import reach

    found = of_agent(broker, settings.client)
    reach(found, f"{settings.client.client_config or 'a file for remote.wal.agent.client.config'}")
    return found


def client_config(bootstrap_server: str, command_config: Path | None) -> "KafkaClientConfig":
    """Return the client configuration for these options. Raises ClientPropertyError."""
    from kafka_cluster.client_config import read_command_config

    return read_command_config(bootstrap_server, command_config)


def http_settings(broker_config: Path | None) -> "HttpSettings | None":
    """Return the agents' settings for HTTP requests. Raises AgentSettingsError, BrokerPropertiesError."""
    if broker_config is None:
        return None
    from agent.settings_file import read_settings_file

    return read_settings_file(broker_config)[1].http

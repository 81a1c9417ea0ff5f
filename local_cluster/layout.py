"""The parts of a local cluster: directories, files, addresses, ports. Chosen once, kept in `cluster.json`.

Addresses are loopback ones, told apart by their third and fourth number, for broker b:

- 127.0.0.1: the broker's own listeners, and its agent's HTTP endpoints
- 127.0.1.b: where b's agent poses as every other broker, one port each (`replica_port`); never as b itself
- 127.0.2.b: where b's agent listens for the other agents
- 127.0.3.b: where b itself listens for agents that bypass its own, if configured

If each broker has a host of its own (a network namespace, `local_cluster.zones`), <network>.b.b replaces 127.0.0.1
and 127.0.2.b.

Broker x listens for replicas on 127.0.0.1 at the same port number at which the agents pose as x. So it can always
advertise one host name and port, and only the hosts file of broker b's JVM decides whether b dials x directly or
through its agent.

All ports are one block below the range from which the kernel takes ports of outgoing connections: such a port may be
free now and be some client's source port when the broker starts again. The block has, in this order, a spare port, the
replica ports, four ports for each broker, and the ports for clients of zones.
"""

import base64
import json
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from kafka_log.broker_files.java_properties import parse_properties

LAYOUT_FILE = "cluster.json"
LAYOUT_VERSION = 2
REPLICA_DOMAIN = "remote-wal.internal"
_OWN_PORTS = 4
_CLIENT, _CONTROLLER, _PEER, _AGENT_HTTP = range(_OWN_PORTS)
_REPLICA_PORTS = 9
"""The number of replica ports of a layout, whatever its number of brokers."""
MAX_ZONES = 4
"""The maximum number of zones with listeners for their clients, one port each (`local_cluster.zones`)."""
LOWEST_PORT: Final = 12_000
HIGHEST_PORT: Final = 29_900
_ATTEMPTS: Final = 200


class LayoutError(Exception):
    """The cluster's file `cluster.json` is absent or malformed."""


class NoFreePortsError(Exception):
    """No block of free ports was found."""


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """A cluster's directory, id and addresses. Brokers are numbered from 1; all are controllers, too."""

    directory: Path
    cluster_id: str
    """Kafka's cluster id: 16 bytes in URL-safe base64."""
    broker_count: int
    replica_port_base: int
    network: str = ""
    """The first two numbers of the addresses of the brokers' own hosts; empty: all of them share this host."""

    @classmethod
    def plan(
        cls, directory: Path, broker_count: int = 3, chooser: random.Random | None = None, network: str = ""
    ) -> Self:
        """Choose a new layout, on ports that are free now. Raises NoFreePortsError."""
        chooser = chooser or random.SystemRandom()
        ports = free_port_block(2 + _REPLICA_PORTS + broker_count * (_OWN_PORTS + MAX_ZONES), chooser)
        return cls(directory.absolute(), _new_cluster_id(chooser), broker_count, ports[1], network)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.broker_count + 1))

    @property
    def zone_port_base(self) -> int:
        """The base of brokers' ports for zones' clients: the first zone's port is base plus broker id; each next
        zone has a further block."""
        return self.replica_port_base + _REPLICA_PORTS + _OWN_PORTS * self.broker_count

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.client_address(broker_id) for broker_id in self.broker_ids)

    @property
    def object_store_directory(self) -> Path:
        return self.directory / "object-store"

    @property
    def tiered_storage_directory(self) -> Path:
        """The directory where LocalTieredStorage keeps KIP-405's segments, for all brokers."""
        return self.directory / "tiered-storage"

    @property
    def certificates_directory(self) -> Path:
        """The directory of the certificates that brokers share with their agents."""
        return self.directory / "certificates"

    def _port(self, broker_id: int, place: int) -> int:
        return self.replica_port_base + _REPLICA_PORTS + 1 + _OWN_PORTS * (broker_id - 1) + place

    def client_port(self, broker_id: int) -> int:
        return self._port(broker_id, _CLIENT)

    def peer_port(self, broker_id: int) -> int:
        """Return the port for agents: of the broker's agent, and of the broker's listener that bypasses it."""
        return self._port(broker_id, _PEER)

    def agent_http_port(self, broker_id: int) -> int:
        return self._port(broker_id, _AGENT_HTTP)

    def replica_port(self, broker_id: int) -> int:
        """Return the port of broker `broker_id`'s REPLICATION listener, and of every agent that poses as it."""
        return self.replica_port_base + broker_id

    def host(self, broker_id: int) -> str:
        return f"{self.network}.{broker_id}.{broker_id}" if self.network else "127.0.0.1"

    def client_address(self, broker_id: int) -> str:
        return f"{self.host(broker_id)}:{self.client_port(broker_id)}"

    def controller_address(self, broker_id: int) -> str:
        return f"{self.host(broker_id)}:{self._port(broker_id, _CONTROLLER)}"

    def peer_address(self, broker_id: int) -> str:
        """Return the address where the broker's agent listens for other agents."""
        host = self.host(broker_id) if self.network else f"127.0.2.{broker_id}"
        return f"{host}:{self.peer_port(broker_id)}"

    def bypass_address(self, broker_id: int) -> str:
        """Return the address where the broker listens for agents that bypass its own."""
        return f"127.0.3.{broker_id}:{self.peer_port(broker_id)}"

    def agent_http_address(self, broker_id: int) -> str:
        return f"{self.host(broker_id)}:{self.agent_http_port(broker_id)}"

    def agent_replica_host(self, broker_id: int) -> str:
        """Return the address on which the broker's agent poses as the other brokers."""
        return f"127.0.1.{broker_id}"

    def broker_directory(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}"

    def agent_directory(self, broker_id: int) -> Path:
        return self.directory / f"agent-{broker_id}"

    def server_properties(self, broker_id: int) -> Path:
        return self.broker_directory(broker_id) / "server.properties"

    def generated_properties(self, broker_id: int) -> Path:
        """Return the path of a copy of server.properties as it was last written, by which changes by hand are found."""
        return self.broker_directory(broker_id) / ".server.properties.generated"

    def hosts_file(self, broker_id: int) -> Path:
        return self.broker_directory(broker_id) / "hosts"

    def broker_log(self, broker_id: int) -> Path:
        """Return the file of the broker's own log."""
        return self.broker_directory(broker_id) / "kafka.log"

    def log_directory(self, broker_id: int) -> Path:
        """Return the broker's log directory, unless an override of log.dirs says otherwise."""
        return self.broker_directory(broker_id) / "log"

    def configured(self, broker_id: int) -> dict[str, str]:
        """Return the present keys of the broker's server.properties."""
        return parse_properties(self.server_properties(broker_id).read_bytes())

    @property
    def has_agents(self) -> bool:
        """Whether the configuration puts agents between the brokers."""
        switch = "remote.log.wal.storage.system.enable"
        return any(self.configured(broker_id).get(switch) == "true" for broker_id in self.broker_ids)

    def log_directories(self, broker_id: int) -> tuple[Path, ...]:
        """Return the broker's log.dirs, as configured."""
        return tuple(Path(part.strip()) for part in self.configured(broker_id)["log.dirs"].split(",") if part.strip())

    def partition_directory(self, broker_id: int, topic: str, partition: int) -> Path | None:
        """Return the directory of the broker's replica; None if it has none."""
        for directory in self.log_directories(broker_id):
            if (found := directory / f"{topic}-{partition}").is_dir():
                return found
        return None


def save_layout(layout: ClusterLayout) -> None:
    """Write `cluster.json` atomically."""
    layout.directory.mkdir(parents=True, exist_ok=True)
    document = {
        "version": LAYOUT_VERSION,
        "cluster_id": layout.cluster_id,
        "replica_port_base": layout.replica_port_base,
        "network": layout.network,
        "brokers": layout.broker_count,
    }
    unfinished = layout.directory / f"{LAYOUT_FILE}.new"
    unfinished.write_text(json.dumps(document, indent=2) + "\n")
    unfinished.replace(layout.directory / LAYOUT_FILE)


def load_layout(directory: Path) -> ClusterLayout:
    """Read `cluster.json`; the cluster's directory is where the file is now. Raises LayoutError."""
    path = directory / LAYOUT_FILE
    try:
        document = json.loads(path.read_text())
        if document["version"] != LAYOUT_VERSION:
            raise LayoutError(f"cannot read {path}: version {document['version']!r} is not {LAYOUT_VERSION}")
        brokers, base = int(document["brokers"]), int(document["replica_port_base"])
        return ClusterLayout(directory.absolute(), str(document["cluster_id"]), brokers, base, str(document["network"]))
    except FileNotFoundError as error:
        raise LayoutError(f"there is no cluster in {directory}: start one by ./run cluster up") from error
    except (KeyError, TypeError, ValueError) as error:
        raise LayoutError(f"cannot read {path}: it was not written by this program: {error!r}") from error


def _new_cluster_id(chooser: random.Random) -> str:
    """Return a Kafka UUID as text. Kafka's tools take a leading dash for an option, so there is none."""
    while True:
        text = base64.urlsafe_b64encode(chooser.randbytes(16)).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def port_is_free(port: int) -> bool:
    """Return whether nothing listens on `port` on any of this machine's addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: remains of an earlier, closed connection do not prevent listening there.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - bound for an instant, never listening
        except OSError:
            return False
    return True


def free_port_block(size: int, chooser: random.Random, is_free: Callable[[int], bool] = port_is_free) -> range:
    """Return `size` neighbouring ports that are free on every address. Raises NoFreePortsError."""
    for _ in range(_ATTEMPTS):
        first = chooser.randrange(LOWEST_PORT, HIGHEST_PORT - size)
        block = range(first, first + size)
        if all(is_free(port) for port in block):
            return block
    raise NoFreePortsError(f"no {size} neighbouring free ports between {LOWEST_PORT} and {HIGHEST_PORT}")

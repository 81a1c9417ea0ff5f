"""Zones on this machine: gateways for clients that stay in their zone, and a host for each zone.

The gateways' listeners and keys are those that `gateway.planning.plan` makes. Broker b is in the n-th zone; besides
its other addresses (`local_cluster.layout`) there are

- <network>.n.b: its listener for clients of its own zone
- <network>.n.(100 + b): its agent, as the gateway of the zone

It has only the plan's listeners for clients: agents, tests and tools, which are no clients of a zone, use the listener
for agents, at the address that other clusters have for all clients. Agents get only the settings of the plan.

The network has loopback addresses by default. With addresses and network namespaces of another network, a client that
can reach only its own zone's addresses proves that it needs no others, and the kernel counts the bytes that one zone
sends to another: broker b is then alone in the b-th zone, on <network>.b.b. All namespaces are connected to one bridge,
and so is this host, on <network>.0.254, which therefore reaches every broker and agent. Needs root and iproute2.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gateway.planning.front import FrontRules, front_plan
from gateway.planning.plan import plan
from gateway.planning.planned_ports import BrokerSite, PlanRules
from kafka_log.broker_files.server_properties import Endpoint, parse_broker_properties
from local_cluster.layout import REPLICA_DOMAIN, ClusterLayout

_GATEWAY_HOSTS = 100
CLIENTS = "CLIENT"
"""The listener that the plan's listeners replace."""
_TIER_LISTENER = "remote.log.metadata.manager.listener.name"
_JOINED = ("listeners", "advertised.listeners", "listener.security.protocol.map")


@dataclass(frozen=True, slots=True)
class ZoneGateways:
    """Zones for a local cluster: the zone of each broker, and the addresses that belong to it."""

    zones: Mapping[int, str]
    network: str = "127.10"
    is_named: bool = False
    """Whether brokers advertise gateways by names that stand for all of a zone's, which clients' hosts must know."""
    bootstrap: bool = False
    """Whether each agent has a bootstrap port for clients of all zones."""
    durable: bool = False
    """Whether clients of a broker's own zone connect through its agent, too, at its gateway's address."""
    pipelined: bool = False
    """With `durable`: whether acks=all is forwarded as acks=1 while agents hold the answers."""
    security_protocol: str = "PLAINTEXT"
    """The protocol of the zones' clients."""

    @property
    def zone_names(self) -> list[str]:
        """Zone names in the order of their numbers, which count from 1."""
        return sorted(set(self.zones.values()))

    def subnet(self, zone: str) -> str:
        """Return the first three numbers of the zone's IP addresses."""
        return f"{self.network}.{self.zone_names.index(zone) + 1}"

    def broker_host(self, broker_id: int) -> str:
        """Return the IP address where clients of a broker's zone reach it."""
        return f"{self.subnet(self.zones[broker_id])}.{broker_id}"

    def gateway_host(self, broker_id: int) -> str:
        """Return the IP address where clients of a broker's zone reach its agent."""
        return f"{self.subnet(self.zones[broker_id])}.{_GATEWAY_HOSTS + broker_id}"

    def gateway_hosts(self, zone: str) -> list[str]:
        """Return the addresses of all agents of a zone."""
        return [self.gateway_host(broker_id) for broker_id, its in self.zones.items() if its == zone]

    def gateway_name(self, zone: str) -> str:
        """Return the host that brokers of other zones advertise for the zone's gateways."""
        return f"gateway-{zone}.{REPLICA_DOMAIN}" if self.is_named else self.gateway_hosts(zone)[0]

    def hosts_file(self, zone: str) -> str:
        """Return a hosts file with the names that a client of the zone needs."""
        lines = [f"{host} {self.gateway_name(zone)}" for host in self.gateway_hosts(zone)]
        return "\n".join(["127.0.0.1 localhost", *lines]) + "\n"

    def addresses(self, zone: str) -> list[str]:
        """Return all addresses that the zone's brokers and agents listen at."""
        brokers = [broker_id for broker_id, its in self.zones.items() if its == zone]
        return [*map(self.broker_host, brokers), *map(self.gateway_host, brokers)]

    def own_zone_address(self, layout: ClusterLayout, broker_id: int) -> str:
        """Return the address where clients of its own zone reach a broker through its agent."""
        return f"{self.gateway_host(broker_id)}:{layout.replica_port(broker_id)}"

    def bootstrap_address(self, layout: ClusterLayout, broker_id: int) -> str:
        """Return the address where clients of any zone may bootstrap at a broker's agent."""
        return f"{self.gateway_host(broker_id)}:{layout.replica_port_base - 1}"

    def bootstrap_servers(self, layout: ClusterLayout, zone: str) -> str:
        """Return the bootstrap servers of the zone's gateways only, at their ports for brokers of other zones."""
        others = [broker_id for broker_id, its in self.zones.items() if its != zone]
        return ",".join(f"{self.gateway_name(zone)}:{layout.replica_port(broker_id)}" for broker_id in others)


def with_gateways(
    properties: Mapping[str, str], layout: ClusterLayout, broker_id: int, gateways: ZoneGateways
) -> dict[str, str]:
    """Return a broker's keys joined with those of the planned gateways."""
    sites = [
        BrokerSite(
            one,
            gateways.zones[one],
            gateways.gateway_host(one) if gateways.durable else gateways.broker_host(one),
            layout.replica_port(one) if gateways.durable else _port_of_own_zone(layout, one, gateways),
            bind_host=gateways.broker_host(one),
            gateway_bind_host=gateways.gateway_host(one),
            agents_host=layout.host(one),
            agents_port=layout.client_port(one),
            agents_bind_host=layout.host(one),
        )
        for one in layout.broker_ids
    ]
    rules = PlanRules(
        gateway_port_base=layout.replica_port_base,  # free on all addresses
        loopback_port_base=layout.zone_port_base,
        loopback_port_step=layout.broker_count,
        replica_port_base=layout.replica_port_base,
        replica_listen_host=layout.agent_replica_host(broker_id),
        agents_security_protocol="PLAINTEXT",
        durable=gateways.durable,
        pipelined=gateways.pipelined,
        bootstrap=gateways.bootstrap,
        security_protocol=gateways.security_protocol,
    )
    names = {zone: gateways.gateway_name(zone) for zone in gateways.zone_names}
    planned = plan(sites, names, rules)[broker_id]
    kept = {key: [one for one in properties[key].split(",") if not one.startswith(f"{CLIENTS}:")] for key in _JOINED}
    joined = {key: ",".join([planned[key], *kept[key]]) for key in _JOINED}
    if properties.get(_TIER_LISTENER) == CLIENTS:
        joined[_TIER_LISTENER] = planned["remote.wal.agent.client.listener"]
    return {**properties, **planned, **joined}


def with_front(properties: Mapping[str, str], layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """Return a broker's keys with its agent in front of it, at the address that clients know."""
    file = layout.server_properties(broker_id)
    broker = parse_broker_properties(properties, file)
    agents = {
        one: Endpoint(layout.host(one), layout.zone_port_base + layout.broker_count + one) for one in layout.broker_ids
    }
    planned = front_plan(broker, agents, FrontRules(CLIENTS, loopback_port_base=layout.zone_port_base))
    return {**properties, **planned.first, **planned.then}


def _port_of_own_zone(layout: ClusterLayout, broker_id: int, gateways: ZoneGateways) -> int:
    """Return the port that the plan's rule leaves out. Kafka wants another port for each listener at any address."""
    index = gateways.zone_names.index(gateways.zones[broker_id])
    return layout.zone_port_base + index * layout.broker_count + broker_id


CAN_MAKE = os.geteuid() == 0 and shutil.which("ip") is not None
MAY_FAIL = (OSError, subprocess.CalledProcessError)
"""The errors of making them if the machine does not allow it, as in many containers."""


@dataclass(frozen=True, slots=True)
class ZoneHosts:
    """Network namespaces that play the zones' hosts, named after this process and their network."""

    network: str
    """The first two numbers of all addresses."""
    broker_ids: Sequence[int] = (1, 2, 3)
    """The brokers, and numbers that no broker has for other things that need a host, such as an object store."""

    @property
    def here(self) -> str:
        """The IP address where all namespaces reach this host."""
        return f"{self.network}.0.254"

    def address(self, broker_id: int) -> str:
        return f"{self.network}.{broker_id}.{broker_id}"

    def namespace(self, broker_id: int) -> str:
        """Return the namespace where a broker, its agent and its zone's clients run."""
        return f"{self._name}-az{broker_id}"

    def prefix(self, broker_id: int) -> tuple[str, ...]:
        """Return the beginning of a command line that runs in the broker's namespace."""
        return ("ip", "netns", "exec", self.namespace(broker_id))

    def entered_bytes(self) -> dict[int, int]:
        """Return the bytes that entered each zone from others and from this host, including frames, as the kernel
        counts them.
        """
        return {one: self._count(one, "tx_bytes") for one in self.broker_ids}

    @contextmanager
    def make(self) -> Iterator[Self]:
        """Create the namespaces, and remove them when the context ends. Raises CalledProcessError, FileExistsError,
        other OSErrors."""
        if _is_ours(self.here):
            raise FileExistsError(f"{self.here} is an address of this machine already")
        try:
            self._make()
            yield self
        finally:
            self._destroy()

    @property
    def _name(self) -> str:
        return f"rw{os.getpid()}-{self.network.rpartition('.')[2]}"

    def _wire(self, broker_id: int) -> str:
        return f"{self._name}z{broker_id}"

    def _count(self, broker_id: int, counter: str) -> int:
        return int(Path(f"/sys/class/net/{self._wire(broker_id)}/statistics/{counter}").read_text())

    def _make(self) -> None:
        bridge = f"{self._name}b"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("address", "add", f"{self.here}/16", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for one in self.broker_ids:
            name, wire = self.namespace(one), self._wire(one)
            _ip("netns", "add", name)
            _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", wire, "master", bridge, "up")
            for host in (one, 100 + one):
                _ip("-n", name, "address", "add", f"{self.network}.{one}.{host}/16", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def _destroy(self) -> None:
        for one in self.broker_ids:
            _ip("link", "delete", self._wire(one), may_fail=True)
            _ip("netns", "delete", self.namespace(one), may_fail=True)
        _ip("link", "delete", f"{self._name}b", may_fail=True)


@contextmanager
def hosts_where_allowed(*hosts: ZoneHosts) -> Iterator[bool]:
    """Create the namespaces if root and the machine allow it; yield whether they exist. Removed when the context
    ends."""
    with ExitStack() as made:
        try:
            for one in hosts if CAN_MAKE else ():
                made.enter_context(one.make())
        except MAY_FAIL:
            made.close()
            yield False
            return
        yield CAN_MAKE


def _is_ours(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _ip(*arguments: str, may_fail: bool = False) -> None:
    subprocess.run(["ip", *arguments], check=not may_fail, capture_output=True, text=True)

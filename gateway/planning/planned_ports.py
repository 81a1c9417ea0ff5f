"""The input of a plan, and its ports, which do not change when zones and brokers come and go.

A broker has loopback ports for clients of each other zone, at the zone's base plus the broker's id. A known zone keeps
its base; a new one gets the lowest free base. Otherwise an agent that is restarted before or after its broker would
lead clients of one zone to the listener of another.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
_ALL_ADDRESSES = {"", "0.0.0.0", "::"}  # noqa: S104 - compared with


class PlanError(Exception):
    """No plan can be made of these zones and brokers; the message says which and why."""


@dataclass(frozen=True, slots=True)
class BrokerSite:
    """A broker's zone and host, and how clients of its own zone reach it."""

    broker_id: int
    zone: str
    host: str
    port: int = 9092
    bind_host: str = ""
    """Bind address of its listener for its own zone; empty: all interfaces."""
    gateway_bind_host: str = "0.0.0.0"  # noqa: S104 - clients of the whole zone connect there
    """Address on which its agent listens for clients."""
    agents_host: str = ""
    """The name by which agents of all zones reach the broker; empty: as clients do."""
    agents_port: int | None = None
    """Its port for agents; None: that of the rules."""
    agents_bind_host: str | None = None
    """Bind address of that listener; None: as for its own zone."""

    @property
    def agents_socket_host(self) -> str:
        return self.bind_host if self.agents_bind_host is None else self.agents_bind_host


@dataclass(frozen=True, slots=True)
class PlanRules:
    """The rules for ports and names."""

    security_protocol: str = "PLAINTEXT"
    """The protocol between clients and brokers or gateways."""
    agents_security_protocol: str = ""
    """The protocol between agents and brokers; empty: as clients."""
    agents_listener: str = ""
    """The listener for agents: an existing one, or else the prefix and _AGENTS."""
    agents_port: int = 19097
    """A broker's port for agents."""
    zone_port: int = 9192
    """A broker's port for clients of its own zone, at which a cluster without a plan is asked."""
    gateway_port_base: int = 19300
    """A gateway's port for a broker is this plus the broker's id."""
    loopback_port_base: int = 19400
    """A broker's loopback port for the first zone is this plus its id."""
    loopback_port_step: int = 100
    """How much higher the next zone's base is."""
    replica_port_base: int = 19900
    """A broker's port for other brokers is this plus its id; an agent that stands in for it uses the same port."""
    replica_listen_host: str = LOOPBACK
    """Address on which agents stand in for other brokers."""
    listener_prefix: str = "CLIENT"
    durable: bool = False
    """Whether clients of the own zone also come through the broker's agent, which may then hold answers to
    producers.
    """
    pipelined: bool = False
    """Whether acks=all is forwarded as acks=1 while agents hold the answers; needs `durable`."""
    bootstrap: bool = False
    """Whether agents lead clients of all zones to the listeners for theirs, at the port below the gateways' base."""

    @property
    def protocol_of_agents(self) -> str:
        return self.agents_security_protocol or self.security_protocol

    def agents_port_of(self, broker: BrokerSite) -> int:
        return self.agents_port if broker.agents_port is None else broker.agents_port


class Socket(NamedTuple):
    """A listening socket on a broker's host."""

    host: str
    port: int
    is_brokers: bool = False
    """Whether it belongs to the broker, not to its agent."""


def check_sockets(broker_id: int, sockets: Sequence[Socket]) -> None:
    """Raise PlanError for a port that two sockets need on the broker's host, or that is no valid port."""
    if (port := clash(sockets)) is not None:
        raise PlanError(f"port {port} would be used twice on the host of broker {broker_id}: choose others")
    for one in sockets:
        if not 0 < one.port <= MAX_PORT:
            bound = f"above {MAX_PORT}" if one.port > 0 else "below 1"
            raise PlanError(f"port {one.port} on the host of broker {broker_id} is {bound}")


def clash(sockets: Sequence[Socket]) -> int | None:
    """Return the lowest port that is used twice; Kafka needs different ports for its own listeners on all hosts."""

    def meet(one: Socket, other: Socket) -> bool:
        hosts = {one.host, other.host}
        return len(hosts) == 1 or bool(hosts & _ALL_ADDRESSES) or (one.is_brokers and other.is_brokers)

    by_port = Counter(one.port for one in sockets)
    shared = (port for port, number in sorted(by_port.items()) if number > 1)
    for port in shared:
        if any(meet(*pair) for pair in combinations([one for one in sockets if one.port == port], 2)):
            return port
    return None


def loopback_bases(
    zones: Sequence[str], brokers: Sequence[BrokerSite], rules: PlanRules, known: Mapping[str, int]
) -> dict[str, int]:
    """Return for each zone the first of its loopback ports. Brokers' ports for each other are avoided."""
    ids = [broker.broker_id for broker in brokers]
    bases = {zone: known[zone] for zone in zones if zone in known}
    for zone in zones:
        if zone not in bases:
            taken = [*bases.values(), rules.replica_port_base]
            candidates = count(rules.loopback_port_base, rules.loopback_port_step)
            bases[zone] = next(one for one in candidates if not _is_near(one, taken, max(ids) - min(ids)))
    return {zone: bases[zone] for zone in zones}


def _is_near(base: int, taken: Sequence[int], spread: int) -> bool:
    """Whether ports of two brokers could be equal with this base, if their ids differ by `spread` at most."""
    return any(abs(base - one) <= spread for one in taken)


WITHOUT_TLS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_PLAINTEXT",
}
"""The protocol of a loopback listener, by the protocol of clients: TLS ends at the gateway."""


def without_tls(protocol: str) -> str:
    """Return the protocol of a loopback listener for clients of this protocol: TLS ends at the agent."""
    return WITHOUT_TLS[protocol]

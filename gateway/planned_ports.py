"""What a plan is made of, and its ports, which stay as they are when zones and brokers come and go.

A broker has loopback ports for clients of each other zone, at the zone's base plus the broker's id. A zone that is
known keeps its base; a new one gets the lowest that is free. Else an agent that was restarted before its broker, or
after, would lead clients of one zone to the listener of another.
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
    """Where a broker stands, and how clients of its own zone reach it."""

    broker_id: int
    zone: str
    host: str
    port: int = 9092
    bind_host: str = ""
    """Where its listener for its own zone is bound; empty: all interfaces."""
    gateway_bind_host: str = "0.0.0.0"  # noqa: S104 - clients of the whole zone connect there
    """Where its agent listens for clients."""
    admin_host: str = ""
    """As admin tools reach its agent; empty: as clients reach the broker."""
    agents_host: str = ""
    """As agents of all zones reach the broker; empty: as clients do."""
    agents_port: int | None = None
    """Its port for agents; None: that of the rules."""
    agents_bind_host: str | None = None
    """Where it is bound; None: as for its own zone."""

    @property
    def agents_socket_host(self) -> str:
        return self.bind_host if self.agents_bind_host is None else self.agents_bind_host


@dataclass(frozen=True, slots=True)
class PlanRules:
    """How ports and names are made."""

    security_protocol: str = "PLAINTEXT"
    """What clients speak, with brokers and gateways alike."""
    agents_security_protocol: str = ""
    """What agents speak with brokers; empty: as clients."""
    agents_listener: str = ""
    """The listener for agents: one that is there already, or the prefix and _AGENTS."""
    agents_port: int = 19097
    """A broker's port for agents."""
    zone_port: int = 9192
    """A broker's port for clients of its own zone, where a cluster that has no plan yet is asked."""
    gateway_port_base: int = 19300
    """A gateway's port for a broker is this plus the broker's id."""
    loopback_port_base: int = 19400
    """A broker's loopback port for the first zone is this plus its id."""
    loopback_port_step: int = 100
    """By so much the base of the next zone is higher."""
    admin_port_base: int = 19200
    """A broker's loopback port for admin tools is this plus its id."""
    replica_port_base: int = 19900
    """A broker's port for other brokers is this plus its id, and so is that of an agent that poses as it."""
    replica_listen_host: str = LOOPBACK
    """Where agents pose as other brokers."""
    listener_prefix: str = "CLIENT"
    admin: bool = False
    """Whether there is a listener for admin tools that come by the broker's own agent."""
    durable: bool = False
    """Whether clients of the own zone, too, come by the broker's agent, which may then hold answers to producers."""
    pipelined: bool = False
    """Whether acks=all goes on as acks=1 while agents hold the answers; needs `durable`."""
    bootstrap_port: int | None = None
    """Where agents lead clients of all zones to the listeners for their zone; None: nowhere."""

    @property
    def protocol_of_agents(self) -> str:
        return self.agents_security_protocol or self.security_protocol

    def agents_port_of(self, broker: BrokerSite) -> int:
        return self.agents_port if broker.agents_port is None else broker.agents_port


class Socket(NamedTuple):
    """Something that listens on a broker's host."""

    host: str
    port: int
    is_brokers: bool = False
    """The broker's, and not its agent's."""


def clash(sockets: Sequence[Socket]) -> int | None:
    """The lowest port that two cannot have both; Kafka wants another one for each of its own, whatever their hosts."""

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
    """Each zone's. Those of brokers' ports for each other, and for admin tools, are passed over."""
    ids = [broker.broker_id for broker in brokers]
    reserved = [rules.replica_port_base, *([rules.admin_port_base] if rules.admin else [])]
    bases = {zone: known[zone] for zone in zones if zone in known}
    for zone in zones:
        if zone not in bases:
            taken = [*bases.values(), *reserved]
            candidates = count(rules.loopback_port_base, rules.loopback_port_step)
            bases[zone] = next(one for one in candidates if not _is_near(one, taken, max(ids) - min(ids)))
    return {zone: bases[zone] for zone in zones}


def _is_near(base: int, taken: Sequence[int], spread: int) -> bool:
    """Whether the ports of two brokers, whose ids are so far apart at most, could be the same from there on."""
    return any(abs(base - one) <= spread for one in taken)

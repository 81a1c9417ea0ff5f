"""Chooses through which agent of a zone its clients reach each broker of other zones.

For each broker all agents of the zone rank themselves by rendezvous hashing, and so come to the same order. The first
that can serve its clients is the broker's proxy and listens for them; at those behind it the port is closed, so clients
go on to the next address of the name that they know. An agent that cannot bind the port, did not reach the broker's
agent, or has used up its connections says so to the others (`Hello.unserved`), and goes on to listen where it can.

All clients of a broker in a zone share one agent's uploads and reads, and an agent that comes or goes moves only the
brokers that it is the proxy of. (The zone router's design has one proxy for each main node in each other zone, by
consistent hashing.)
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b


def ranked(broker_id: int, agents: Iterable[int]) -> list[int]:
    """Return a zone's agents, by the ids of their brokers, in the order in which they act as proxy for this broker."""

    def weight(agent: int) -> bytes:
        return blake2b(f"{broker_id}/{agent}".encode(), digest_size=8).digest()

    return sorted(agents, key=weight, reverse=True)


class ZoneProxies:
    """Decides for which brokers this agent is the proxy of its zone now."""

    def __init__(self, own_id: int, others: Callable[[], frozenset[int]], serves: Callable[[int, int], bool]) -> None:
        """`others` returns the zone's other agents that serve clients; none while they are unknown: then every agent
        serves all brokers.

        `serves` returns whether an agent may live, and has not said that it cannot serve clients of a broker.
        """
        self._own_id = own_id
        self._others = others
        self._serves = serves

    def is_proxy(self, broker_id: int) -> bool:
        """Whether no other agent that comes earlier in the order for this broker serves its clients."""
        order = ranked(broker_id, self._others() | {self._own_id})
        return not any(self._serves(one, broker_id) for one in order[: order.index(self._own_id)])

"""A route around a leader's dead agent: straight to its broker, inline, as in stock Kafka.

At any time, all connections of the local broker to one leader use one route. A change of route closes the connections
on the other one, so that the broker's fetchers reconnect as after any broken connection. A new connection waits as long
as the agent may be away, because nothing has been sent on it yet.

An agent is dead when it does not answer a hello: its process is gone, or it is frozen while its kernel still accepts
connections. The bypass looks for a frozen one when a connection that waits for an answer gets none. Probes find out
whether the agent is back; no connection of the broker is risked for that.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from replication.follower.bypass_relay import BypassRelay
from replication.follower.leader_route import LeaderRoute, RouteLimits
from replication.wire.broker_requests import BrokerRequests
from replication.wire.framed_connection import FramedConnection
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_protocol import PeerRefusedError

log = structlog.get_logger(__name__)

_RETRY_S = 0.1
_MAX_PATIENCE_S = 60.0
_UNREACHABLE = (OSError, ssl.SSLError, PeerRefusedError)  # TimeoutError is an OSError


class BypassWay(NamedTuple):
    """A broker's listener for other hosts."""

    address: Address
    server_name: str | None = None
    """The name that its certificate must have; None means the dialled host. Registering an address proves no
    identity.
    """


@dataclass(frozen=True, slots=True)
class Bypass:
    """How to reach brokers past their dead agents."""

    brokers: Mapping[int, Address]
    """By broker id, the brokers' listeners that take connections from other hosts."""
    limits: RouteLimits
    tls: Callable[[], ssl.SSLContext | None]
    """Called for each connection, so that rotated files take effect."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    login: Callable[[FramedConnection], Awaitable[None]] | None = None
    """The agent's own login on each connection; None if the local broker's frames begin at once. Raises like
    AgentWay.reach."""
    takes_registered: bool = False
    """Whether registered addresses count too: only where certificates prove who listens there."""
    registered: dict[int, Address] = field(default_factory=dict)
    """Listeners that brokers registered; they may include brokers that `brokers` lacks."""

    def way_to(self, broker_id: int) -> BypassWay | None:
        """Return the route; a configured listener goes before a registered one. None if there is no route."""
        listed, registered = self.brokers.get(broker_id), self.registered.get(broker_id)
        if listed is not None:
            return BypassWay(listed)
        return None if registered is None else BypassWay(registered, f"broker-{broker_id}")


@dataclass(frozen=True, slots=True)
class AgentWay:
    """The normal route, through the leader's agent."""

    reach: Callable[[], Awaitable[FramedConnection]]
    """Connect, and exchange hellos. Raises OSError, ssl.SSLError, PeerRefusedError."""
    relay: Callable[[FramedConnection, FramedConnection], Awaitable[None]]
    """Relay from the local broker's connection to the agent's until either ends; closes neither."""
    unconnected: Callable[[], FramedConnection]
    """Make a connection object for what comes from a leader, with this agent's limits."""


@dataclass(slots=True)
class _Silence:
    """Since when nothing has passed on a connection, and how long that is accepted."""

    patience_s: float
    since_s: float
    passed: tuple[int, int] = (0, 0)


class LeaderBypass:
    """Serves the local broker's connections to one leader, through its agent or past it."""

    def __init__(
        self,
        leader_id: int,
        bypass: Bypass,
        agent: AgentWay,
        metrics: ReplicationMetrics,
        requests: BrokerRequests,
    ) -> None:
        """Only `requests` may pass, on either route."""
        self.leader_id = leader_id
        self._bypass = bypass
        self._agent = agent
        self._metrics = metrics
        self._requests = requests
        self._clock = bypass.clock
        self._route = LeaderRoute(bypass.limits)
        self._brokers: dict[FramedConnection, None] = {}
        """The local broker's connections on the present route."""
        self._silences: dict[FramedConnection, _Silence] = {}
        """Silence of the connections to the agent."""

    @property
    def is_bypassed(self) -> bool:
        """Whether connections go past the agent now."""
        return self._route.is_bypassed

    async def serve(self, broker: FramedConnection) -> None:
        """Serve one connection of the local broker until it ends."""
        agent = await self._reached_agent()
        leader = agent or self._agent.unconnected()
        self._brokers[broker] = None
        try:
            if agent is not None:
                self._silences[agent] = _Silence(self._bypass.limits.after_s, self._clock())
                await self._agent.relay(broker, agent)
            elif await self._reached_broker(leader):
                await BypassRelay(self.leader_id, broker, leader, self._metrics, self._requests).run()
        finally:
            del self._brokers[broker]
            self._silences.pop(leader, None)
            leader.close()

    async def _reached_broker(self, leader: FramedConnection) -> bool:
        """Connect to the leader's broker and log in. Returns whether both succeeded."""
        way = self._bypass.way_to(self.leader_id)
        if way is None:
            return False  # it has just gone
        try:
            await connect_framed(way.address, leader, self._bypass.tls(), server_name=way.server_name)
            if self._bypass.login is not None:
                await self._bypass.login(leader)
        except _UNREACHABLE as error:
            reason = "bypass_refused" if isinstance(error, PeerRefusedError) else "bypass_unreachable"
            self._metrics.fault(reason)
            log.error(reason, leader=self.leader_id, broker=str(way.address), error=_text(error))
            return False
        log.info("bypass_connected", leader=self.leader_id, broker=str(way.address))
        return True

    async def watch(self) -> None:
        """Check whether the agent is frozen, and, while it is bypassed, whether it is back. Runs until cancelled."""
        while True:
            await asyncio.sleep(self._route.probe_wait_s if self.is_bypassed else self._bypass.limits.attempt_s)
            try:
                if self.is_bypassed:
                    await self._probe()
                elif self._is_silent():
                    agent = await self._reached_agent()
                    if agent is not None:
                        agent.close()
            except Exception:  # a defect here must not block the other route for good
                self._metrics.fault("bypass_defect")
                log.exception("bypass_defect", leader=self.leader_id)

    def end(self) -> None:
        """End this bypass: connections on it are closed and must begin again."""
        if self.is_bypassed:
            self._metrics.bypass.peers.dec()
            for broker in self._brokers:
                broker.close()

    def _is_silent(self) -> bool:
        """Whether nothing has passed on a connection for longer than a replica's fetch may wait.

        An unused connection is silent, too; so the patience with it grows until something passes again.
        """
        now_s, found = self._clock(), False
        for agent, silence in self._silences.items():
            passed = agent.bytes_received, agent.bytes_sent
            if passed != silence.passed:
                silence.passed, silence.since_s, silence.patience_s = passed, now_s, self._bypass.limits.after_s
            elif now_s - silence.since_s >= silence.patience_s:
                silence.since_s, silence.patience_s = now_s, min(2 * silence.patience_s, _MAX_PATIENCE_S)
                found = True
        return found

    async def _reached_agent(self) -> FramedConnection | None:
        """Connect to the agent; retry until it has been away for too long. None: it is bypassed."""
        route, first = self._route, True
        while not route.is_bypassed:
            began_s = self._clock()
            try:
                async with asyncio.timeout(route.limits.attempt_s):
                    agent = await self._agent.reach()
            except _UNREACHABLE as error:
                if first:
                    first = False
                    self._tell_unreachable(error)
                if route.attempt_failed(began_s, self._clock()):
                    self._switched(error)
                else:
                    await asyncio.sleep(_RETRY_S)
                continue
            if route.attempt_answered():
                return agent
            agent.close()
        return None

    def _tell_unreachable(self, error: Exception) -> None:
        reason = "peer_refused" if isinstance(error, PeerRefusedError) else "peer_unreachable"
        self._metrics.fault(reason)
        log.warning(reason, leader=self.leader_id, error=_text(error))

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(self._bypass.limits.attempt_s):
                agent = await self._agent.reach()
        except _UNREACHABLE:
            self._route.probe_failed()
            return
        agent.close()
        if self._route.probe_answered(self._clock()):
            self._switched(None)

    def _switched(self, error: Exception | None) -> None:
        """Log a change of route, and close the connections on the other one.

        `error` says why the agent is bypassed; None means that it is used again.
        """
        if error is not None:
            log.error("agent_bypassed", leader=self.leader_id, error=_text(error), path="inline")
        else:
            log.warning("agent_back", leader=self.leader_id)
        self._metrics.bypass.switches.labels("agent" if error is None else "broker").inc()
        self._metrics.bypass.peers.inc(-1 if error is None else 1)
        for broker in self._brokers:
            broker.close()


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__

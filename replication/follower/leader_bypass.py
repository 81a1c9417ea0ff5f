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
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from kafka_log.crc32c import Buffer
from replication.wire.broker_requests import BrokerRequests
from replication.wire.frame_inbox import SIZE_PREFIX
from replication.wire.framed_connection import FramedConnection, run_until_one_ends
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_protocol import PeerRefusedError

log = structlog.get_logger(__name__)

_MIN_FAILURES = 2
_LASTING = 10
"""A return counts as lasting after this many times `return_after_s`."""
_MAX_DOUBLINGS = 5


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Limits of bypassing a dead agent, in seconds."""

    after_s: float = 3.0
    """How long the agent must fail to answer: longer than it takes to restart (guessed)."""
    return_after_s: float = 10.0
    """How long it must answer until it is used again; each change costs the local broker's fetcher a back-off
    (guessed)."""
    probe_s: float = 1.0
    """Time between two probes; doubled after each unanswered one, up to `probe_max_s`."""
    probe_max_s: float = 15.0

    @property
    def attempt_s(self) -> float:
        """How long one attempt to reach the agent may take."""
        return self.after_s / _MIN_FAILURES


class LeaderRoute:
    """Decides the route to one leader: through its agent, or past it to its broker.

    The agent is used while it responds. It is bypassed when it has not responded for `after_s`; a restart should be
    shorter. At least two attempts must fail, because this process itself may have been frozen. The agent is used again
    when all probes succeeded for `return_after_s`. Each change costs the local broker's fetcher a back-off, so an agent
    that fails again soon must respond for longer each time.
    """

    def __init__(self, limits: RouteLimits) -> None:
        self.limits = limits
        self.is_bypassed = False
        self.probe_wait_s = limits.probe_s
        """How long to wait before the next probe."""
        self._failing_since_s: float | None = None
        self._failures = 0
        self._answering_since_s: float | None = None
        self._returned_at_s: float | None = None
        self._doublings = 0

    def attempt_failed(self, began_s: float, now_s: float) -> bool:
        """Record a failed attempt to connect to the agent. Returns True when the agent is bypassed from now on."""
        if self.is_bypassed:
            return False
        self._failing_since_s = began_s if self._failing_since_s is None else min(began_s, self._failing_since_s)
        self._failures += 1
        if self._failures < _MIN_FAILURES or now_s - self._failing_since_s < self.limits.after_s:
            return False
        self.is_bypassed = True
        self.probe_wait_s = self.limits.probe_s
        self._answering_since_s = None
        lasting_s = _LASTING * self.limits.return_after_s
        flaps = self._returned_at_s is not None and now_s - self._returned_at_s < lasting_s
        self._doublings = min(self._doublings + 1, _MAX_DOUBLINGS) if flaps else 0
        return True

    def attempt_answered(self) -> bool:
        """Record a successful attempt to connect to the agent. Returns False when it was bypassed meanwhile."""
        if not self.is_bypassed:
            self._failing_since_s = None
            self._failures = 0
        return not self.is_bypassed

    @property
    def steady_s(self) -> float:
        """For how long all probes must succeed before the agent is used again."""
        return float(self.limits.return_after_s * 2**self._doublings)

    def probe_failed(self) -> None:
        """Record a probe to which the bypassed agent did not respond."""
        self._answering_since_s = None
        self.probe_wait_s = min(2 * self.probe_wait_s, self.limits.probe_max_s)

    def probe_answered(self, now_s: float) -> bool:
        """Record a probe to which the bypassed agent responded. Returns True when it is used again from now on."""
        self.probe_wait_s = self.limits.probe_s
        if self._answering_since_s is None:
            self._answering_since_s = now_s
        if not self.is_bypassed or now_s - self._answering_since_s < self.steady_s:
            return False
        self.is_bypassed = False
        self._returned_at_s = now_s
        self.attempt_answered()
        return True


_REQUESTS = 0
"""Index of the task for requests: if it ended first, the local broker closed the connection, not the leader's."""
_RETRY_S = 0.1
_MAX_PATIENCE_S = 60.0
_HINT = "the listener in remote.wal.agent.bypass must take this agent, as a principal with ClusterAction"
_UNREACHABLE = (OSError, ssl.SSLError, PeerRefusedError)  # TimeoutError is an OSError


class BypassWay(NamedTuple):
    """A broker's listener for other hosts, and how to connect to it."""

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
        """Return the listener of a broker, a configured one before a registered one; None if there is none."""
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
        """`requests` are the kinds of Kafka requests that may pass, on either route."""
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
                await self._relay(broker, leader)
        finally:
            del self._brokers[broker]
            self._silences.pop(leader, None)
            leader.close()

    async def _relay(self, broker: FramedConnection, leader: FramedConnection) -> None:
        """Relay straight to the leader's broker until either side ends, as stock Kafka does: nothing is parsed."""
        sent, answered = leader.frames_sent, broker.frames_sent

        async def pass_on(
            source: FramedConnection, target: FramedConnection, direction: str, check: Callable[[Buffer], None] | None
        ) -> None:
            while (frame := await source.read_frame()) is not None:
                if check is not None:
                    check(frame)
                target.write_frame(frame)
                self._metrics.bypass.bytes.labels(direction).inc(SIZE_PREFIX.size + len(frame))
                await target.drain()

        try:
            requests = pass_on(broker, leader, "sent", self._requests.check)
            ended = await run_until_one_ends(requests, pass_on(leader, broker, "received", None))
            if _REQUESTS not in ended and leader.frames_sent > sent and broker.frames_sent == answered:
                self._metrics.fault("bypass_refused")
                error = str(leader.error or "closed without an answer")
                log.error("bypass_refused", leader=self.leader_id, error=error, hint=_HINT)
        finally:
            self._metrics.connection_ended("broker", broker.error)
            self._metrics.connection_ended("bypass", leader.error)

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
        """Stop bypassing: close the connections to the broker, so that they begin again through the agent."""
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


class LeaderBypasses(dict[int, LeaderBypass]):
    """The bypasses of one agent: one for each leader whose broker has a listener for it.

    They follow the leaders that this agent stands in for; a new route serves connections from then on.
    """

    def __init__(
        self,
        bypass: Bypass | None,
        way_of: Callable[[int], AgentWay],
        metrics: ReplicationMetrics,
        requests: BrokerRequests,
    ) -> None:
        """`bypass` is None if there is never a bypass. `way_of` returns the route through a leader's agent."""
        super().__init__()
        self._bypass = bypass
        self._way_of = way_of
        self._metrics = metrics
        self._requests = requests
        self._watches: dict[int, asyncio.Task[None]] = {}

    def learned(self, registered: Mapping[int, Address]) -> None:
        """Replace the listeners that other brokers' agents have registered. Takes effect with `keep_to`."""
        if self._bypass is not None and self._bypass.takes_registered:
            self._bypass.registered.clear()
            self._bypass.registered.update(registered)

    def keep_to(self, leader_ids: Iterable[int]) -> None:
        """Create bypasses for these leaders, if their brokers can be reached, and end all others."""
        bypass = self._bypass
        wanted = {one for one in leader_ids if bypass is not None and bypass.way_to(one) is not None}
        for broker_id in self.keys() - wanted:
            self._watches.pop(broker_id).cancel()
            self.pop(broker_id).end()
        if bypass is None:
            return
        loop = asyncio.get_running_loop()
        for broker_id in sorted(wanted - self.keys()):
            way = self._way_of(broker_id)
            self[broker_id] = made = LeaderBypass(broker_id, bypass, way, self._metrics, self._requests)
            self._watches[broker_id] = loop.create_task(made.watch())

    @property
    def bypassed(self) -> list[int]:
        """The brokers whose agents are dead and bypassed now."""
        return sorted(one for one, bypass in self.items() if bypass.is_bypassed)

    async def stop(self) -> None:
        """Stop probing agents. The connections are closed by their owner."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

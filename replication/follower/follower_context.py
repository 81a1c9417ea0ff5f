"""Holds what all connections on which links are hydrated share."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from replication.follower.catch_up_reads import CatchUpReads
from replication.follower.hydration import HydrationCache
from replication.wire.broker_requests import BrokerRequests
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.link_defects import LinkDefects
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics
from replication.wire.packing import Packing
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import HELLO_TIMEOUT_S
from replication.wire.peer_protocol import Hello
from rlm.write_path.metrics import StageTimes


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """Limits of the follower's side, in seconds and bytes."""

    hydration_timeout_s: float
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    frame_timeout_s: float = 30.0
    first_frame_timeout_s: float = HELLO_TIMEOUT_S
    """Limit for the TLS handshake, and again for the first frame."""
    max_connections_to_one: int = 128
    """The most connections of the local broker to each other broker. It needs one for each fetcher, and a few more."""
    restart_s: float = 3.0
    """An agent that refuses connections may be restarting for so long."""
    wants_digests: bool = False
    """Whether links without a SHA-256 are refused."""

    @property
    def max_response_bytes(self) -> int:
        """The largest response from a leader's agent, linked or not, in bytes."""
        return RESPONSE_FACTOR * self.max_frame_bytes


@dataclass(frozen=True, slots=True)
class DiallingContext:
    """What all connections to other agents share: address, TLS, hello, metrics."""

    hello: Hello
    limits: FollowerLimits
    metrics: ReplicationMetrics
    tls: Callable[[], ssl.SSLContext | None]
    """For connections to other agents."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    budget: MemoryBudget
    """Limits messages from the leaders' agents, and the bytes that responses are put together from."""


@dataclass(frozen=True, slots=True)
class FollowerContext(DiallingContext):
    """What all follower relays of one agent share."""

    hydration: HydrationCache
    stage_times: StageTimes
    catch_up: CatchUpReads
    requests: BrokerRequests = field(default_factory=BrokerRequests)
    """The requests that may be sent where this agent stands in for another broker."""
    broker_tls: Callable[[], ssl.SSLContext | None] = lambda: None
    """For the local broker, made for each of its connections."""
    is_paused: Callable[[], bool] = lambda: False
    """Whether an operator paused links to this agent."""
    packing: Packing | None = None
    """None: `hello` does not announce PACKED."""
    is_own_zone: Callable[[int], bool] = lambda _broker_id: False
    """Whether bytes to this broker do not cross zones."""
    broker_uid: int | None = None
    """The local broker's user, if nobody else may connect in its place."""
    link_defects: dict[int, LinkDefects] = field(default_factory=dict)
    """Those on the way to each other agent so far, by its broker's id."""

    def defects(self, broker_id: int) -> LinkDefects:
        """Return the link defects on the way to this broker's agent, on whatever connection."""
        return self.link_defects.setdefault(broker_id, LinkDefects(self.metrics, self.clock, leader=broker_id))

    def channel(self, leader: FramedConnection, broker_id: int) -> PeerChannel:
        """Return the channel on a connection to this broker's agent, after the hellos."""
        return PeerChannel(leader, self.packing, lambda: not self.is_own_zone(broker_id))

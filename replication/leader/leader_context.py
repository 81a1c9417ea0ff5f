"""What all connections of a leader's agent share."""

import ssl
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Protocol

from replication.leader.catch_up import CatchUp
from replication.leader.follower_offsets import FollowerOffsets
from replication.leader.link_index import LinkIndex
from replication.leader.upload_signal import UploadSignal
from replication.leader.zones import Zones
from replication.wire.broker_requests import BrokerRequests
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, FramedConnection
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import HELLO_TIMEOUT_S, Address
from replication.wire.peer_protocol import Hello, PeerCapabilities
from rlm.write_path.core.led_views import LedPartitions
from rlm.write_path.metrics import StageTimes


class ClientConnections(Protocol):
    """Serves connections of clients in other zones, which come by the agents there."""

    async def serve(self, peer: FramedConnection, gateway: Hello, capabilities: PeerCapabilities) -> None:
        """One of them, after the hellos, until it ends; `gateway` is that of the agent which connected."""


class RangeConnections(Protocol):
    """Gives other agents of the zone what this one reads for them."""

    async def serve(self, peer: FramedConnection, asker: Hello) -> None:
        """One connection, after the hellos, until it ends; `asker` is the hello of who connected."""


class LogConnections(Protocol):
    """Tells other agents when durable logs that are led here are stored."""

    async def serve(self, peer: FramedConnection) -> None:
        """One connection, after the hellos, until it ends."""


@dataclass(frozen=True, slots=True)
class LeaderLimits:
    """In seconds and bytes."""

    link_wait_max_s: float
    break_even_bytes: int
    gather_max_ms: int
    """For how long the broker is asked to gather what a follower gets, while much is uploaded; 0: never."""
    range_gap_bytes: int
    """Ranges of a combined segment's announcement that are closer than this are read as one."""
    watermark_wait_ms: int = 0
    """For how long the broker lets a follower wait that was not told of a high watermark; 0: as long as it asks for."""
    share_min_readers: int = 0
    """From so many agents of a zone on that read an object, one of them reads it for all; 0: each reads for itself."""
    stale_after_s: float = 30.0
    """A response later than this is of no use: the follower's broker has given up (replica.socket.timeout.ms)."""
    allow_plain_connections: bool = True
    max_connections: int = 1024
    """Of all together that are no known broker's, as those that have not said their hello yet."""
    max_connections_of_one: int = 128
    """Of each known broker, and of each address otherwise."""
    hello_timeout_s: float = HELLO_TIMEOUT_S
    """For the TLS handshake and the first frame together."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    frame_timeout_s: float = 30.0
    idle_timeout_s: float = 600.0
    """For connections on which neither side says anything, however long the broker would keep them."""


@dataclass(frozen=True, slots=True)
class LeaderContext:
    """What all relays of one agent share."""

    hello: Hello
    limits: LeaderLimits
    broker: Address
    """The local broker's own inter-broker listener."""
    led: LedPartitions
    stage_times: StageTimes
    metrics: ReplicationMetrics
    clock: Callable[[], float]
    """Monotonic seconds."""
    index: LinkIndex = field(default_factory=LinkIndex)
    uploads: UploadSignal = field(default_factory=UploadSignal)
    follower_offsets: FollowerOffsets = field(default_factory=FollowerOffsets)
    followers: Container[int] = frozenset()
    """The brokers that are told apart. A peer names its replica as it likes, and what is counted for each is kept."""
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    """For the local broker's responses, those that are kept included."""
    request_budget: MemoryBudget = field(default_factory=MemoryBudget)
    """For what other agents send."""
    catch_up: CatchUp | None = None
    """None: followers that are far behind get inline what the index does not hold."""
    zones: Zones = field(default_factory=Zones)
    """Followers in the own one get no links."""
    requests: BrokerRequests = field(default_factory=BrokerRequests)
    """What peers may ask the broker."""
    clients: ClientConnections | None = None
    """None: clients of other zones are refused. With it, `hello` grants CLIENTS."""
    ranges: RangeConnections | None = None
    """None: other agents are given no ranges. With it, `hello` grants RANGES."""
    stored_logs: LogConnections | None = None
    """None: other agents are told nothing of logs. With it, `hello` grants STORED_LOGS."""
    broker_tls: Callable[[], ssl.SSLContext | None] = lambda: None
    """Towards the local broker, for each connection to it."""
    broker_name: str | None = None
    """Whom its certificate must name, if not the host that is dialled."""

"""Holds what all connections of a leader's agent share."""

import ssl
from collections.abc import Callable, Container, Mapping, Sequence
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
from replication.wire.packed_message import PackedTopic
from replication.wire.packing import Packing
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import HELLO_TIMEOUT_S, Address
from replication.wire.peer_protocol import Hello, PeerCapabilities
from rlm.write_path.core.led_views import LedPartitions
from rlm.write_path.metrics import StageTimes


class PeerHandler(Protocol):
    """Serves connections of other agents that are not for replication."""

    async def serve(self, peer: FramedConnection, hello: Hello, capabilities: PeerCapabilities, /) -> None:
        """Serve one connection, after the hellos, until it ends.

        `hello` is the other agent's; `capabilities` are those that both agents have.
        """


@dataclass(frozen=True, slots=True)
class LeaderLimits:
    """Limits of the leader's side, in seconds and bytes."""

    link_wait_max_s: float
    break_even_bytes: int
    range_gap_bytes: int
    """Announced ranges of a combined segment are read as one if their gap is smaller than this."""
    gather_max_ms: int = 25
    """How long the broker is asked to gather bytes for a follower while much is uploaded, as an object is; 0: never."""
    watermark_wait_ms: int = 0
    """How long a follower that is owed a high watermark may wait at the broker; 0: as long as it asks for."""
    shares_reads: bool = False
    """If so many agents of a zone read an object, one reads it for all; 0: each reads for itself."""
    stale_after_s: float = 30.0
    """A response later than this is useless: the follower's broker has given up (replica.socket.timeout.ms)."""
    max_connections: int = 1024
    """The most connections of peers that are not known brokers, for instance those that have not said hello yet."""
    max_connections_of_one: int = 128
    """The most connections of each known broker, and of each other address."""
    hello_timeout_s: float = HELLO_TIMEOUT_S
    """Limit for the TLS handshake and the first frame together."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    frame_timeout_s: float = 30.0
    idle_timeout_s: float = 600.0
    """Limit for connections on which neither side says anything, however long the broker would keep them."""


@dataclass(frozen=True, slots=True)
class LeaderContext:
    """What all leader relays of one agent share."""

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
    """The known brokers. A peer may claim any replica id, and the counts for each id are kept."""
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    """Limits the local broker's responses, kept ones included."""
    request_budget: MemoryBudget = field(default_factory=MemoryBudget)
    """Limits what other agents send."""
    catch_up: CatchUp | None = None
    """None: what the index does not hold goes inline to followers that are far behind."""
    zones: Zones = field(default_factory=Zones)
    """Followers in the own zone get no links, and nothing packed."""
    packing: Packing | None = None
    """None: `hello` does not announce PACKED."""
    requests: BrokerRequests = field(default_factory=BrokerRequests)
    """The requests that peers may send to the broker."""
    handlers: Mapping[PeerCapabilities, PeerHandler] = field(default_factory=dict)
    """By what such a connection is for: who serves it. `hello` grants the same."""
    unserved: Callable[[], tuple[int, ...]] = tuple
    """Brokers whose clients this agent cannot serve now (`Hello.unserved`)."""
    broker_tls: Callable[[], ssl.SSLContext | None] = lambda: None
    """For the local broker, made for each connection to it."""
    broker_name: str | None = None
    """The name that its certificate must have, if not the dialled host."""

    def channel(self, peer: FramedConnection, broker_id: int, *, is_follower: bool = False) -> PeerChannel:
        """Return the channel to this broker's agent, after the hellos. If it is a follower, bytes saved by packing
        are counted."""

        def packed(topics: Sequence[PackedTopic]) -> None:
            if is_follower:
                self.metrics.packed(topics, broker_id)

        return PeerChannel(peer, self.packing, lambda: not self.zones.is_own(broker_id), packed)

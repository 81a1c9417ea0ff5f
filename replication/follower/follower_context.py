"""What all connections on which links are hydrated share."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from replication.follower.catch_up_reads import CatchUpReads
from replication.follower.hydration import HydrationCache
from replication.wire.broker_requests import BrokerRequests
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import HELLO_TIMEOUT_S
from replication.wire.peer_protocol import Hello
from rlm.write_path.metrics import StageTimes


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """In seconds and bytes."""

    hydration_timeout_s: float
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    frame_timeout_s: float = 30.0
    first_frame_timeout_s: float = HELLO_TIMEOUT_S
    """For the TLS handshake, and again for the first frame."""
    max_connections_to_one: int = 128
    """Of the local broker to each other one. It needs one for each fetcher, and a few more."""
    restart_s: float = 3.0
    """For so long a leader's agent that refuses connections may be about to start anew."""
    wants_digests: bool = False
    """Whether no link without a SHA-256 is taken."""

    @property
    def max_response_bytes(self) -> int:
        """Linked or not."""
        return RESPONSE_FACTOR * self.max_frame_bytes


@dataclass(frozen=True, slots=True)
class FollowerContext:
    """What all relays of one agent share."""

    hello: Hello
    limits: FollowerLimits
    hydration: HydrationCache
    stage_times: StageTimes
    metrics: ReplicationMetrics
    catch_up: CatchUpReads
    tls: Callable[[], ssl.SSLContext | None]
    """Towards other agents."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    """For the leaders' agents' messages, and for the bytes that responses are put together from."""
    requests: BrokerRequests = field(default_factory=BrokerRequests)
    """What may be asked where this agent poses as another broker."""
    broker_tls: Callable[[], ssl.SSLContext | None] = lambda: None
    """Towards the local broker, for each of its connections."""
    broker_uid: int | None = None
    """The user as whom the local broker runs, if nobody else may connect in its place."""

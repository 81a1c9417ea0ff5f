"""Puts Produce requests through object storage together from the settings, at the gateway and beside the broker."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agent.configuration import Configuration
from agent.settings.memory_shares import CLIENT_FRAMES_BYTES
from gateway.produce.route_core import RouteLimits
from gateway.produce.route_decider import RouteCosts, RouteDecider
from gateway.produce.router_channel import RouterChannel
from gateway.produce.splice_core import SpliceLimits
from gateway.produce_metrics import ProduceMetrics
from gateway.routed_relay import RoutingContext
from gateway.router_uploads import RouterStore, RouterUploads
from gateway.spliced_relay import RouterReads, SplicingContext
from gateway.wanted_objects import WantedObjects
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.blob_storage import BlobStorage
from plugin.wall_clock import Clocks
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_protocol import Hello
from rlm.write_path.commit.group_commit import CommitLimits
from rlm.write_path.uploads.adoptable_records import AdoptableRecords, AdoptionLimits

_RETRY_S, _RETRY_MAX_S = 0.1, 5.0
_LEFT_INLINE_S = 1.0
"""An interval with no effect: requests that are not linked are not queued."""


@dataclass(frozen=True, slots=True)
class ProduceRouting:
    """The parts for Produce requests."""

    routing: RoutingContext
    splicing: SplicingContext
    uploads: RouterUploads
    pool: ThreadPoolExecutor
    wanted: WantedObjects


def build_produce_routing(
    configuration: Configuration, hello: Hello, store: BlobStorage, clocks: Clocks, metrics: ProduceMetrics
) -> ProduceRouting:
    """Build it. `hello` names the gateway: its broker and incarnation. `store` may be away."""
    settings, prices = configuration.settings.gateway_produce, configuration.prices
    costs = RouteCosts.of(prices, prices.of_section(configuration.settings.storage.price_section))
    decider = RouteDecider(LinkPolicy(settings.policy), costs, settings.interval_s, CircuitBreaker(BreakerLimits()))
    uploads_at_once = max(settings.thread_pool_size // 2, 1)
    limits = CommitLimits(
        settings.interval_s,
        _LEFT_INLINE_S,
        settings.upload_bytes,
        uploads_at_once,
        _RETRY_S,
        _RETRY_MAX_S,
    )
    channel = RouterChannel(hello.broker_id, hello.incarnation, limits, decider, settings.put_wait_max_s)
    pool = ThreadPoolExecutor(settings.thread_pool_size, "router-channel")
    blobs = RouterStore(store, pool)
    wanted = WantedObjects()
    uploads = RouterUploads(channel, blobs, clocks, metrics, wanted)
    budgets = [MemoryBudget(CLIENT_FRAMES_BYTES) for _ in range(3)]
    routing = RoutingContext(RouteLimits(settings.put_wait_max_s), uploads, decider, metrics, budgets[0], budgets[1])
    reads = RouterReads(blobs, CircuitBreaker(BreakerLimits()))
    splicing = SplicingContext(
        SpliceLimits(settings.read_wait_max_s, DEFAULT_MAX_FRAME_BYTES),
        reads,
        metrics,
        budgets[2],
        AdoptableRecords(AdoptionLimits(CLIENT_FRAMES_BYTES)) if settings.adopt_enable else None,
    )
    return ProduceRouting(routing, splicing, uploads, pool, wanted)

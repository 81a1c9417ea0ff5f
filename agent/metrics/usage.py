"""Publishes what this agent has moved and requested, as usage records in the metadata topic.

A record is due whenever the wall clock passes a multiple of the interval, so that the last one of a day is as of
midnight, and once more when the agent stops. Nobody reports what a killed agent did after its last record, nor what a
stopping one relays while its last record is published; reports are then too low by at most one interval of that agent.
Nothing here is on the path of replication: if the publisher is full, the record is skipped, because the next one
includes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from agent.identity import AgentIdentity
from agent.settings.agent_settings import AgentSettings
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.errors import MetadataRecordTooLargeError, PublicationBacklogFullError
from metadata_topic.records.publishable import MetadataPublisher
from metadata_topic.records.usage_record import (
    ClientUsage,
    FollowerUsage,
    StoreUsage,
    TopicUsage,
    UsageRecord,
)
from plugin.archive_storage import ArchiveStorage
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, RequestCounts
from replication.wire.metrics import ReplicationMetrics

if TYPE_CHECKING:
    from gateway.metrics import ClientTraffic

log = structlog.get_logger(__name__)

_FEW_MS = 20
"""Timers may fire a little early, by the wall clock."""
INTERVAL_MS = 600_000
"""How often usage is published, for the costs in reports (guessed)."""


def store_counts(
    settings: AgentSettings, storage: RemoteWalStorageManager, archive: ArchiveStorage | None
) -> Iterator[tuple[str, RequestCounts]]:
    """Yield for each of the agent's stores its section of price tables, and its request counters."""
    yield settings.storage.price_section, storage.request_counts
    if archive is not None:
        yield settings.archive.price_section, archive.request_counts


class UsageReport:
    """Publishes usage records from counters of other parts. For the event loop."""

    def __init__(
        self,
        identity: AgentIdentity,
        stores: Callable[[], Iterable[tuple[str, RequestCounts]]],
        metrics: ReplicationMetrics,
        publisher: MetadataPublisher[UsageRecord],
        wall_ms: Callable[[], int],
        is_led: Callable[[TopicIdPartition], bool],
        prices: str,
        clients: "ClientTraffic | None" = None,
    ) -> None:
        """`stores` are those of `store_counts`. `is_led` returns whether this agent uploads the partition. `prices` is
        the store's section of price tables. Without `clients` the agent is no gateway."""
        self._identity = identity
        self._stores = stores
        self._metrics = metrics
        self._publisher = publisher
        self._wall_ms = wall_ms
        self._is_led = is_led
        self._prices, self._clients = prices, clients
        self._sequence = 0

    async def run(self) -> None:
        """Publish until cancelled, and once more then: the publisher must still accept records."""
        try:
            await self.publish_when_due(asyncio.sleep)
        except asyncio.CancelledError:
            self.publish()
            raise

    async def publish_when_due(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Publish for ever. The first record follows at once: a baseline of zero, after which nothing is missing."""
        self.publish()
        while True:
            due_ms = (self._wall_ms() // INTERVAL_MS + 1) * INTERVAL_MS
            while (left_ms := due_ms - self._wall_ms()) > _FEW_MS:
                # The wall clock may be adjusted meanwhile, so wait at most for an interval.
                await sleep(min(left_ms, INTERVAL_MS) / 1000)
            self.publish()

    def publish(self) -> None:
        """Publish a usage record as of now."""
        try:
            for part in self.record().in_parts():
                self._publisher.publish(part)
            self._sequence += 1
            self._metrics.traffic.forget_gone(self._is_led)
        except (PublicationBacklogFullError, MetadataRecordTooLargeError) as error:
            log.warning("usage_not_published", error=str(error), consequence="the next record tells of it")

    def record(self) -> UsageRecord:
        """Return a usage record with all counters as of now."""
        metrics = self._metrics
        return UsageRecord(
            self._identity.broker_id,
            self._identity.incarnation,
            self._sequence,
            self._wall_ms(),
            self._identity.started_ms,
            self._identity.rack,
            tuple(
                StoreUsage(
                    prices, counts.put, counts.get, counts.head, counts.delete, counts.list, counts.put_bytes,
                    counts.get_bytes,
                )
                for prices, counts in self._stores()
            ),
            tuple(
                FollowerUsage(follower, moved.peer_bytes, moved.stock_bytes)
                for follower, moved in metrics.traffic.by_follower.items()
            ),
            tuple(
                TopicUsage(topic_id, follower, moved.linked_bytes, moved.note_crossed(), moved.inline_bytes)
                for (topic_id, follower), moved in metrics.traffic.by_topic.items()
            ),
            None if self._clients is None else self._client_usage(self._clients),
        )  # fmt: skip

    def _client_usage(self, clients: "ClientTraffic") -> ClientUsage:
        zones = tuple(replace(moved, zone=zone) for zone, moved in clients.by_zone.items())
        return ClientUsage(clients.zone, self._prices, replace(clients.router), zones)

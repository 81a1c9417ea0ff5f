"""Publishes what this agent has moved and requested, as usage records in the metadata topic.

A record is due whenever the wall clock passes a multiple of the interval, so that the last one of a day is as of
midnight, and once more when the agent stops. Nobody reports what a killed agent did after its last record, nor what a
stopping one relays while its last record is published; reports are then too low by at most one interval of that agent.
Nothing here is on the path of replication: if the publisher is full, the record is skipped, because the next one
includes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from metadata_topic.records.errors import MetadataRecordTooLargeError, PublicationBacklogFullError
from metadata_topic.records.usage_record import (
    ClientUsage,
    FollowerUsage,
    StoreUsage,
    TopicUsage,
    UsageRecord,
)
from plugin.archive_storage import ArchiveStorage
from plugin.remote_wal_storage_manager import RequestCounts

if TYPE_CHECKING:
    from agent.wiring.agent_resources import AgentResources
    from gateway.metrics import ClientTraffic

log = structlog.get_logger(__name__)

_FEW_MS = 20
"""Timers may fire a little early, by the wall clock."""
INTERVAL_MS = 600_000
"""How often usage is published, for the costs in reports (guessed)."""


class UsageReport:
    """Publishes usage records from counters of other parts. For the event loop."""

    def __init__(self, around: "AgentResources", archive: Callable[[], ArchiveStorage | None]) -> None:
        """Records count on under the identity that there is now. `archive` returns the archive's store; None: there is
        none now."""
        self._identity, self._settings = around.identity, around.settings
        self._relaying, self._publisher = around.relaying, around.publisher
        self._wall_ms = around.clocks.wall_ms
        self._archive = archive
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
            self._relaying.metrics.traffic.forget_gone(
                lambda one: self._relaying.write_path.find(one.topic_id, one.partition) is not None
            )
        except (PublicationBacklogFullError, MetadataRecordTooLargeError) as error:
            log.warning("usage_not_published", error=str(error), consequence="the next record tells of it")

    def record(self) -> UsageRecord:
        """Return a usage record with all counters as of now."""
        metrics, gateway = self._relaying.metrics, self._relaying.gateway
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
            None if gateway is None else self._client_usage(gateway.traffic),
        )  # fmt: skip

    def _client_usage(self, clients: "ClientTraffic") -> ClientUsage:
        zones = tuple(replace(moved, zone=zone) for zone, moved in clients.by_zone.items())
        return ClientUsage(clients.zone, self._settings.storage.price_section, replace(clients.router), zones)

    def _stores(self) -> Iterator[tuple[str, RequestCounts]]:
        """Yield for each of the agent's stores its section of price tables, and its request counters."""
        yield self._settings.storage.price_section, self._relaying.storage.request_counts
        if (archive := self._archive()) is not None:
            yield self._settings.archive.price_section, archive.request_counts

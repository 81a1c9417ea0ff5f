"""Counts what links would do for followers that do not read through this agent (`remote.wal.agent.mode=shadow`).

The write path decides as ever. What it stores would have been linked, unless a follower would have stopped waiting for
it; what it leaves out would have gone inline. Each byte counts once for each follower in another zone.

Whether links would slow producers down shows only where followers wait for links, so nothing here says it.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry

from kafka_log.segment_files import log_end
from kafka_log.topic_partition import TopicIdPartition
from plugin.hot_path.loop_metrics import LoopCounter
from plugin.inline_reason import RIGHTLY_INLINE, InlineReason
from plugin.remote_wal_storage_manager import RequestCounts
from replication.wire.metrics import LINKED, Traffic
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.uploads.segment_queue import UploadedSegment, ranges_read
from rlm.write_path.uploads.upload_listener import UploadListener

PRODUCERS_SLOWED: Final = "unknown: followers do not read through this agent"


class Shadow(UploadListener):
    """Counts, in shadow mode, what links would do. For the event loop; any thread may read `traffic` and
    `requests`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        wait_max_s: float,
        reads_for: Callable[[Collection[int]], Mapping[int, Hashable]],
        clock: Callable[[], float],
    ) -> None:
        """`wait_max_s` is remote.wal.link.wait.max.ms; `clock` gives monotonic seconds.

        `reads_for` returns which broker reads an object for which followers (`LinkCosts.reads_for`).
        """
        self._wait_max_s = wait_max_s
        self._reads_for = reads_for
        self._clock = clock
        self._followers: Mapping[TopicIdPartition, frozenset[int]] = {}
        self._why_inline: Callable[[TopicIdPartition], InlineReason] = lambda _partition: InlineReason.NOT_ENABLED
        self.traffic = Traffic()
        """What followers would have got. Frames count as large as their records."""
        self.requests = RequestCounts()
        """The requests of these objects."""
        self._bytes = LoopCounter(
            "remote_wal_shadow_record_bytes",
            "Record bytes that followers in other zones would have got from an agent in shadow: linked, or why not",
            ["path"],
            registry=registry,
        )

    def set_led(
        self, assignments: Iterable[Assignment], why_inline: Callable[[TopicIdPartition], InlineReason]
    ) -> None:
        """Set the partitions that are led here, with their followers; `why_inline` says why a partition's bytes are
        not linked."""
        self._why_inline = why_inline
        self._followers = {one.topic_id_partition: one.remote_followers or frozenset() for one in assignments}

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """Count the records of an object that would have been stored, and the requests for it."""
        readers: list[Collection[Hashable]] = []
        for item in segment.items:
            partition, size = item.topic_id_partition, len(item.records)
            if segment.stored_s - item.seen_s > self._wait_max_s:
                self._inline(partition, size, InlineReason.WAIT_TIMEOUT)
                continue
            followers = self._followers.get(partition, frozenset())
            readers.append(set(self._reads_for(followers).values()))
            self.requests.get_bytes += size * len(readers[-1])
            self.traffic.by_partition[partition].linked_bytes += size * len(followers)
            self._moved(partition, LINKED, size)
        self.requests.get += ranges_read(readers)[0]
        self.requests.put += 1
        self.requests.put_bytes += segment.size_bytes

    def bytes_left_out(self, assignment: Assignment, size: int) -> None:
        """Count bytes that would be in no object."""
        reason = self._why_inline(assignment.topic_id_partition)
        # Links begin with what comes next.
        self._inline(assignment.topic_id_partition, size, InlineReason.LOAD if reason is InlineReason.LOOK else reason)

    async def follow(self, led: Mapping[TopicIdPartition, LedPartition], far_bytes: int) -> None:
        """Set the followers' assumed positions in logs that are further behind than `far_bytes`, as after an outage of
        the store.

        The write path continues there; followers would have got the rest inline long ago.
        """
        for partition, one in list(led.items()):
            size = one.backlog_bytes
            if size <= far_bytes or one.followers_offset > one.task.next_offset:
                continue
            with suppress(OSError):
                one.followers_offset = await asyncio.to_thread(log_end, one.assignment.directory)
                self._inline(partition, size, InlineReason.NOT_STORED)

    def _inline(self, partition: TopicIdPartition, size: int, reason: InlineReason) -> None:
        followers, moved = self._followers.get(partition, frozenset()), self.traffic.by_partition[partition]
        moved.inline_bytes += size * len(followers)
        moved.reasons[reason.value] += size * len(followers)
        if reason not in RIGHTLY_INLINE:
            moved.unsaved_bytes += size * len(followers)
        for one in followers:
            self.traffic.by_follower[one].peer_bytes += size
        self._moved(partition, reason.value, size)

    def _moved(self, partition: TopicIdPartition, way: str, size: int) -> None:
        followers = self._followers.get(partition, frozenset())
        for one in followers:
            self.traffic.by_follower[one].stock_bytes += size
        if followers:
            self.traffic.moved(partition.topic_id, way, size * len(followers), self._clock())
            self._bytes.labels(way).inc(size * len(followers))

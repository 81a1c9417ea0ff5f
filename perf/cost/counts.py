"""The bytes and requests of a load, and their cost by the price table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import zstandard

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records import serde
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration, gaps_key
from metadata_topic.records.offset_ranges import OffsetRange
from metadata_topic.topic.publication_queue import DEFAULT_SETTINGS
from plugin.prices import BYTES_PER_GB, SECONDS_PER_MONTH, Prices
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.write_path.uploads.segment_queue import MetaQueueItem

FOLLOWERS: Final = 2
"""The followers of each partition, in other zones; the metadata topic has as many."""
RECORD_OVERHEAD_BYTES: Final = 12
"""Lengths, deltas and attributes of a record in a batch of Kafka's."""
BATCH_HEADER_BYTES: Final = 61
_ANNOUNCEMENT_BYTES: Final = 26
_ANNOUNCED_RANGE_BYTES: Final = 8
_LINK_BYTES: Final = 30


@dataclass(slots=True)
class Counts:
    """The counts of one load."""

    seconds: float = 0.0
    produced_bytes: int = 0
    puts: int = 0
    gets: int = 0
    uploaded_bytes: int = 0
    retrieved_bytes: int = 0
    linked_bytes: int = 0
    """Bytes to all followers together, as for inline bytes."""
    inline_bytes: int = 0
    wire_bytes: int = 0
    """Bytes of announcements and links."""
    metadata_bytes: int = 0
    """Bytes of the agents' own topic, counted once."""
    latencies_s: list[float] = field(default_factory=list)
    """The times from when a request was sent to its answer."""

    def put(self, size: int) -> None:
        """Count an uploaded object."""
        self.puts += 1
        self.uploaded_bytes += size

    def get(self, size: int) -> None:
        """Count a read of an object."""
        self.gets += 1
        self.retrieved_bytes += size

    def announced(self, entries: int) -> None:
        """Count an object's announcement to a follower; adjoining ranges are one in reality, so the true size is
        smaller.
        """
        self.wire_bytes += _ANNOUNCEMENT_BYTES + entries * _ANNOUNCED_RANGE_BYTES

    def linked(self, size: int, links: int) -> None:
        """Count bytes of one partition in a response."""
        self.linked_bytes += size
        self.wire_bytes += links * _LINK_BYTES

    def usd(self, prices: Prices, life_s: float) -> float:
        """Return the whole cost, with storage for as long as objects live."""
        store = prices.s3_express
        crossing = self.inline_bytes + self.wire_bytes + FOLLOWERS * self.metadata_bytes
        return (
            store.requests_usd(self.puts, self.gets, self.uploaded_bytes, self.retrieved_bytes)
            + self.uploaded_bytes / BYTES_PER_GB * store.storage_gb_month * life_s / SECONDS_PER_MONTH
            + self.retrieved_bytes / BYTES_PER_GB * prices.express_cross_zone_read_gb
            + crossing / BYTES_PER_GB * prices.zone_crossing_gb
        )

    def stock_usd(self, prices: Prices) -> float:
        """Return the cost of the same bytes in stock Kafka."""
        return FOLLOWERS * self.produced_bytes / BYTES_PER_GB * prices.zone_crossing_gb


class MetadataVolume:
    """Encodes each object's records, from its upload to its deletion, and compresses them as the publisher does."""

    def __init__(self) -> None:
        self._compress = zstandard.ZstdCompressor(level=3).compress  # libzstd's default level, as producers use it
        self._batch: list[bytes] = []
        self._until_s = 0.0
        self._bytes = 0

    def object(self, segment_id: CombinedSegmentId, items: Sequence[MetaQueueItem], now_s: float) -> None:
        """Add a stored object, with its deletion, as if that were published together with other records."""
        self._lingered(now_s)
        entries, position = [], 112
        for item in items:
            end = position + len(item.records)
            crc = hash((segment_id, position)) & 0xFFFFFFFF  # as what cannot be compressed
            entry = replace(item.metadata_entry(), start_file_position=position, end_file_position=end, crc32c=crc)
            entries.append(entry)
            position = end
        for state in RemoteLogSegmentState:
            finished = state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            record = RemoteWalCombinedLogSegmentMetadata(
                segment_id, tuple(entries) if finished else (), state, round(now_s * 1000), position if finished else -1
            )
            self._batch.append(serde.encode_key(segment_id) + serde.encode(record) + bytes(RECORD_OVERHEAD_BYTES))

    def not_wanted(self, partition: TopicIdPartition, ranges: Sequence[OffsetRange], now_s: float) -> None:
        """Add a declaration; those of the same moment are one record in reality."""
        self._lingered(now_s)
        gaps = tuple(DeclaredGap(partition, *one, 0, GapReason.NOT_WANTED) for one in ranges)
        record = RemoteWalGapDeclaration(1, 1, len(self._batch), gaps, round(now_s * 1000))
        self._batch.append(gaps_key(record) + serde.encode(record) + bytes(RECORD_OVERHEAD_BYTES))

    def _lingered(self, now_s: float) -> None:
        if now_s >= self._until_s:
            self._close()
            self._until_s = now_s + DEFAULT_SETTINGS.linger_ms / 1000

    def end(self) -> int:
        """Return the bytes of all records."""
        self._close()
        return self._bytes

    def _close(self) -> None:
        if self._batch:
            self._bytes += BATCH_HEADER_BYTES + len(self._compress(b"".join(self._batch)))
            self._batch = []

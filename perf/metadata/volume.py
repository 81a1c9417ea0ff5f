"""What the metadata topic costs: a fixed load's records as the publisher writes them, in real zstd frames.

The load is the hard case: every object holds an entry of every partition. An entry is one record batch of one to
a few records, offsets go on where the partition's last entry ended, and CRCs are random, so 4 bytes of each entry
cannot be compressed. The same seed gives the same bytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records import serde
from metadata_topic.records.records import PublishedSegment
from metadata_topic.topic.publication_queue import DEFAULT_SETTINGS
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)

RECORD_OVERHEAD_BYTES = 12
"""Lengths, deltas and attributes of a record in a batch of Kafka's."""
BATCH_HEADER_BYTES = 61
_FIRST_POSITION = 48
_STARTED_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """A broker's load, all of it linked."""

    objects_per_s: int = 100
    partitions: int = 1000
    partitions_per_topic: int = 25
    data_bytes_per_s: int = 30_000_000
    share_of_partitions: float = 1.0
    """How many of the partitions have something in each object."""


@dataclass(frozen=True, slots=True)
class Volume:
    """What was measured."""

    entries: int
    value_bytes: int
    """Of the FINISHED records: what the entries cost before compression."""
    topic_bytes: int
    """Of all batches, compressed, with their headers."""
    seconds: float
    """How long the load would have taken."""

    @property
    def bytes_per_entry(self) -> float:
        """Before compression."""
        return self.value_bytes / self.entries

    @property
    def compressed_bytes_per_entry(self) -> float:
        """With everything that is in the topic."""
        return self.topic_bytes / self.entries

    def share_of(self, load: Load) -> float:
        """The topic's bytes beside the data's."""
        return self.topic_bytes / self.seconds / load.data_bytes_per_s


def records(load: Load, objects: int, seed: int = 7) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of `objects` objects, a STARTED and a FINISHED record each."""
    rng = np.random.default_rng(seed)
    topics = sorted(rng.bytes(16) for _ in range(-(-load.partitions // load.partitions_per_topic)))
    partitions = [
        TopicIdPartition(TopicId(topics[n // load.partitions_per_topic]), n % load.partitions_per_topic)
        for n in range(load.partitions)
    ]
    epochs = rng.integers(0, 40, load.partitions)
    offsets = (10 ** rng.uniform(4, 10, load.partitions)).astype(np.int64)
    batch_bytes = load.data_bytes_per_s / load.objects_per_s / (load.partitions * load.share_of_partitions)
    for sequence in range(objects):
        segment_id = CombinedSegmentId(1, _STARTED_MS, sequence)
        time_ms = _STARTED_MS + sequence * 1000 // load.objects_per_s
        started = RemoteWalCombinedLogSegmentMetadata(
            segment_id, (), RemoteLogSegmentState.COPY_SEGMENT_STARTED, time_ms
        )
        yield serde.encode_key(segment_id), serde.encode(started)
        counts = 1 + rng.poisson(0.5, load.partitions)
        lengths = (
            BATCH_HEADER_BYTES + (batch_bytes - BATCH_HEADER_BYTES) * rng.uniform(0.5, 1.5, load.partitions)
        ).astype(int)
        crcs = rng.integers(0, 2**32, load.partitions)
        entries, position = [], _FIRST_POSITION
        for n in np.flatnonzero(rng.random(load.partitions) < load.share_of_partitions).tolist():
            first, end = int(offsets[n]), position + int(lengths[n])
            last = first + int(counts[n]) - 1
            entries.append(
                RemoteLogSegmentMetadataEntry(partitions[n], int(epochs[n]), first, last, position, end, int(crcs[n]))
            )
            offsets[n], position = last + 1, end
        finished = RemoteWalCombinedLogSegmentMetadata(
            segment_id, tuple(entries), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, time_ms + 8, position + 400
        )
        yield serde.encode_key(segment_id), serde.encode(finished)


def measure_volume(
    load: Load, compress: Callable[[bytes], bytes], objects: int = 100, linger_ms: int = DEFAULT_SETTINGS.linger_ms
) -> Volume:
    """Batches as the producer makes them: what comes within `linger_ms`, compressed as one frame."""
    per_batch = max(1, 2 * load.objects_per_s * linger_ms // 1000)
    entries = value_bytes = topic_bytes = 0
    batch: list[bytes] = []
    for number, (key, value) in enumerate(records(load, objects)):
        decoded = serde.decode(key, value)
        count = decoded.entry_count if isinstance(decoded, PublishedSegment) else 0
        entries += count
        value_bytes += len(value) if count else 0
        batch.append(key + value + bytes(RECORD_OVERHEAD_BYTES))
        if len(batch) == per_batch or number == 2 * objects - 1:
            topic_bytes += BATCH_HEADER_BYTES + len(compress(b"".join(batch)))
            batch = []
    return Volume(entries, value_bytes, topic_bytes, objects / load.objects_per_s)


def zstd() -> Callable[[bytes], bytes]:
    """libzstd at its default level, as the producer uses it."""
    import zstandard

    return zstandard.ZstdCompressor(level=3).compress

"""Makes links of stored batches: of a Fetch response whose first batches, field by field, are in object storage.

Sans-IO. A link names a run of adjacent batches in one object. Its CRC32C is taken over the bytes that the leader's
broker returned for them; its SHA-256 comes from the batches as they were read from the leader's own log, when they were
stored or found again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka_log.batch_digests import run_digest
from kafka_log.crc32c import Buffer, crc32c
from kafka_log.record_batch import BatchSpan
from kafka_log.topic_partition import TopicIdPartition
from replication.leader.link_index import StoredBatch
from replication.wire.fetch_frame import RecordsField
from replication.wire.link import Cut, InlineBytes, LinkedResponse, Part, SegmentLink
from rlm.write_path.commit.link_policy import LinkMode


@dataclass(slots=True)
class PlannedField:
    """A records field being planned. `stored` is the run of its first batches that are in object storage."""

    records: RecordsField
    partition: TopicIdPartition
    batches: list[BatchSpan]
    mode: LinkMode
    stored: list[StoredBatch] = field(default_factory=list)
    gave_up: bool = False
    """It has waited as long as it may, so its bytes go inline in this response."""

    @property
    def linked_bytes(self) -> int:
        """The bytes that links would replace."""
        return self.batches[len(self.stored) - 1].end - self.batches[0].start if self.stored else 0


@dataclass(frozen=True, slots=True)
class SendLinked:
    """Send this instead of the frame."""

    response: LinkedResponse
    linked: tuple[tuple[TopicIdPartition, int, int], ...]
    """(partition, next offset after the linked batches, bytes)."""
    inline: tuple[tuple[TopicIdPartition, int], ...]
    """(partition, bytes) that stay in the response."""


def with_links(
    frame: Buffer, fields: Sequence[PlannedField], waiting: set[TopicIdPartition], digests: bool = False
) -> SendLinked:
    """Return the response with links instead of what is stored.

    Nothing is sent this time for `waiting` partitions that have no stored batch yet. `digests`: links carry a digest.
    """
    cuts: list[Cut] = []
    skeleton: list[Buffer] = []
    linked: list[tuple[TopicIdPartition, int, int]] = []
    inline: list[tuple[TopicIdPartition, int]] = []
    frame = memoryview(frame)
    position = skeleton_bytes = 0
    for planned in fields:
        records = planned.records
        if not planned.stored and planned.partition not in waiting:
            inline.append((planned.partition, records.records_end - records.records_start))
            continue
        parts = _links(frame, planned, digests)
        if planned.stored:
            last = planned.batches[len(planned.stored) - 1]
            linked.append((planned.partition, last.last_offset + 1, planned.linked_bytes))
            rest = frame[last.end : planned.batches[-1].end]  # the reader ignores a batch that is cut off
            if planned.mode is LinkMode.INLINE and len(rest):
                parts.append(InlineBytes(rest))
                inline.append((planned.partition, len(rest)))
        skeleton.append(frame[position : records.length_start])
        skeleton_bytes += records.length_start - position
        position = records.records_end
        cuts.append(Cut(skeleton_bytes, tuple(parts)))
    skeleton.append(frame[position:])
    return SendLinked(LinkedResponse(len(frame), tuple(cuts), tuple(skeleton)), tuple(linked), tuple(inline))


def _links(frame: memoryview, planned: PlannedField, digests: bool) -> list[Part]:
    """Return one link for each run of batches that are adjacent in one object."""
    links: list[Part] = []
    stored, first = planned.stored, 0
    for index in range(1, len(stored) + 1):
        if index < len(stored) and _adjoin(stored[index - 1], stored[index]):
            continue
        run = frame[planned.batches[first].start : planned.batches[index - 1].end]
        begin = stored[first]
        sha256 = run_digest([batch.sha256 for batch in stored[first:index]]) if digests else b""
        links.append(
            SegmentLink(begin.object_id, begin.start_position, len(run), crc32c(run), begin.custom_metadata, sha256)
        )
        first = index
    return links


def _adjoin(left: StoredBatch, right: StoredBatch) -> bool:
    return left.object_id == right.object_id and left.end_position == right.start_position

"""The write path as replication sees it, set by the test."""

from collections.abc import Iterable

from kafka_log.record_batch import HEADER_PREFIX_BYTES, scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.inline_reason import InlineReason
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.link_index import LinkIndex, StoredBatch
from rlm.write_path.commit.link_policy import LinkMode


class FakeLed:
    """Leads every partition, unless told otherwise."""

    def __init__(self, mode: LinkMode = LinkMode.LINK, expected: bool = True) -> None:
        self.mode = mode
        self.modes: dict[TopicIdPartition, LinkMode] = {}
        self.expected = expected
        self.always: set[TopicIdPartition] = set()
        self.fetches: list[tuple[int, TopicIdPartition, int, int]] = []
        self.wanted: list[TopicIdPartition] = []
        self.reason = InlineReason.LOAD

    def mode_of(self, partition: TopicIdPartition) -> LinkMode:
        return self.modes.get(partition, self.mode)

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        self.fetches.append((follower_id, partition, offset, size))

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        return self.expected

    def is_always_linked(self, partition: TopicIdPartition) -> bool:
        return partition in self.always

    def why_inline(self, partition: TopicIdPartition) -> InlineReason:
        return self.reason

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        self.wanted += partitions

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        return None if topic_id is None else TopicIdPartition(TopicId(topic_id), partition)


def store(
    index: LinkIndex,
    partition: TopicIdPartition,
    raw: bytes,
    segment: CombinedSegmentId,
    start: int = 112,
    custom_metadata: bytes = b"",
) -> None:
    """List the batches of `raw` as stored one after the other from `start` on."""
    index.add(
        partition,
        [
            (
                span.base_offset,
                StoredBatch(
                    raw[span.start : span.start + HEADER_PREFIX_BYTES],
                    segment,
                    start + span.start,
                    start + span.end,
                    custom_metadata,
                ),
            )
            for span in scan_batches(raw, 0, len(raw))
        ],
    )

"""Which declared gaps an agent tells of."""

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.lifecycle.gap_declarations import LedGaps
from rlm.write_path.core.led_partition import PartitionStatus

LED, ELSEWHERE = (TopicIdPartition(TopicId(b"g" * 16), number) for number in (0, 1))
CHAIN = LeaderEpochs([(0, 0), (3, 40)])


def declare(store: RemoteWalMetadataStore, *gaps: DeclaredGap) -> None:
    store.apply(RemoteWalGapDeclaration(1, 1, 0, gaps, 0))


def test_gaps_of_led_logs_are_told_until_what_is_behind_them_is_released() -> None:
    store = RemoteWalMetadataStore()
    status = {LED: PartitionStatus("orders", 0, 100, 100, 0, 0)}
    gaps = LedGaps(store, ArchiveStore(), lambda: status, lambda partition: CHAIN if partition == LED else None)

    assert (gaps.describe(), gaps.offsets) == ([], 0)
    declare(
        store,
        DeclaredGap(LED, 0, 5, 0, GapReason.BEFORE_UPLOAD),
        DeclaredGap(LED, 10, 20, 0, GapReason.RETENTION),
        DeclaredGap(LED, 30, 50, 2, GapReason.UNREADABLE),  # the log goes on otherwise from 40 on
        DeclaredGap(ELSEWHERE, 0, 9, 0, GapReason.RETENTION),
    )
    first = {"topic": "orders", "partition": 0, "from_offset": 10, "to_offset": 20, "reason": "retention"}
    second = first | {"from_offset": 30, "to_offset": 40, "reason": "unreadable"}
    assert (gaps.describe(), gaps.offsets) == ([first, second], 20)

    entry = RemoteLogSegmentMetadataEntry(LED, 0, 20, 34, 112, 200, 0)
    finished, deleting = list(RemoteLogSegmentState)[1:3]
    segment = CombinedSegmentId(1, 1, 0)
    store.apply(RemoteWalCombinedLogSegmentMetadata(segment, (entry,), finished, 0, 300))
    store.apply(RemoteWalCombinedLogSegmentMetadata(segment, (), deleting, 0, 300))
    assert gaps.describe() == [second | {"from_offset": 35}]
    assert gaps.offsets == 5

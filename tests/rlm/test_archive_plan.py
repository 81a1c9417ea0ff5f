"""Which range is next: what a plan costs, and what lies behind a hole."""

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteWalLogSegmentMetadata
from rlm.archive.archive_plan import ArchiveLimits, LogView, PartitionPlanner
from tests.rlm.archive_rig import ORDERS, Outside, plain_log

VIEW = LogView(0, ((0, 0),))
WRITER = CombinedSegmentId(1, 1, 0)


class CountedStore(RemoteWalMetadataStore):
    asked = 0

    def entries_covering(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochs | None = None
    ) -> list[RemoteWalLogSegmentMetadata]:
        self.asked += 1
        return super().entries_covering(topic_id_partition, offset, leader_epochs)


def test_a_round_costs_what_is_new_and_not_what_there_is() -> None:
    store = CountedStore()
    outside = Outside(plain_log(300), ((0, 0),), store)
    for n in range(200):
        outside.upload(outside.log[n : n + 1])
    planner = PartitionPlanner(ORDERS, store, ArchiveStore(), ArchiveLimits(1 << 30, 1 << 40, 1 << 30, 0))
    assert planner.plan(VIEW, 0) is None
    before = store.asked
    outside.upload(outside.log[200:201])
    assert planner.plan(VIEW, 0) is None
    assert store.asked - before <= 3


def test_what_a_power_cut_may_yet_take_from_the_log_is_left_to_combined_segments() -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    outside.upload(outside.log[0:1])
    outside.now_s += 1
    outside.upload(outside.log[1:2])
    planner = PartitionPlanner(ORDERS, outside.wal, ArchiveStore(), ArchiveLimits(1 << 20, 1 << 40, 1, 5000))
    assert planner.plan(VIEW, outside.wall_ms() + 3999) is None
    for later_ms, last in ((4000, 1), (4999, 1), (5000, 3)):
        plan = planner.plan(VIEW, outside.wall_ms() + later_ms)
        assert plan is not None
        assert (plan.first_offset, plan.last_offset) == (0, last)


def test_what_lies_behind_a_hole_comes_after_what_is_before_it() -> None:
    outside = Outside(plain_log(10), ((0, 0),))
    outside.upload(outside.log[0:2])
    outside.upload(outside.log[6:8])
    planner = PartitionPlanner(ORDERS, outside.wal, ArchiveStore(), ArchiveLimits(1 << 20, 1000, 1 << 20, 0))
    assert planner.plan(VIEW, outside.wall_ms() + 999) is None
    planned = []
    while (plan := planner.plan(VIEW, outside.wall_ms() + 1000)) is not None:
        planned.append((plan.first_offset, plan.last_offset))
        planner.published(ArchiveObjectId(ORDERS, plan.first_offset, plan.last_offset, WRITER))
        if len(planned) == 2:
            outside.upload(outside.log[2:6])  # late: it fills the hole
    assert planned == [(0, 3), (12, 15), (4, 11)]


def test_the_first_offset_behind_a_hole_is_the_logs_own() -> None:
    outside = Outside(plain_log(10), ((0, 0), (3, 12)))
    outside.upload(outside.log[0:2])
    outside.upload(outside.log[5:9])  # offsets 12 to 17 belong to epoch 3
    outside.upload(plain_log(2, first=14, epoch=3))
    chain = LeaderEpochs(outside.epochs)
    behind = [outside.wal.stored_ranges(ORDERS, chain, offset + 1)[:1] for offset in (4, 12, 17)]
    assert [[first for first, _ in found] for found in behind] == [[10], [14], []]

"""What the archive's tier and care are told: never more than is known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.offset_ranges import joined_ranges
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import AgentRegistration, LinkPolicy, TopicSettings
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from rlm.archive.archived_topics import ArchivedTopics, ArchiveTier
from rlm.lifecycle.cluster_observer import Observation
from rlm.lifecycle.failover import FailoverPlanner
from rlm.lifecycle.release import ClusterView, Release, Tiers, release_of
from rlm.write_path.assignment import Assignment
from tests.rlm.test_failover import uploaded
from topic_reader.held_records import give_up

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 3)
SEEN = Observation(
    ClusterView(frozenset({ORDERS.topic_id}), retention_ms={ORDERS.topic_id: 10}, log_start={ORDERS: 4}),
    frozenset({1, 2}),
    {ORDERS.topic_id: "orders"},
)


class Cluster:
    """The stores and settings that the knowledge reads."""

    def __init__(self, archives_here: bool = True) -> None:
        self.store, self.archive = RemoteWalMetadataStore(), ArchiveStore()
        self.settings = SimpleNamespace(table=SettingsTable({"orders": TopicSettings(enable=True, archive=True)}))
        self.knowledge = ArchivedTopics(
            CombinedSegmentId(1, 7, 0),
            self.store,
            self.archive,
            cast(SettingsReader, self.settings),
            archives_here,
            lambda: 0.0,
        )

    def register(self, broker_id: int, incarnation: int, caretaker: int) -> None:
        self.store.apply(RemoteWalNodeRegistration(broker_id, incarnation, caretaker, 0))

    def commit(self, first: int, last: int) -> None:
        named = ArchiveObjectId(ORDERS, first, last, CombinedSegmentId(1, 7, first))
        run = RemoteLogSegmentMetadataEntry(ORDERS, 0, first, last, 112, 200, 0)
        self.archive.apply(ArchiveObjectCommitted(named, 7, (run,), 300, 0))

    def unneeded(self) -> list[int]:
        view = self.knowledge.duties(()).view
        unneeded = self.archive.find_unneeded(view.log_start, view.is_gone, None, self.store.is_run_held)
        return [found.first_offset for found in unneeded]

    def lead(self, directory: Path) -> None:
        (directory / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n2 8\n")
        self.knowledge.set_led([Assignment(ORDERS, "orders", directory, LinkPolicy.COST, 20, archive=True)])


@pytest.mark.parametrize(
    ("topic", "here", "elsewhere", "expected"),
    [
        (TopicSettings(enable=True, archive=True), True, False, True),
        (TopicSettings(enable=True, archive=True), False, True, True),
        (TopicSettings(enable=True, archive=True), False, False, False),
        (TopicSettings(enable=True, archive=False), True, True, False),
        (TopicSettings(enable=False, archive=True), True, True, False),
    ],
)
def test_entries_wait_for_the_archive_wherever_it_runs(
    topic: TopicSettings, here: bool, elsewhere: bool, expected: bool
) -> None:
    cluster = Cluster(archives_here=here)
    agent = AgentRegistration(2, 5, "", "1", 0, archive=elsewhere)
    cluster.settings.table = SettingsTable({"orders": topic}, agents={2: agent})
    assert not cluster.knowledge.is_archived(ORDERS.topic_id)
    cluster.knowledge.cluster_seen(SEEN)
    assert cluster.knowledge.is_archived(ORDERS.topic_id) is expected


def test_an_archived_topics_entry_goes_once_it_is_archived_and_never_by_time() -> None:
    cluster = Cluster()
    cluster.knowledge.cluster_seen(SEEN)
    tier = Tiers([ArchiveTier(cluster.archive, cluster.knowledge.is_archived, cluster.knowledge.chain_of)])
    entry = RemoteLogSegmentMetadataEntry(ORDERS, 0, 4, 9, 0, 10, 0)
    assert release_of(entry, 10**9, SEEN.view, tier) is None
    cluster.commit(4, 9)
    assert release_of(entry, 0, SEEN.view, tier) is Release.TIERED


def test_leader_epochs_are_told_of_led_partitions_alone(tmp_path: Path) -> None:
    cluster = Cluster()
    assert cluster.knowledge.chain_of(ORDERS) is None
    cluster.lead(tmp_path)
    chain = cluster.knowledge.chain_of(ORDERS)
    assert chain is not None
    assert chain.entries == ((0, 0), (2, 8))
    cluster.knowledge.set_led([])
    assert cluster.knowledge.chain_of(ORDERS) is None


def test_nothing_is_in_care_until_the_topic_was_read_beyond_our_own_registration() -> None:
    cluster = Cluster()
    cluster.register(2, 5, caretaker=1)
    cluster.register(1, 6, caretaker=1)
    assert cluster.knowledge.duties({1, 2}).incarnations == {}
    cluster.register(1, 7, caretaker=1)
    assert cluster.knowledge.duties({1, 2}).incarnations == {1: 7, 2: 5}
    assert cluster.knowledge.duties(()).incarnations == {}
    cluster.register(2, 9, caretaker=2)
    assert cluster.knowledge.duties({1, 2}).incarnations == {1: 7}
    cluster.register(1, 8, caretaker=1)
    assert cluster.knowledge.duties({1, 2}).incarnations == {}


def test_only_the_logs_start_releases_objects_though_the_leader_came_back_with_a_shorter_log(tmp_path: Path) -> None:
    cluster = Cluster()
    for first, last in ((0, 3), (4, 7), (8, 9)):
        cluster.commit(first, last)
    assert cluster.unneeded() == []
    cluster.knowledge.cluster_seen(SEEN)
    assert cluster.unneeded() == [0]
    cluster.lead(tmp_path)  # in its log epoch 0 ends at 8: a power cut, an empty disk, a recovery to a time
    assert cluster.unneeded() == [0]


@pytest.mark.parametrize("is_elected", [True, False])
def test_what_a_log_that_began_again_on_an_empty_disk_has_in_the_archive_alone_outlives_its_start(
    is_elected: bool,
) -> None:
    cluster, losses = Cluster(), list[DeclaredGap]()
    for first, last in ((0, 3), (4, 9)):
        cluster.commit(first, last)
    planner = FailoverPlanner(1, cluster.store, losses.append, cluster.archive)
    leaders = {0: 1, 1: -1, 2: 2 if is_elected else 1}
    for _ in range(2):
        assert planner.plan(ORDERS, LeaderEpochs([(2, 0)]), 0, lambda: leaders) == []
        cluster.store.apply(RemoteWalGapDeclaration(1, 7, 0, tuple(losses), 0))
    assert losses == ([] if is_elected else [DeclaredGap(ORDERS, 0, 10, 2, GapReason.LOST_LOCALLY)])
    cluster.knowledge.cluster_seen(replace(SEEN, view=replace(SEEN.view, log_start={ORDERS: 100})))
    assert cluster.unneeded() == ([0, 4] if is_elected else [])
    assert planner.plan(ORDERS, LeaderEpochs([(2, 100)]), 0, lambda: leaders) == [], "the chain's head went with it"


@pytest.mark.parametrize("known", [(), (DeclaredGap(ORDERS, 2, 4, 2, GapReason.LOST_LOCALLY),)])
def test_what_combined_segments_hold_of_a_loss_ends_nothing_that_the_archive_holds_nor_does_its_being_given_up(
    known: tuple[DeclaredGap, ...],
) -> None:
    cluster, losses = Cluster(), list(known)
    for first, last in ((0, 3), (4, 9)):
        cluster.commit(first, last)
    uploaded(cluster.store, 1, 0, (ORDERS, 0, 2, 3))
    planner = FailoverPlanner(1, cluster.store, losses.append, cluster.archive)
    for _ in range(2):
        cluster.store.apply(RemoteWalGapDeclaration(1, 7, 0, tuple(losses), 0))
        assert planner.plan(ORDERS, LeaderEpochs([(2, 0)]), 0, lambda: {0: 1, 1: -1, 2: 1}) == []
    assert joined_ranges((loss.from_offset, loss.to_offset) for loss in losses) == [(0, 10)]
    cluster.knowledge.cluster_seen(replace(SEEN, view=replace(SEEN.view, log_start={ORDERS: 100})))
    assert cluster.unneeded() == []
    assert give_up(cluster.store, cluster.archive, ORDERS, 1, 0, cluster.store.apply) == 3
    assert cluster.unneeded() == []


def test_objects_of_a_topic_that_is_gone_are_not_needed() -> None:
    cluster = Cluster()
    cluster.commit(0, 3)
    gone = ClusterView(gone_before=frozenset({ORDERS.topic_id}))
    assert not cluster.knowledge.duties(()).view.is_gone(ORDERS.topic_id)
    cluster.knowledge.cluster_seen(Observation(gone, frozenset({1})))
    view = cluster.knowledge.duties(()).view
    assert len(cluster.archive.find_unneeded(view.log_start, view.is_gone)) == 1

"""What a log lost without an election is kept, told, and given up by a person alone."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.publishable import MetadataPublisher, Publishable
from metadata_topic.records.records import PublishedSegment
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from recovery.metadata.topic_rebuild import unpublished_gaps
from rlm.lifecycle.failover import FailoverPlanner, FailoverTask
from rlm.lifecycle.gap_declarations import LedGaps
from rlm.lifecycle.release import ClusterView, Release, ReleaseJudge, Tiers
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.led_partition import PartitionStatus
from rlm.write_path.metrics import LifecycleMetrics
from tests.rlm.test_failover import B1, B3, OTHER, PARTITION, dead, led_by, uploaded
from topic_reader.held_records import give_up, held_logs, held_runs

AGAIN = LeaderEpochs([(0, 0), (2, 300)])
"""The log after the power cut; its broker leads again."""
LED_AGAIN = led_by(B1, -1, B1)
LOSS = DeclaredGap(PARTITION, 300, 400, 2, GapReason.LOST_LOCALLY)


class Told:
    """An agent's failover, whose declarations reach the topic at once."""

    def __init__(self, broker_id: int, store: RemoteWalMetadataStore, archive: ArchiveStore | None = None) -> None:
        self.losses: list[DeclaredGap] = []
        self.store = store
        self.planner = FailoverPlanner(broker_id, store, self._declared, archive)

    def _declared(self, loss: DeclaredGap) -> None:
        self.losses.append(loss)
        self.store.apply(RemoteWalGapDeclaration(1, 1, len(self.losses), (loss,), 0))


def lost() -> tuple[RemoteWalMetadataStore, CombinedSegmentId]:
    """400 records are stored, of which the only log has 300 after a power cut."""
    store = RemoteWalMetadataStore()
    uploaded(store, B1, 0, (PARTITION, 0, 0, 299))
    return store, uploaded(store, B1, 1, (PARTITION, 0, 300, 399))


def test_a_broker_that_leads_again_with_a_shorter_log_declares_nothing_dead() -> None:
    store, segment_id = lost()
    agent = Told(B1, store)
    assert (
        agent.planner.plan(PARTITION, AGAIN, 0, LED_AGAIN) == agent.planner.plan(PARTITION, AGAIN, 1, LED_AGAIN) == []
    )
    assert agent.losses == [LOSS], "it is declared, once"
    assert [run.combined_segment_id for run in store.held_runs(PARTITION)] == [segment_id]
    assert not store.entries_covering(PARTITION, 350, AGAIN), "it is not served"
    assert store.declared_gaps(PARTITION) == [], "and is no gap"


def test_what_is_held_outlives_an_election_the_records_in_its_place_do_not() -> None:
    store, _ = lost()
    assert Told(B1, store).planner.plan(PARTITION, AGAIN, 0, LED_AGAIN) == []
    later = uploaded(store, B1, 2, (PARTITION, 2, 300, 360))
    agent = Told(B3, store)
    elected = LeaderEpochs([(0, 0), (2, 300), (3, 340)])
    assert dead(agent.planner.plan(PARTITION, elected, 0, led_by(B1, -1, B1, B3))) == [(later, 340, 360)]
    assert len(store.held_runs(PARTITION)) == 1


def test_snapshots_remember_it() -> None:
    store, _ = lost()
    Told(B1, store).planner.plan(PARTITION, AGAIN, 0, LED_AGAIN)
    restored, joined = RemoteWalMetadataStore(), RemoteWalMetadataStore()
    restored.restore(store.image())
    joined.join(store.image())
    assert restored.local_losses() == joined.local_losses() == {PARTITION: (LOSS,)}
    assert restored.declared_gaps(PARTITION) == []


@pytest.mark.parametrize("few_entries", [0, 12])
def test_neither_time_nor_the_logs_start_releases_it_but_its_topics_end_does(few_entries: int) -> None:
    store, segment_id = lost()
    block = published(store, segment_id).entry_block
    expired = ClusterView(retention_ms={PARTITION.topic_id: 10}, log_start={PARTITION: 1000})
    assert ReleaseJudge(expired, Tiers(), few_entries).release(block, 1000, {}) is not None
    Told(B1, store).planner.plan(PARTITION, AGAIN, 0, LED_AGAIN)
    held = replace(expired, held=store.local_losses())
    assert ReleaseJudge(held, Tiers(), few_entries).release(block, 1000, {}) is None
    gone = ClusterView(gone_before=frozenset({PARTITION.topic_id}), held=store.local_losses())
    assert ReleaseJudge(gone, Tiers(), few_entries).release(block, 1000, {}) is Release.TOPIC_DELETED


def test_a_person_gives_it_up() -> None:
    store, segment_id = lost()
    Told(B1, store).planner.plan(PARTITION, AGAIN, 0, LED_AGAIN)
    status = {PARTITION: PartitionStatus("orders", 0, 300, 300, 0, 0)}
    led = LedGaps(store, ArchiveStore(), lambda: status, lambda _partition: AGAIN)
    [told] = led.describe_held()
    assert (told["from_offset"], told["to_offset"], led.held_offsets) == (300, 400, 100)
    assert told["give_up"] == "remote-wal held give-up orders 0"

    assert give_up(store, ArchiveStore(), OTHER, 0, 0, store.apply) == 0
    assert give_up(store, ArchiveStore(), PARTITION, 0, 0, store.apply) == 1
    assert not led.describe_held()
    assert not store.held_runs(PARTITION)
    held = ClusterView(held=store.local_losses())
    block, tails = published(store, segment_id).entry_block, store.dead_tails(segment_id)
    assert ReleaseJudge(held, Tiers()).release(block, 0, tails) is Release.DEAD
    assert Told(B1, store).planner.plan(PARTITION, AGAIN, 0, LED_AGAIN) == []


async def test_what_the_archive_alone_holds_is_declared_told_and_given_up(tmp_path: Path) -> None:
    archive, store = ArchiveStore(), RemoteWalMetadataStore()
    runs = [RemoteLogSegmentMetadataEntry(PARTITION, *run, 112, 200, 0) for run in ((0, 0, 349), (1, 350, 399))]
    object_id = ArchiveObjectId(PARTITION, 0, 399, CombinedSegmentId(B1, 1, 0))
    archive.apply(ArchiveObjectCommitted(object_id, 1, tuple(runs), 300, 0))
    agent = Told(B1, store, archive)
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n2 300\n")
    with ThreadPoolExecutor(1) as threads:
        publisher = cast(MetadataPublisher[Publishable], None)
        metrics, leaders = LifecycleMetrics(CollectorRegistry()), dict(enumerate((B1, -1, B1)))
        task = FailoverTask(agent.planner, publisher, lambda: 0, metrics, threads, lambda _: {PARTITION: leaders})
        task.set_led([Assignment(PARTITION, "orders", tmp_path, LinkPolicy.COST, 20, archive=True)])
        assert await task.run_once()
    assert agent.losses == [LOSS]

    status = {PARTITION: PartitionStatus("orders", 0, 300, 300, 0, 0)}
    led = LedGaps(store, archive, lambda: status, lambda _partition: AGAIN)
    [told] = led.describe_held()
    assert (told["from_offset"], told["to_offset"], led.held_offsets) == (300, 400, 100)
    found = [(run.entry.leader_epoch, run.entry.first_offset) for run in held_runs(store, archive, PARTITION)]
    assert found == [(0, 300), (1, 350)]

    assert give_up(store, archive, PARTITION, 0, 0, store.apply) == 2
    again = RemoteWalMetadataStore()
    again.restore(store.image())
    assert unpublished_gaps(store.image().gaps, again) == []
    for one in (store, again):
        assert LedGaps(one, archive, lambda: status, lambda _partition: AGAIN).held_offsets == 0
        assert not held_runs(one, archive, PARTITION)
        assert all(map(one.is_run_held, runs)), "nothing is deleted by that"
    later = LOSS._replace(leader_epoch=4)
    store.apply(RemoteWalGapDeclaration(1, 1, 9, (later,), 0))
    assert led.held_offsets == 100


def test_what_an_election_discarded_before_the_loss_is_not_told_with_what_the_archive_holds() -> None:
    archive, store = ArchiveStore(), RemoteWalMetadataStore()
    runs = [RemoteLogSegmentMetadataEntry(PARTITION, *run, 112, 200, 0) for run in ((0, 0, 349), (1, 340, 399))]
    for sequence, run in enumerate(runs):
        object_id = ArchiveObjectId(PARTITION, run.first_offset, run.last_offset, CombinedSegmentId(B1, 1, sequence))
        archive.apply(ArchiveObjectCommitted(object_id, 1, (run,), 300, 0))
    beyond = uploaded(store, B1, 0, (PARTITION, 0, 340, 349))
    [update] = Told(B3, store, archive).planner.plan(PARTITION, LeaderEpochs([(0, 0), (1, 340)]), 0, led_by(B1, B3))
    assert update.combined_segment_id == beyond
    store.apply(update)
    store.apply(RemoteWalGapDeclaration(1, 1, 0, (LOSS,), 0))
    found = [(run.entry.first_offset, run.entry.last_offset) for run in held_runs(store, archive, PARTITION)]
    assert found == [(300, 339), (340, 399)]


def published(store: RemoteWalMetadataStore, segment_id: CombinedSegmentId) -> PublishedSegment:
    found = store.published_segment(segment_id)
    assert found is not None
    return found


def test_an_entry_of_a_newer_epoch_or_beside_the_range_is_not_held() -> None:
    store = RemoteWalMetadataStore()
    store.apply(RemoteWalGapDeclaration(1, 1, 0, (LOSS,), 0))
    for sequence, (epoch, first, last) in enumerate([(2, 300, 400), (0, 200, 299), (0, 400, 500), (1, 290, 310)]):
        uploaded(store, B1, sequence, (TopicIdPartition(*PARTITION), epoch, first, last))
    assert [(run.entry.first_offset, run.entry.last_offset) for run in store.held_runs(PARTITION)] == [(300, 310)]


def test_what_each_of_two_losses_took_stays_a_log_of_its_own() -> None:
    store, _ = lost()
    uploaded(store, B1, 2, (PARTITION, 1, 400, 449))  # of the first log, led once more
    agent = Told(B1, store)
    assert agent.planner.plan(PARTITION, AGAIN, 0, LED_AGAIN) == []
    uploaded(store, B1, 3, (PARTITION, 2, 300, 509), (PARTITION, 3, 505, 520))
    twice_cut = LeaderEpochs([(0, 0), (2, 300), (4, 500)])
    assert agent.planner.plan(PARTITION, twice_cut, 0, led_by(*5 * [B1])) == []
    logs = held_logs(held_runs(store, ArchiveStore(), PARTITION), store.local_losses()[PARTITION])
    held = [[(run.entry.leader_epoch, run.entry.first_offset) for run in log] for log in logs]
    assert held == [[(0, 300), (1, 400)], [(2, 500)], [(3, 505)]]


def test_what_the_shortened_log_has_itself_is_neither_held_nor_given_up() -> None:
    store = RemoteWalMetadataStore()
    uploaded(store, B1, 0, (PARTITION, 0, 0, 40))
    own = uploaded(store, B1, 1, (PARTITION, 2, 20, 29))
    uploaded(store, B1, 2, (PARTITION, 2, 25, 34))
    twice_cut = LeaderEpochs([(0, 0), (2, 20), (4, 30)])
    agent = Told(B1, store)
    assert agent.planner.plan(PARTITION, twice_cut, 0, led_by(*5 * [B1])) == []
    assert [(one.from_offset, one.to_offset, one.leader_epoch) for one in agent.losses] == [(20, 41, 2), (30, 35, 4)]
    give_up(store, ArchiveStore(), PARTITION, 0, 0, store.apply)
    assert not store.dead_tails(own)
    assert store.stored_ranges(PARTITION, twice_cut) == [(0, 30)]

"""What a log lost without an election is kept, told, and given up by a person alone."""

from dataclasses import replace

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import PublishedSegment
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId
from rlm.lifecycle.failover import FailoverPlanner
from rlm.lifecycle.gap_declarations import LedGaps
from rlm.lifecycle.release import ClusterView, Release, ReleaseJudge, Tiers
from rlm.write_path.core.led_partition import PartitionStatus
from tests.rlm.test_failover import B1, B3, OTHER, PARTITION, dead, led_by, uploaded
from topic_reader.held_records import give_up, held_logs

AGAIN = LeaderEpochs([(0, 0), (2, 300)])
"""The log after the power cut; its broker leads again."""
LED_AGAIN = led_by(B1, -1, B1)
LOSS = DeclaredGap(PARTITION, 300, 400, 2, GapReason.LOST_LOCALLY)


class Told:
    """An agent's failover, whose declarations reach the topic at once."""

    def __init__(self, broker_id: int, store: RemoteWalMetadataStore) -> None:
        self.losses: list[DeclaredGap] = []
        self.store = store
        self.planner = FailoverPlanner(broker_id, store, self._declared)

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
    led = LedGaps(store, lambda: status, lambda _partition: AGAIN)
    [told] = led.describe_held()
    assert (told["from_offset"], told["to_offset"], led.held_offsets) == (300, 400, 100)
    assert told["give_up"] == "remote-wal held give-up orders 0"

    assert give_up(store, OTHER, 0, 0, store.apply) == 0
    assert give_up(store, PARTITION, 0, 0, store.apply) == 1
    assert not led.describe_held()
    assert not store.held_runs(PARTITION)
    held = ClusterView(held=store.local_losses())
    block, tails = published(store, segment_id).entry_block, store.dead_tails(segment_id)
    assert ReleaseJudge(held, Tiers()).release(block, 0, tails) is Release.DEAD
    assert Told(B1, store).planner.plan(PARTITION, AGAIN, 0, LED_AGAIN) == []


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
    held = [[(run.entry.leader_epoch, run.entry.first_offset) for run in log] for log in held_logs(store, PARTITION)]
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
    give_up(store, PARTITION, 0, 0, store.apply)
    assert not store.dead_tails(own)
    assert store.stored_ranges(PARTITION, twice_cut) == [(0, 30)]

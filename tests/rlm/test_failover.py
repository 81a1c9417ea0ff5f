"""Which entries an election killed: the KIP's example, unclean and repeated elections, stale leaders."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store.held_records import is_held
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.lifecycle.failover import FailoverPlanner, Leaders
from tests.metadata_topic.store_oracles import living_entries

PARTITION = TopicIdPartition(TopicId(b"f" * 16), 0)
OTHER = TopicIdPartition(TopicId(b"o" * 16), 0)
B1, B2, B3 = 1, 2, 3


def uploaded(
    store: RemoteWalMetadataStore, broker_id: int, sequence: int, *runs: tuple[TopicIdPartition, int, int, int]
) -> CombinedSegmentId:
    """A finished segment with runs of (partition, leader epoch, first offset, last offset)."""
    segment_id = CombinedSegmentId(broker_id, 1, sequence)
    entries = tuple(
        RemoteLogSegmentMetadataEntry(partition, epoch, first, last, 100 * i, 100 * i + 100, i)
        for i, (partition, epoch, first, last) in enumerate(runs)
    )
    state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id, entries, state, 1, 1000))
    return segment_id


def led_by(*brokers: int) -> Callable[[], Leaders]:
    """Kafka's word: these brokers led in epochs 0, 1, ...; -1: nobody."""
    return lambda: dict(enumerate(brokers))


def dead(updates: list[RemoteWalLogSegmentMetadataUpdate]) -> list[tuple[CombinedSegmentId, int, int]]:
    return [
        (update.combined_segment_id, entry.first_offset, entry.last_offset)
        for update in updates
        for entry in update.entries
    ]


def test_the_kips_example_b1_dies_with_10_uploaded_and_b2_whose_log_ends_at_5_becomes_leader() -> None:
    store = RemoteWalMetadataStore()
    kept = uploaded(store, B1, 0, (PARTITION, 0, 0, 5))
    lost = uploaded(store, B1, 1, (PARTITION, 0, 6, 10), (OTHER, 0, 0, 9))
    b2 = FailoverPlanner(B2, store)
    log_of_b2 = LeaderEpochs([(0, 0), (1, 6)])

    updates = b2.plan(PARTITION, log_of_b2, 77, led_by(B1, B2))

    assert dead(updates) == [(lost, 6, 10)]
    [update] = updates
    assert (update.broker_id, update.leader_epoch, update.event_timestamp_ms) == (B2, 1, 77)
    for update in updates:
        store.apply(update)
    for offset in range(6, 11):
        assert store.entries_covering(PARTITION, offset) == []
        assert store.entries_covering(PARTITION, offset, log_of_b2) == []
    assert [view.combined_segment_id for view in store.entries_covering(PARTITION, 5, log_of_b2)] == [kept]
    assert [entry.topic_id_partition for entry in living_entries(store, lost)] == [OTHER]


def test_of_a_segment_whose_deletion_is_held_back_it_is_declared_dead_as_well() -> None:
    store = RemoteWalMetadataStore()
    lost = uploaded(store, B1, 0, (PARTITION, 0, 4, 10))
    deleting = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    store.apply(RemoteWalCombinedLogSegmentMetadata(lost, (), deleting, 2, 1000))
    other = uploaded(store, B1, 1, (PARTITION, 0, 0, 8))
    b2, log_of_b2 = FailoverPlanner(B2, store), LeaderEpochs([(0, 0), (1, 6)])
    updates = b2.plan(PARTITION, log_of_b2, 0, led_by(B1, B2))
    assert dead(updates) == [(other, 6, 8), (lost, 6, 10)]
    store.apply(updates[1])
    assert store.dead_tails(lost) == {(PARTITION, 0): 6}
    assert dead(FailoverPlanner(B2, store).plan(PARTITION, log_of_b2, 0, led_by(B1, B2))) == [(other, 6, 8)]
    assert store.stored_ranges(PARTITION, LeaderEpochs([(0, 0)])) == [(0, 9)], "nothing is known of the other one"


def test_dead_entries_are_published_once_before_and_after_they_come_back_through_the_topic_and_after_a_restart() -> (
    None
):
    store = RemoteWalMetadataStore()
    uploaded(store, B1, 0, (PARTITION, 0, 0, 10))
    epochs = LeaderEpochs([(0, 0), (1, 6)])
    planner = FailoverPlanner(B2, store)
    [update] = planner.plan(PARTITION, epochs, 0, led_by(B1, B2))
    assert planner.plan(PARTITION, epochs, 1, led_by(B1, B2)) == []
    store.apply(update)
    assert planner.plan(PARTITION, epochs, 2, led_by(B1, B2)) == []
    assert FailoverPlanner(B2, store).plan(PARTITION, epochs, 3, led_by(B1, B2)) == []


def test_a_record_that_could_not_be_published_is_planned_again() -> None:
    store = RemoteWalMetadataStore()
    uploaded(store, B1, 0, (PARTITION, 0, 0, 10))
    planner, epochs = FailoverPlanner(B2, store), LeaderEpochs([(0, 0), (1, 6)])
    [update] = planner.plan(PARTITION, epochs, 0, led_by(B1, B2))
    planner.plan_again(update)
    assert planner.plan(PARTITION, epochs, 0, led_by(B1, B2)) == [update]


@dataclass
class Model:
    """Every replica's log as a list of the epochs of its records."""

    logs: dict[int, list[int]] = field(default_factory=lambda: {B1: [], B2: [], B3: []})
    leaders: list[int] = field(default_factory=lambda: [B1])
    """By leader epoch."""
    starts: dict[int, dict[int, int]] = field(default_factory=lambda: {B1: {0: 0}, B2: {}, B3: {}})

    @property
    def leader(self) -> int:
        return self.leaders[-1]

    def chain(self, broker_id: int) -> LeaderEpochs:
        return LeaderEpochs(sorted(self.starts[broker_id].items()))

    def elect(self, broker_id: int) -> None:
        """Whoever it is: an election may be unclean."""
        self.leaders.append(broker_id)
        self.cut(broker_id, len(self.logs[broker_id]))
        self.starts[broker_id][len(self.leaders) - 1] = len(self.logs[broker_id])

    def cut(self, broker_id: int, end: int) -> None:
        del self.logs[broker_id][end:]
        self.starts[broker_id] = {e: s for e, s in self.starts[broker_id].items() if s < end}

    def replicate(self, broker_id: int, records: int) -> None:
        """Truncate to what is common with the leader, and copy so many records."""
        log, leaders = self.logs[broker_id], self.logs[self.leader]
        common = next(
            (i for i, (a, b) in enumerate(zip(log, leaders, strict=False)) if a != b), min(len(log), len(leaders))
        )
        log[common:] = leaders[common : common + records]
        self.starts[broker_id] = {e: s for e, s in self.starts[self.leader].items() if s < len(log)}


BROKERS = st.sampled_from([B1, B2, B3])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), BROKERS, st.integers(1, 6)),
        st.tuples(st.just("replicate"), BROKERS, st.integers(0, 8)),
        st.tuples(st.just("elect"), BROKERS, st.just(0)),
        st.tuples(st.just("lead again after a power cut"), BROKERS, st.integers(0, 8)),
        st.tuples(st.just("upload"), BROKERS, st.integers(1, 8)),
    ),
    max_size=30,
)


@given(STEPS, st.sets(st.integers(0, 29)))
def test_whatever_the_leaders_log_lacks_is_held_or_dead_and_dead_only_if_another_replica_was_elected(
    steps: list[tuple[str, int, int]], unseen: set[int]
) -> None:
    """Uploads come from any replica that leads or once did, its log as it is then: stale leaders included.

    Agents are away at some steps, and each later leader's agent judges by what it finds.
    """
    model, store, losses = Model(), RemoteWalMetadataStore(), []

    def declared(loss: DeclaredGap) -> None:
        losses.append(loss)
        store.apply(RemoteWalGapDeclaration(1, 1, len(losses), (loss,), 0))

    for number, step in enumerate(steps):
        play(step, model, store)
        if number in unseen:
            continue
        planner, chain = FailoverPlanner(model.leader, store, declared), model.chain(model.leader)
        for update in planner.plan(PARTITION, chain, 0, led_by(*model.leaders)):
            store.apply(update)
            for entry in update.entries:
                is_replaced = (
                    chain.epoch_for(entry.first_offset) < entry.leader_epoch
                )  # by a longer log of older epochs
                assert is_replaced or len(set(model.leaders[entry.leader_epoch :])) > 1
        assert planner.plan(PARTITION, chain, 0, led_by(*model.leaders)) == []
        log = model.logs[model.leader]
        for metadata in store.published_segments():
            for entry in living_entries(store, metadata.combined_segment_id):
                # What lives begins in the leader's log, under the same epoch, or is held.
                begins = log[entry.first_offset : entry.first_offset + 1] == [entry.leader_epoch]
                assert begins or is_held(entry, store.local_losses())
        for offset in range(len(log) + 10):
            for view in store.entries_covering(PARTITION, offset, chain):
                assert log[offset : offset + 1] == [view.entry.leader_epoch]
        assert all(end <= len(log) for _, end in store.stored_ranges(PARTITION, chain))


def play(step: tuple[str, int, int], model: Model, store: RemoteWalMetadataStore) -> None:
    action, broker_id, count = step
    if action == "append":
        model.logs[model.leader] += [len(model.leaders) - 1] * count
    elif action == "replicate" and broker_id != model.leader:
        model.replicate(broker_id, count)
    elif action == "elect":
        model.elect(broker_id)
    elif action == "lead again after a power cut":
        leader = model.leader
        model.cut(leader, max(0, len(model.logs[leader]) - count))
        model.elect(leader)
    elif action == "upload":
        log = model.logs[broker_id]
        for epoch in sorted(set(log[-count:])):
            offsets = [offset for offset in range(max(0, len(log) - count), len(log)) if log[offset] == epoch]
            sequence = sum(1 for _ in store.published_segments())
            uploaded(store, broker_id, sequence, (PARTITION, epoch, offsets[0], offsets[-1]))


LOG_OF_B2 = LeaderEpochs([(5, 0), (6, 60), (7, 70)])


@pytest.mark.parametrize(
    ("leaders", "is_elected"),
    [
        pytest.param({5: B1, 6: B2, 7: B3}, True, id="B2 was elected, and its agent was away"),
        pytest.param({5: B1, 6: B1, 7: B2}, False, id="B1 led again with a shorter log, and its agent was away"),
        pytest.param({5: B1, 7: B2}, False, id="Kafka does not tell who led"),
        pytest.param({6: B2, 7: B2}, False, id="Kafka does not tell who led first"),
        pytest.param({}, False, id="nothing is known"),
    ],
)
@pytest.mark.parametrize("later_uploader", [None, B1, B2])
def test_only_kafka_says_that_another_replica_was_elected(
    leaders: dict[int, int], is_elected: bool, later_uploader: int | None
) -> None:
    """Whoever stored records of an epoch need not have led in it: a later leader's agent stores what is missing."""
    store = RemoteWalMetadataStore()
    losses: list[DeclaredGap] = []
    tail = uploaded(store, B1, 0, (PARTITION, 5, 50, 99))
    if later_uploader is not None:
        uploaded(store, later_uploader, 1, (PARTITION, 6, 60, 69))
    updates = FailoverPlanner(B2, store, losses.append).plan(PARTITION, LOG_OF_B2, 0, lambda: leaders)
    assert dead(updates) == ([(tail, 60, 99)] if is_elected else [])
    assert losses == ([] if is_elected else [DeclaredGap(PARTITION, 60, 100, 6, GapReason.LOST_LOCALLY)])


def test_an_epoch_without_a_leader_hides_no_election() -> None:
    store = RemoteWalMetadataStore()
    tail = uploaded(store, B1, 0, (PARTITION, 0, 50, 99))
    planner, log = FailoverPlanner(B2, store), LeaderEpochs([(0, 0), (2, 60)])
    assert dead(planner.plan(PARTITION, log, 0, led_by(B1, -1, B2))) == [(tail, 60, 99)]

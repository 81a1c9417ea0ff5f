"""Which entries an election killed: the KIP's example, unclean and repeated elections, stale leaders."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.lifecycle.failover import FailoverPlanner
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

    updates = b2.plan(PARTITION, log_of_b2, 77)

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
    updates = b2.plan(PARTITION, log_of_b2, 0)
    assert dead(updates) == [(other, 6, 8), (lost, 6, 10)]
    store.apply(updates[1])
    assert store.dead_tails(lost) == {(PARTITION, 0): 6}
    assert dead(FailoverPlanner(B2, store).plan(PARTITION, log_of_b2, 0)) == [(other, 6, 8)]
    assert store.stored_ranges(PARTITION, LeaderEpochs([(0, 0)])) == [(0, 9)], "nothing is known of the other one"


def test_b3_which_had_7_offsets_and_is_elected_keeps_what_it_has() -> None:
    store = RemoteWalMetadataStore()
    whole = uploaded(store, B1, 0, (PARTITION, 0, 0, 10))
    assert dead(FailoverPlanner(B3, store).plan(PARTITION, LeaderEpochs([(0, 0), (1, 8)]), 0)) == [(whole, 8, 10)]


def test_dead_entries_are_published_once_before_and_after_they_come_back_through_the_topic_and_after_a_restart() -> (
    None
):
    store = RemoteWalMetadataStore()
    uploaded(store, B1, 0, (PARTITION, 0, 0, 10))
    epochs = LeaderEpochs([(0, 0), (1, 6)])
    planner = FailoverPlanner(B2, store)
    [update] = planner.plan(PARTITION, epochs, 0)
    assert planner.plan(PARTITION, epochs, 1) == []
    store.apply(update)
    assert planner.plan(PARTITION, epochs, 2) == []
    assert FailoverPlanner(B2, store).plan(PARTITION, epochs, 3) == []


def test_a_record_that_could_not_be_published_is_planned_again() -> None:
    store = RemoteWalMetadataStore()
    uploaded(store, B1, 0, (PARTITION, 0, 0, 10))
    planner, epochs = FailoverPlanner(B2, store), LeaderEpochs([(0, 0), (1, 6)])
    [update] = planner.plan(PARTITION, epochs, 0)
    planner.plan_again(update)
    assert planner.plan(PARTITION, epochs, 0) == [update]


def test_what_a_stale_leader_uploads_after_the_election_is_recognised_by_its_epoch() -> None:
    store = RemoteWalMetadataStore()
    planner, epochs = FailoverPlanner(B2, store), LeaderEpochs([(0, 0), (1, 6)])
    assert planner.plan(PARTITION, epochs, 0) == []
    uploaded(store, B2, 0, (PARTITION, 1, 6, 20))
    stale = uploaded(store, B1, 9, (PARTITION, 0, 6, 12))
    assert dead(planner.plan(PARTITION, epochs, 1)) == [(stale, 6, 12)]


def test_a_deposed_leader_says_nothing_about_its_successors() -> None:
    store = RemoteWalMetadataStore()
    uploaded(store, B2, 0, (PARTITION, 3, 6, 20))
    assert FailoverPlanner(B1, store).plan(PARTITION, LeaderEpochs([(0, 0), (1, 4)]), 0) == []


def test_an_election_that_cuts_deeper_moves_the_end_of_what_was_dead_already() -> None:
    store = RemoteWalMetadataStore()
    whole = uploaded(store, B1, 0, (PARTITION, 0, 0, 10))
    [update] = FailoverPlanner(B2, store).plan(PARTITION, LeaderEpochs([(0, 0), (1, 6)]), 0)
    store.apply(update)
    deeper = FailoverPlanner(B3, store)
    assert dead(deeper.plan(PARTITION, LeaderEpochs([(0, 0), (2, 3)]), 0)) == [(whole, 3, 10)]


def test_after_an_unclean_election_a_log_that_was_declared_dead_is_uploaded_anew() -> None:
    store = RemoteWalMetadataStore()
    uploaded(store, B1, 0, (PARTITION, 0, 0, 10))
    [update] = FailoverPlanner(B2, store).plan(PARTITION, LeaderEpochs([(0, 0), (1, 6)]), 0)
    store.apply(update)
    back = LeaderEpochs([(0, 0), (2, 11)])  # B1's log, elected uncleanly
    assert FailoverPlanner(B1, store).plan(PARTITION, back, 0) == []
    assert store.stored_ranges(PARTITION, back) == [(0, 6)]
    again = uploaded(store, B1, 1, (PARTITION, 0, 6, 10))
    assert FailoverPlanner(B1, store).plan(PARTITION, back, 0) == []
    assert [view.combined_segment_id for view in store.entries_covering(PARTITION, 8, back)] == [again]


@dataclass
class Model:
    """Every replica's log as a list of the epochs of its records."""

    logs: dict[int, list[int]] = field(default_factory=lambda: {B1: [], B2: [], B3: []})
    leader: int = B1
    epoch: int = 0
    starts: dict[int, dict[int, int]] = field(default_factory=lambda: {B1: {0: 0}, B2: {}, B3: {}})

    def chain(self, broker_id: int) -> LeaderEpochs:
        return LeaderEpochs(sorted(self.starts[broker_id].items()))

    def elect(self, broker_id: int) -> None:
        """Whoever it is: an election may be unclean."""
        self.leader, self.epoch = broker_id, self.epoch + 1
        end = len(self.logs[broker_id])
        self.starts[broker_id] = {e: s for e, s in self.starts[broker_id].items() if s < end} | {self.epoch: end}

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
        st.tuples(st.just("upload"), BROKERS, st.integers(1, 8)),
    ),
    max_size=30,
)


@given(STEPS)
def test_after_any_elections_exactly_the_entries_that_no_leader_of_theirs_left_in_the_log_are_dead(
    steps: list[tuple[str, int, int]],
) -> None:
    """Uploads come from any replica that leads or once did, its log as it is then: stale leaders included."""
    model, store = Model(), RemoteWalMetadataStore()
    for step in steps:
        play(step, model, store)
        planner, chain = FailoverPlanner(model.leader, store), model.chain(model.leader)
        for update in planner.plan(PARTITION, chain, 0):
            store.apply(update)
        assert planner.plan(PARTITION, chain, 0) == []
        log = model.logs[model.leader]
        for metadata in store.segments():
            for entry in living_entries(store, metadata.combined_segment_id):
                # What lives begins in the leader's log, under the same epoch.
                assert log[entry.first_offset : entry.first_offset + 1] == [entry.leader_epoch]
        for offset in range(len(log) + 10):
            for view in store.entries_covering(PARTITION, offset):
                assert log[offset : offset + 1] == [view.entry.leader_epoch]
        assert all(end <= len(log) for _, end in store.stored_ranges(PARTITION, chain))


def play(step: tuple[str, int, int], model: Model, store: RemoteWalMetadataStore) -> None:
    action, broker_id, count = step
    if action == "append":
        model.logs[model.leader] += [model.epoch] * count
    elif action == "replicate" and broker_id != model.leader:
        model.replicate(broker_id, count)
    elif action == "elect":
        model.elect(broker_id)
    elif action == "upload":
        log = model.logs[broker_id]
        for epoch in sorted(set(log[-count:])):
            offsets = [offset for offset in range(max(0, len(log) - count), len(log)) if log[offset] == epoch]
            sequence = sum(1 for _ in store.segments())
            uploaded(store, broker_id, sequence, (PARTITION, epoch, offsets[0], offsets[-1]))

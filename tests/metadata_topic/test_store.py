"""What the store answers, and that the order of the records does not matter."""

import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records import serde
from metadata_topic.records.records import MetadataRecord, PublishedSegment, UnknownRecord
from metadata_topic.store.store import RemoteWalMetadataStore, StateTotals
from plugin.segment_metadata import RemoteLogSegmentState
from tests.metadata_topic.metadata_strategies import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS,
    PAYMENTS,
    STARTED,
    dead,
    entry,
    segment,
    segment_id,
)  # fmt: skip
from tests.metadata_topic.store_oracles import living_entries


def store_of(*records: MetadataRecord) -> RemoteWalMetadataStore:
    store = RemoteWalMetadataStore()
    for record in records:
        store.apply(record)
    return store


def sequences(store: RemoteWalMetadataStore, offset: int, chain: LeaderEpochs | None = None) -> list[int]:
    return [found.combined_segment_id.sequence for found in store.entries_covering(ORDERS, offset, chain)]


def test_only_finished_segments_are_found() -> None:
    store = store_of(segment(1, entry(0, 9), state=STARTED))
    assert sequences(store, 5) == []
    store.apply(segment(1, entry(0, 9)))
    assert sequences(store, 5) == [1]
    store.apply(segment(1, state=DELETING))
    assert sequences(store, 5) == []


def test_a_found_entry_tells_where_it_is() -> None:
    there = entry(10, 19, start=500)
    found = store_of(segment(3, entry(0, 9, partition=PAYMENTS), there)).entries_covering(ORDERS, 19)
    assert [(f.entry, f.combined_segment_id, f.custom_metadata) for f in found] == [(there, segment_id(3), b"bucket-1")]


def test_overlapping_runs_are_all_found_the_furthest_reaching_first() -> None:
    store = store_of(segment(1, entry(0, 99)), segment(2, entry(10, 19)), segment(3, entry(15, 120)))
    assert sequences(store, 15) == [3, 1, 2]
    assert sequences(store, 60) == [3, 1]
    assert sequences(store, 121) == []


def test_a_stale_leaders_run_is_not_found_by_a_newer_chain() -> None:
    store = store_of(segment(1, entry(0, 10, epoch=0)), segment(2, entry(6, 12, epoch=1), broker_id=2))
    chain = LeaderEpochs([(0, 0), (1, 6)])
    assert sequences(store, 5, chain) == [1]
    assert sequences(store, 8, chain) == [2]
    assert sequences(store, 8) == [2, 1]


def test_what_a_topic_before_told_as_dead_stays_dead_and_is_to_be_declared_again_in_the_new_one() -> None:
    store = store_of(segment(2, entry(6, 10)), dead(2, entry(6, 10), leader_epoch=1))
    chain = LeaderEpochs([(0, 0), (1, 6)])
    store.begin_anew()
    assert sequences(store, 6) == []
    assert [(run.combined_segment_id.sequence, at) for run, at in store.outside_of(ORDERS, chain)] == [(2, 6)]
    store.apply(dead(2, entry(6, 10), leader_epoch=1))
    assert store.outside_of(ORDERS, chain) == []


def test_a_stale_chain_declares_nothing_newer_dead() -> None:
    store = store_of(segment(1, entry(20, 29, epoch=5)))
    assert store.outside_of(ORDERS, LeaderEpochs([(0, 0), (4, 10)])) == []


def test_a_fenced_leader_cannot_declare_entries_dead() -> None:
    store = store_of(segment(1, entry(0, 9, epoch=4)), dead(1, entry(0, 9, epoch=4), leader_epoch=4))
    assert sequences(store, 5) == [1]
    assert store.counters["dead_entries_refused"] == 1


def test_a_deleted_segment_is_never_brought_back() -> None:
    store = store_of(segment(1, state=DELETED), segment(1, entry(0, 9)), segment(1, state=STARTED))
    assert store.state_of(segment_id(1)) is DELETED
    assert sequences(store, 5) == []
    assert store.counters["after_deletion"] == 2


def test_a_late_started_record_is_counted_and_changes_nothing() -> None:
    store = store_of(segment(1, entry(0, 9)), segment(1, state=STARTED, size_bytes=-1))
    assert store.state_of(segment_id(1)) is FINISHED
    assert store.counters["step_regression"] == 1
    assert sequences(store, 5) == [1]


def test_totals_count_every_object_in_exactly_one_state() -> None:
    store = store_of(
        segment(1, state=STARTED, size_bytes=-1), segment(1, entry(0, 9)), segment(2, entry(10, 19)),
        segment(2, state=DELETING), segment(3, state=DELETED), segment(4, state=STARTED, size_bytes=-1),
    )  # fmt: skip
    assert store.count_by_state() == {
        STARTED: StateTotals(1, 0), FINISHED: StateTotals(1, 1000),
        DELETING: StateTotals(1, 1000), DELETED: StateTotals(1, 0),
    }  # fmt: skip
    assert [found.combined_segment_id.sequence for found in store.published_segments(FINISHED)] == [1]
    assert list(store.published_segments(broker_id=2)) == []


def test_an_undecodable_record_advances_the_progress_and_is_counted() -> None:
    store = RemoteWalMetadataStore()
    store.apply_all([(UnknownRecord("version", ""), (3, 41)), (segment(1, entry(0, 9)), (3, 42))])
    assert store.progress == {3: 43}
    assert store.counters["unknown_version"] == 1


def picture(store: RemoteWalMetadataStore) -> object:
    chain = LeaderEpochs([(0, 0), (1, 12), (3, 30)])
    return (
        sorted(store.published_segments(), key=lambda found: found.combined_segment_id),
        store.count_by_state(),
        [store.state_of(segment_id(n)) for n in range(6)],
        [living_entries(store, segment_id(n)) for n in range(6)],
        [store.entries_covering(ORDERS, offset, c) for offset in range(50) for c in (None, chain)],
        [store.entries_covering(PAYMENTS, offset, c) for offset in range(50) for c in (None, chain)],
        [store.stored_ranges(p, chain) for p in (ORDERS, PAYMENTS)],
        [sorted(store.outside_of(p, chain), key=repr) for p in (ORDERS, PAYMENTS)],
    )  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> list[MetadataRecord]:
    """Legal histories of up to five segments, with retried deletions and dead entries."""
    records: list[MetadataRecord] = []
    for n in range(draw(st.integers(1, 5))):
        runs = tuple(
            entry(first, first + draw(st.integers(0, 12)), epoch=draw(st.integers(0, 3)), partition=partition)
            for partition in (ORDERS, PAYMENTS)
            for first in draw(st.lists(st.integers(0, 40), max_size=2, unique=True))
        )
        states = draw(
            st.sampled_from(
                [(STARTED,), (STARTED, FINISHED), (FINISHED,), (STARTED, DELETING),
                 (STARTED, FINISHED, DELETING), (FINISHED, DELETING, DELETED),
                 (STARTED, FINISHED, DELETING, DELETED)]
            )
        )  # fmt: skip
        for state in states:
            for timestamp_ms in range(draw(st.integers(1, 2))):
                known = state is FINISHED
                records.append(segment(n, *(runs if known else ()), state=state, timestamp_ms=timestamp_ms,
                                       size_bytes=500 if known else -1))  # fmt: skip
        for run in runs:
            if draw(st.booleans()):
                records.append(dead(n, run, leader_epoch=draw(st.integers(1, 4))))
    return records


@given(histories(), st.randoms(use_true_random=False))
def test_any_order_and_repetition_gives_the_same_end_state(history: list[MetadataRecord], rng: random.Random) -> None:
    shuffled = history + [record for record in history if rng.random() < 0.5]
    rng.shuffle(shuffled)
    assert picture(store_of(*shuffled)) == picture(store_of(*history))


@given(histories())
def test_a_store_fed_through_the_topics_bytes_answers_the_same(history: list[MetadataRecord]) -> None:
    through_bytes = [
        serde.decode_or_keep_out(serde.key_of(record), serde.encode(record))
        for record in history
        if not isinstance(record, UnknownRecord | PublishedSegment)
    ]
    assert picture(store_of(*through_bytes)) == picture(store_of(*history))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 2), st.booleans()), max_size=15),
    st.integers(0, 45),
)
def test_lookups_agree_with_a_plain_search(runs: list[tuple[int, int, int, bool]], offset: int) -> None:
    records: list[MetadataRecord] = []
    for n, (first, length, epoch, deleted) in enumerate(runs):
        records.append(segment(n, entry(first, first + length, epoch=epoch)))
        if deleted:
            records.append(segment(n, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
    living = [(n, *run[:3]) for n, run in enumerate(runs) if not run[3]]
    store = store_of(*records)
    assert sorted(sequences(store, offset)) == [
        n for n, first, length, _ in living if first <= offset <= first + length
    ]
    chain = LeaderEpochs([(0, 0), (2, 20)])
    valid = {at for _, first, length, epoch in living for at in range(first, first + length + 1)
             if chain.epoch_at(at) == epoch}  # fmt: skip
    assert {at for begin, end in store.stored_ranges(ORDERS, chain) for at in range(begin, end)} == valid


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 4), st.booleans()), max_size=15),
    st.dictionaries(st.integers(0, 4), st.integers(0, 12)),
)
def test_the_first_dead_offset_agrees_with_a_plain_search(
    declared: list[tuple[int, int, int, bool]], records_before: dict[int, int]
) -> None:
    chain = LeaderEpochs(zip(sorted(records_before), accumulate(records_before.values()), strict=True))
    store = store_of(
        *(
            dead(n, entry(first, first + 9, epoch=epoch, partition=ORDERS if of_log else PAYMENTS))
            for n, first, epoch, of_log in declared
        )
    )
    found = [
        offset
        for n in range(4)
        for (partition, epoch), offset in store.dead_tails(segment_id(n)).items()
        if partition == ORDERS and chain.epoch_at(offset) == epoch
    ]
    assert store.first_dead_offset(ORDERS, chain) == min(found, default=None)


def test_a_deletion_published_again_keeps_the_time_of_the_first() -> None:
    marks = [segment(1, state=DELETING, timestamp_ms=5000), segment(1, state=DELETING, timestamp_ms=9000)]
    for order in (marks, marks[::-1]):
        known = store_of(segment(1, entry(0, 9), timestamp_ms=10_000), *order).published_segment(segment_id(1))
        assert known is not None
        assert known.event_timestamp_ms == 5000


@pytest.mark.parametrize("state", [DELETING, DELETED])
def test_a_segment_without_entries_can_be_deleted_though_some_were_declared_dead(state: RemoteLogSegmentState) -> None:
    store = RemoteWalMetadataStore()
    for record in (segment(0), dead(0, entry(5, 9)), segment(0, state=state)):
        store.apply(record)
    assert store.state_of(segment_id(0)) is state


def test_of_two_dead_tails_the_longer_counts() -> None:
    tails = [dead(1, entry(6, 9)), dead(1, entry(3, 9))]
    for order in (tails, tails[::-1]):
        store = store_of(segment(1, entry(0, 9)), *order)
        assert [sequences(store, offset) for offset in (2, 3, 6)] == [[1], [], []]


def test_nothing_is_kept_of_a_deleted_segment_but_its_number() -> None:
    store = store_of(segment(1, entry(0, 9)), dead(1, entry(5, 9)), segment(1, state=DELETED))
    assert store.image().dead == []
    assert living_entries(store, segment_id(1)) == ()
    assert store.published_segment(segment_id(1)) is None

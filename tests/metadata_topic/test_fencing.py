"""Node registrations: which incarnation may publish, and who cares for a broker's objects."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.records import serde
from metadata_topic.records.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalNodeRegistration,
    RemoteWalRebuiltSegment,
)
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import RemoteWalCombinedLogSegmentMetadata
from tests.metadata_topic.metadata_strategies import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS,
    STARTED,
    entry,
    segment,
    segment_id,
)
from tests.metadata_topic.test_store import histories, picture, store_of


def node(incarnation: int, broker_id: int = 1, caretaker: int | None = None, timestamp_ms: int = 1) -> (
    RemoteWalNodeRegistration
):  # fmt: skip
    return RemoteWalNodeRegistration(
        broker_id, incarnation, broker_id if caretaker is None else caretaker, timestamp_ms
    )


def test_a_fenced_incarnations_object_is_refused_and_known_as_fenced() -> None:
    store = store_of(node(2), segment(1, state=STARTED), segment(1, entry(0, 9)))
    assert store.state_of(segment_id(1)) is None
    assert store.entries_covering(ORDERS, 5) == []
    assert store.is_fenced(segment_id(1))
    assert not store.is_fenced(segment_id(2))
    assert store.counters["fenced"] == 2


def test_what_came_before_the_registration_stays_valid() -> None:
    store = store_of(segment(1, entry(0, 9)), node(2), segment(1, entry(0, 9)), segment(2, entry(10, 19)))
    assert store.state_of(segment_id(1)) is FINISHED
    assert not store.is_fenced(segment_id(1))
    assert store.is_fenced(segment_id(2))
    assert len(store.entries_covering(ORDERS, 5)) == 1


def test_a_fenced_incarnation_cannot_finish_what_it_started() -> None:
    store = store_of(segment(1, state=STARTED), node(2), segment(1, entry(0, 9)))
    assert store.state_of(segment_id(1)) is STARTED
    assert not store.is_fenced(segment_id(1))


def test_the_registered_incarnation_itself_and_other_brokers_are_not_fenced() -> None:
    other = replace(segment(1, entry(0, 9)), combined_segment_id=segment_id(1, broker_id=3))
    store = store_of(node(1), node(9, broker_id=2), segment(1, entry(0, 9)), other)
    assert "fenced" not in store.counters
    assert len(store.entries_covering(ORDERS, 5)) == 2


def test_a_caretaker_takes_over_until_the_broker_is_back() -> None:
    store = store_of(node(5))
    assert store.caretaker_of(1) == 1
    store.apply(node(6, caretaker=3))
    assert store.caretaker_of(1) == 3
    store.apply(segment(1, entry(0, 9)))
    assert store.is_fenced(segment_id(1))
    store.apply(node(7))
    assert store.caretaker_of(1) == 1
    assert store.registration_of(1) == node(7)


def test_a_late_registration_of_a_fenced_incarnation_changes_nothing() -> None:
    store = store_of(node(6, caretaker=3), node(5))
    assert store.caretaker_of(1) == 3
    assert store.counters["registrations_fenced"] == 1


def test_the_place_in_the_topic_counts_and_not_the_time_of_arrival() -> None:
    store = RemoteWalMetadataStore()
    store.apply(node(2), (0, 10))
    store.apply(segment(1, entry(0, 9)), (0, 9))
    store.apply(segment(2, entry(10, 19)), (0, 11))
    assert [store.is_fenced(segment_id(n)) for n in (1, 2)] == [False, True]
    store.apply(node(2), (0, 10))
    assert store.counters["registrations"] == 2


def test_partitions_that_were_added_make_nothing_invalid_that_came_before() -> None:
    # Broker 1's records went to partition 1 of 2, and go to partition 3 of 4 since; partitions are read in any order.
    store = RemoteWalMetadataStore()
    store.apply(node(2), (3, 0))
    store.apply(node(1), (1, 0))
    store.apply(segment(1, entry(0, 9)), (1, 1))
    assert store.state_of(segment_id(1)) is FINISHED
    assert store.registration_of(1) == node(2)
    store.apply(segment(2, entry(10, 19)), (3, 1))
    assert store.is_fenced(segment_id(2))


def with_places(history: list[MetadataRecord]) -> list[tuple[MetadataRecord, tuple[int, int]]]:
    return [(record, (0, offset)) for offset, record in enumerate(history)]


@given(histories(), st.integers(0, 60), st.randoms(use_true_random=False))
def test_reading_a_topic_twice_from_anywhere_gives_the_same_state(
    history: list[MetadataRecord], at: int, rng: random.Random
) -> None:
    """As when a snapshot is older than what was read, or the reader starts anew."""
    at %= len(history) + 1
    placed = with_places([*history[:at], node(2), *history[at:]])
    once, again = RemoteWalMetadataStore(), RemoteWalMetadataStore()
    once.apply_all(placed)
    again.apply_all(placed)
    again.apply_all(placed[rng.randrange(len(placed)) :])
    assert picture(again) == picture(once)
    assert [again.is_fenced(segment_id(n)) for n in range(6)] == [once.is_fenced(segment_id(n)) for n in range(6)]


@given(histories(), st.randoms(use_true_random=False))
def test_registrations_do_not_make_unfenced_records_depend_on_order(
    history: list[MetadataRecord], rng: random.Random
) -> None:
    registrations: list[MetadataRecord] = [node(1), node(1), node(0), node(8, broker_id=4)]
    shuffled = history + registrations + [record for record in history if rng.random() < 0.5]
    rng.shuffle(shuffled)
    assert picture(store_of(*shuffled)) == picture(store_of(*history))


@given(histories())
def test_of_a_fenced_incarnation_only_deletions_are_taken(history: list[MetadataRecord]) -> None:
    store = store_of(node(2), *history)
    assert store.count_by_state()[STARTED].segments == store.count_by_state()[FINISHED].segments == 0
    deleted = {
        record.combined_segment_id
        for record in history
        if isinstance(record, RemoteWalCombinedLogSegmentMetadata) and record.state in (DELETING, DELETED)
    }
    assert all((store.state_of(segment_id(n)) is not None) == (segment_id(n) in deleted) for n in range(6))


@given(
    st.builds(
        RemoteWalNodeRegistration,
        broker_id=st.integers(0, 2**31 - 1),
        incarnation=st.integers(0, 2**48 - 1),
        caretaker_broker_id=st.integers(0, 2**31 - 1),
        event_timestamp_ms=st.integers(0, 2**43),
    )
)
def test_a_registration_is_read_as_it_was_written(record: RemoteWalNodeRegistration) -> None:
    key = serde.key_of(record)
    assert len(key) != 16, "never a segment's"
    assert serde.decode(key, serde.encode(record)) == record


def test_what_a_topic_that_began_anew_tells_is_not_fenced_by_what_was_registered_in_the_one_before() -> None:
    store = RemoteWalMetadataStore()
    store.apply(node(5), (1, 100))
    store.begin_anew()
    store.apply(segment(1, entry(0, 9)), (1, 0))
    assert store.state_of(segment_id(1)) is FINISHED
    assert store.knows_incarnation(1, 5)
    assert store.registration_of(1) == node(5)
    store.apply(node(5, caretaker=3, timestamp_ms=2), (1, 1))
    registered = store.registration_of(1)
    assert registered is not None
    assert registered.caretaker_broker_id == 3
    store.apply(segment(2, entry(10, 19)), (1, 2))
    assert store.is_fenced(segment_id(2))


def test_a_rebuilt_segment_counts_though_its_writers_successor_is_registered_before_it() -> None:
    store = RemoteWalMetadataStore()
    store.apply(node(9), (1, 0))
    rebuilt = RemoteWalRebuiltSegment(PublishedSegment.of(segment(1, entry(0, 9))))
    store.apply(serde.decode(serde.key_of(rebuilt), serde.encode(rebuilt)), (1, 1))
    assert store.state_of(segment_id(1)) is FINISHED
    assert len(store.entries_covering(ORDERS, 5)) == 1

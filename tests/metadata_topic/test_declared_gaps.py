"""Declared gaps: as records, in the store, and beside a log's leader epochs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.declared_gaps import DeclaredGap, DeclaredGaps, GapReason
from metadata_topic.records.gap_record import GAPS_KEY, MAX_GAPS, RemoteWalGapDeclaration
from metadata_topic.records.records import UnknownRecord
from metadata_topic.records.serde import decode, decode_or_keep_out, encode, key_of
from metadata_topic.records.states import DELETED, DELETING
from metadata_topic.store.released_offsets import ReleasedOffsets, ReleasedUpTo
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from tests.metadata_topic.metadata_strategies import (
    FINISHED,
    ORDERS,
    PAYMENTS,
    dead,
    entry,
    partitions,
    segment,
    segment_id,
)


@st.composite
def gaps(draw: st.DrawFn) -> DeclaredGap:
    begin = draw(st.integers(0, 2**48))
    return DeclaredGap(
        draw(partitions),
        begin,
        begin + draw(st.integers(0, 2**30)),
        draw(st.integers(-1, 2**31 - 1)),
        draw(st.sampled_from(GapReason)),
    )


declarations = st.builds(
    RemoteWalGapDeclaration,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**48),
    st.integers(0, 2**48),
    st.lists(gaps(), max_size=5).map(tuple),
    st.integers(0, 2**43),
)
ONE = RemoteWalGapDeclaration(3, 7, 0, (DeclaredGap(ORDERS, 10, 20, 4, GapReason.RETENTION),), 1)


@given(declarations)
def test_a_declaration_is_read_as_it_was_written(record: RemoteWalGapDeclaration) -> None:
    key = key_of(record)
    assert key.startswith(b"rwm:")
    assert len(key) != 16
    assert decode(key, encode(record)) == record


@given(declarations, st.data())
def test_no_truncated_or_flipped_declaration_crashes_the_reader(
    record: RemoteWalGapDeclaration, data: st.DataObject
) -> None:
    key, value = key_of(record), encode(record)
    at = data.draw(st.integers(0, len(value) - 1))
    assert isinstance(decode_or_keep_out(key, value[:at]), UnknownRecord)
    decode_or_keep_out(key, value[:at] + bytes([value[at] ^ data.draw(st.integers(1, 255))]) + value[at + 1 :])


def test_a_reason_that_is_not_known_is_refused() -> None:
    found = decode_or_keep_out(key_of(ONE), encode(ONE)[:-1] + b"\x63")
    assert found == UnknownRecord("gap_reason", "gap_reason: reason 99 is not known")


def test_a_declaration_under_another_key_or_beyond_the_bound_is_refused() -> None:
    found = decode_or_keep_out(GAPS_KEY + b"x" * 20, encode(ONE))
    assert isinstance(found, UnknownRecord)
    assert found.reason == "key_mismatch"
    with pytest.raises(ValueError, match="at most"):
        encode(RemoteWalGapDeclaration(1, 1, 1, ONE.gaps * (MAX_GAPS + 1), 1))


def test_a_gap_counts_up_to_where_a_newer_epoch_than_the_declarers_begins() -> None:
    [gap] = ONE.gaps
    assert gap.end_in(LeaderEpochs([(0, 0), (4, 5)])) == 20
    assert gap.end_in(LeaderEpochs([(0, 0), (4, 5), (5, 12), (6, 15)])) == 12
    assert gap.end_in(LeaderEpochs([(0, 0), (9, 30)])) == 20


def test_the_order_and_repetition_of_declarations_do_not_matter_and_the_oldest_partitions_go() -> None:
    found = [DeclaredGap(p, n, n + 5, 1, GapReason.RETENTION) for n in (0, 10) for p in (ORDERS, PAYMENTS)]
    one, other = DeclaredGaps(found + found), DeclaredGaps(found[::-1])
    assert one.of(ORDERS) == other.of(ORDERS) == found[::2]
    assert set(one) == set(found)
    bounded = DeclaredGaps(found, kept_max=3)
    assert bounded.of(ORDERS) == []
    assert bounded.of(PAYMENTS) == found[1::2]


def test_released_offsets_are_the_highest_by_partition_and_epoch() -> None:
    released = ReleasedOffsets([ReleasedUpTo(PAYMENTS, 2, 7)])
    store = RemoteWalMetadataStore()
    for sequence, entries in enumerate(
        [(entry(0, 9), entry(5, 5, partition=PAYMENTS, epoch=2)), (entry(10, 19, epoch=1),), (entry(3, 4),)]
    ):
        store.apply(segment(sequence, *entries))
        known = store.published_segment(segment_id(sequence))
        assert known is not None
        entry_block = known.entry_block
        released.add(entry_block)
    released.add(b"")
    assert sorted(released.all()) == [(ORDERS, 0, 10, 0), (ORDERS, 1, 20, 0), (PAYMENTS, 2, 7, 0)]
    assert released.up_to(ORDERS, 5) == 0
    bounded = ReleasedOffsets(released.all(), kept_max=1)
    bounded.add(entry_block)
    assert len(bounded.all()) == 1


@pytest.mark.parametrize("states", [(DELETING,), (DELETING, DELETED)])
def test_the_store_remembers_up_to_where_an_object_was_released(
    states: tuple[RemoteLogSegmentState, ...],
) -> None:
    store = RemoteWalMetadataStore()
    chain = LeaderEpochs([(0, 0), (1, 15)])
    store.apply(segment(0, entry(0, 9)))
    store.apply(segment(1, entry(10, 19)))
    assert store.released_up_to(ORDERS, chain) == 0
    for state in states:
        store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id(0), (), state, 1))
    assert store.released_up_to(ORDERS, chain) == 10
    assert store.stored_ranges(ORDERS, chain) == [(10, 15)]
    for state in states:
        store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id(1), (), state, 1))
    assert store.released_up_to(ORDERS, chain) == 15, "what the log lost to a newer epoch was not released from it"
    assert store.state_of(segment_id(2)) is None
    assert FINISHED not in states


def test_an_object_that_was_found_missing_releases_nothing() -> None:
    store = RemoteWalMetadataStore()
    chain = LeaderEpochs([(0, 0)])
    for number, (first, last) in enumerate([(0, 9), (10, 19), (20, 29)]):
        store.apply(segment(number, entry(first, last)))
    store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id(1), (), DELETED, 1))
    store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id(1), (), DELETING, 2))  # whoever comes late
    assert store.state_of(segment_id(1)) is DELETED
    assert store.stored_ranges(ORDERS, chain) == [(0, 10), (20, 30)]
    assert store.released_up_to(ORDERS, chain) == 0


def test_of_an_object_with_dead_records_those_that_lived_count_as_released() -> None:
    """Else a log whose younger objects hold what lies before them is recovered up to there, and no further."""
    store = RemoteWalMetadataStore()
    store.apply(segment(0, entry(5, 9), entry(0, 3, epoch=2), entry(0, 4, partition=PAYMENTS)))
    store.apply(dead(0, entry(6, 9), entry(0, 3, epoch=2)))
    store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id(0), (), DELETING, 1))
    assert sorted(one[:3] for one in store.image().released) == [(ORDERS, 0, 6), (PAYMENTS, 0, 5)]


def test_a_snapshot_holds_no_gap_that_the_topic_has_not_told_of() -> None:
    store = RemoteWalMetadataStore()
    store.declares(ONE)
    assert store.declared_gaps(ORDERS) == list(ONE.gaps), "who declares it knows it"
    assert store.image().gaps == [], "lost with the process, it is declared anew"
    store.apply(ONE)
    assert store.declared_gaps(ORDERS) == store.image().gaps == list(ONE.gaps)


@given(st.permutations([(0, 5), (5, 9), (9, 9), (20, 30), (12, 15), (25, 40)]), st.integers(1, 6))
def test_what_was_not_wanted_is_one_gap_where_its_pieces_touch_in_whatever_order_they_came(
    pieces: list[tuple[int, int]], twice: int
) -> None:
    known = DeclaredGaps()
    told = [DeclaredGap(ORDERS, *piece, 1, GapReason.NOT_WANTED) for piece in pieces]
    known.add([*told, *told[:twice]])
    assert [(gap.from_offset, gap.to_offset) for gap in known.of(ORDERS)] == [(0, 9), (12, 15), (20, 40)]


def test_what_was_not_wanted_stays_apart_from_losses_and_from_other_leaders_words() -> None:
    known = DeclaredGaps()
    lost = DeclaredGap(ORDERS, 5, 9, 1, GapReason.RETENTION)
    told = [DeclaredGap(ORDERS, 0, 5, epoch, GapReason.NOT_WANTED) for epoch in (1, 2)]
    known.add([lost, *told])
    assert known.of(ORDERS) == [*told, lost]
    assert [gap.reason.is_hole for gap in known.of(ORDERS)] == [True, True, True]
    assert [gap.reason.is_loss for gap in known.of(ORDERS)] == [False, False, True]


def test_many_pieces_of_what_was_not_wanted_take_the_room_of_one() -> None:
    known = DeclaredGaps(kept_max=3)
    known.add(DeclaredGap(PAYMENTS, 0, 1, 1, GapReason.RETENTION) for _ in range(1))
    known.add(DeclaredGap(ORDERS, at, at + 1, 1, GapReason.NOT_WANTED) for at in range(1000))
    assert len(known.of(PAYMENTS)) == 1
    assert len(known.of(ORDERS)) == 1

"""What the long-term tier holds: never more than a plain model of it, offset by offset, finds there."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405 import tiered_offsets
from metadata_topic.kip405.kip405 import (
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from metadata_topic.kip405.tiered_offsets import TieredOffsets, TieredRange
from metadata_topic.records.records import UnknownRecord
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from plugin.segment_metadata import RemoteLogSegmentState

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
OTHER = TopicIdPartition(TopicId(b"orders".ljust(16)), 1)
ONE_LEADER = LeaderEpochs([(0, 0)])

Segment = tuple[int, int, tuple[tuple[int, int], ...]]


def started(number: int, start: int, end: int, *epochs: tuple[int, int]) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(ORDERS, number.to_bytes(16, "big"))
    return RemoteLogSegmentMetadata(
        segment_id, "orders", start, end, 1, 0, 0, epochs or ((0, start),), 100, None, STARTED
    )


def update(number: int, state: RemoteLogSegmentState = FINISHED) -> RemoteLogSegmentMetadataUpdate:
    segment_id = RemoteLogSegmentId(ORDERS, number.to_bytes(16, "big"))
    return RemoteLogSegmentMetadataUpdate(segment_id, "orders", 1, 0, None, state)


def copied(
    number: int, start: int, end: int, *epochs: tuple[int, int]
) -> list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate]:
    return [started(number, start, end, *epochs), update(number)]


NOTHING_TIERED = -1


def up_to(offsets: TieredOffsets, log: LeaderEpochs = ONE_LEADER) -> int:
    """The end of the first range without a gap."""
    ranges = offsets.tiered_ranges(ORDERS, log)
    return ranges[0].last_offset if ranges else NOTHING_TIERED


class Tier(TieredOffsets):
    def __init__(self, *records: RemoteLogMetadata) -> None:
        super().__init__()
        self.take(*records)

    def take(self, *records: RemoteLogMetadata) -> "Tier":
        self.apply_all(records)
        return self

    def up_to(self, *epochs: tuple[int, int]) -> int:
        return up_to(self, LeaderEpochs(epochs or ((0, 0),)))


def test_an_epoch_begins_where_the_first_finished_segment_has_it() -> None:
    tier = Tier(*copied(1, 10, 19, (2, 0), (3, 15)), *copied(2, 20, 29, (3, 20)), started(3, 30, 39, (4, 30)))
    assert tier.epoch_starts(ORDERS) == {2: 10, 3: 15}
    assert tier.take(update(1, DELETING)).epoch_starts(ORDERS) == {3: 20}
    assert tier.epoch_starts(OTHER) == {}


def test_an_epochs_ranges_end_at_what_is_missing() -> None:
    tier = Tier(*copied(1, 10, 19, (2, 0), (3, 15)), *copied(2, 20, 29, (3, 20)), *copied(3, 40, 49, (3, 40)))
    assert tier.epoch_ranges(ORDERS) == {2: (TieredRange(10, 14),), 3: (TieredRange(15, 29), TieredRange(40, 49))}
    assert tier.take(update(2, DELETING)).epoch_ranges(ORDERS)[3] == (TieredRange(15, 19), TieredRange(40, 49))


def test_nothing_beyond_a_gap_counts() -> None:
    tier = Tier(*copied(1, 0, 9), started(2, 10, 19), *copied(3, 20, 29))
    assert tier.up_to() == 9
    assert tier.tiered_ranges(ORDERS, ONE_LEADER) == (TieredRange(0, 9), TieredRange(20, 29))
    assert tier.is_tiered(ORDERS, ONE_LEADER, 0, TieredRange(20, 29))
    assert not tier.is_tiered(ORDERS, ONE_LEADER, 0, TieredRange(9, 20))
    assert tier.take(update(2)).up_to() == 29


def test_what_an_unclean_election_threw_away_never_counts() -> None:
    # Epoch 0's leader copied up to 14. Epoch 2's leader had its records only up to 5.
    tier = Tier(*copied(1, 0, 9), *copied(2, 10, 14))
    now = (0, 0), (2, 6)
    assert tier.up_to(*now) == 5
    assert not tier.is_tiered(ORDERS, LeaderEpochs(now), 0, TieredRange(0, 9))
    assert not tier.is_tiered(ORDERS, LeaderEpochs(now), 2, TieredRange(6, 9))
    tier.take(*copied(3, 0, 11, (0, 0), (2, 6)))
    assert tier.up_to(*now) == 11
    assert tier.is_tiered(ORDERS, LeaderEpochs(now), 2, TieredRange(6, 11))


def test_states_without_the_segment_that_retention_cut_off_are_passed_over() -> None:
    tier = Tier(update(1), update(2, DELETING), started(2, 0, 9), update(2))
    assert tier.up_to() == NOTHING_TIERED
    assert tier.counters == {"without_start": 2, "after_delete": 2}


def test_what_is_deleted_stays_deleted() -> None:
    tier = Tier(*copied(1, 0, 9), update(1, DELETING), update(1))
    assert tier.up_to() == NOTHING_TIERED
    tier.take(update(1, DELETED), *copied(1, 0, 9))
    assert tier.up_to() == NOTHING_TIERED


def test_a_partition_whose_topic_is_deleted_is_forgotten_at_once_and_for_good() -> None:
    tier = Tier(*copied(1, 0, 9))
    assert tier.up_to() == 9
    mark = RemotePartitionDeleteMetadata(ORDERS, "orders", 1, 0, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
    tier.take(mark, *copied(2, 10, 19))
    assert tier.up_to() == NOTHING_TIERED


def test_only_a_bounded_number_of_deletions_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiered_offsets, "REMEMBERED_DELETIONS", 3)
    tier = Tier(*(record for n in range(5) for record in (*copied(n, 0, 9), update(n, DELETED))))
    tier.take(*copied(4, 0, 9))
    assert tier.up_to() == NOTHING_TIERED
    tier.take(*copied(0, 0, 9))
    assert tier.up_to() == 9


def test_unknown_records_are_counted_and_change_nothing() -> None:
    tier = Tier(*copied(1, 0, 9), UnknownRecord("version", ""), UnknownRecord("truncated", ""))
    assert tier.up_to() == 9
    assert tier.counters == {"unknown_version": 1, "unknown_truncated": 1}


TOP = 24


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    epochs = sorted(draw(st.sets(st.integers(0, 4), min_size=1, max_size=4)))
    starts = sorted(draw(st.lists(st.integers(0, TOP), min_size=len(epochs), max_size=len(epochs))))
    return tuple(zip(epochs, starts, strict=True))


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    start = draw(st.integers(0, TOP))
    end = draw(st.integers(start, min(start + 10, TOP)))
    epochs = sorted(draw(st.sets(st.integers(0, 4), min_size=1, max_size=3)))
    offsets = sorted([start, *(draw(st.integers(start, end)) for _ in epochs[1:])])
    return start, end, tuple(zip(epochs, offsets, strict=True))


@st.composite
def histories(draw: st.DrawFn) -> list[RemoteLogMetadata]:
    """Several segments' steps, each segment's in order, mixed."""
    waiting: list[list[RemoteLogMetadata]] = []
    for number, (start, end, epochs) in enumerate(draw(st.lists(segments(), min_size=1, max_size=7))):
        steps: list[RemoteLogMetadata] = [started(number, start, end, *epochs)]
        states = draw(
            st.sampled_from(([], [FINISHED], [FINISHED, DELETING], [FINISHED, DELETING, DELETED], [DELETING]))
        )
        waiting.append(steps + [update(number, state) for state in states])
    history = []
    while waiting:
        chosen = draw(st.integers(0, len(waiting) - 1))
        history.append(waiting[chosen].pop(0))
        waiting = [steps for steps in waiting if steps]
    return history


def epoch_of(offset: int, epochs: tuple[tuple[int, int], ...]) -> int | None:
    return max((epoch for epoch, start in epochs if start <= offset), default=None)


def held_offsets(history: list[RemoteLogMetadata], chain: tuple[tuple[int, int], ...]) -> set[int]:
    """The last state in the topic's order decides about each segment."""
    known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
    for record in history:
        if isinstance(record, RemoteLogSegmentMetadata):
            known[record.segment_id] = record
        elif isinstance(record, RemoteLogSegmentMetadataUpdate):
            known[record.segment_id] = replace(known[record.segment_id], state=record.state)
    return {
        offset
        for segment in known.values()
        if segment.state is FINISHED
        for offset in range(segment.start_offset, segment.end_offset + 1)
        if epoch_of(offset, segment.leader_epochs) == epoch_of(offset, chain)
    }


def offsets_of(ranges: tuple[TieredRange, ...]) -> set[int]:
    return {offset for held in ranges for offset in range(held.first_offset, held.last_offset + 1)}


@given(history=histories(), chain=chains())
def test_the_tier_is_what_the_model_says_after_every_record(
    history: list[RemoteLogMetadata], chain: tuple[tuple[int, int], ...]
) -> None:
    tier, log = Tier(), LeaderEpochs(chain)
    for count, record in enumerate(history, 1):
        tier.take(record)
        held = held_offsets(history[:count], chain)
        assert offsets_of(tier.tiered_ranges(ORDERS, log)) == held
        up_to = tier.up_to(*chain)
        if held:
            assert set(range(min(held), up_to + 1)) <= held
            assert up_to + 1 not in held
        else:
            assert up_to == NOTHING_TIERED


@given(history=histories(), chain=chains(), seed=st.integers(0, 2**32))
def test_whatever_the_order_and_however_often_records_come_the_tier_never_holds_more(
    history: list[RemoteLogMetadata], chain: tuple[tuple[int, int], ...], seed: int
) -> None:
    mixed = history * 2
    random.Random(seed).shuffle(mixed)
    ranges = Tier(*mixed).tiered_ranges(ORDERS, LeaderEpochs(chain))
    assert offsets_of(ranges) <= held_offsets(history, chain)


@given(history=histories(), chain=chains(), data=st.data())
def test_whatever_records_retention_cuts_off_the_tier_never_holds_more(
    history: list[RemoteLogMetadata], chain: tuple[tuple[int, int], ...], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    ranges = Tier(*history[cut:]).tiered_ranges(ORDERS, LeaderEpochs(chain))
    assert offsets_of(ranges) <= held_offsets(history, chain)

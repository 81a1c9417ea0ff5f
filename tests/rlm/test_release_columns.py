"""Judging by columns says what judging entry by entry says."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import encode_entries
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.lifecycle.release import (
    NEVER,
    ClusterView,
    DeadTails,
    LongTermTier,
    Release,
    ReleaseJudge,
    Tiers,
    release_of,
)

TOPICS = [TopicId(bytes([number]) * 16) for number in range(3)]
PARTITIONS = st.builds(TopicIdPartition, st.sampled_from(TOPICS), st.integers(0, 3))
OFFSETS = st.integers(0, 12)
EPOCHS = st.integers(-1, 2)


@dataclass(frozen=True)
class Tier:
    """Holds a range of one epoch of each partition, and whole topics beside that."""

    ranges: dict[TopicIdPartition, tuple[int, int, int]]
    """Leader epoch, first and last offset."""
    topics: frozenset[TopicId]
    waiting: frozenset[TopicId]

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        held = self.ranges.get(entry.topic_id_partition)
        return entry.topic_id_partition.topic_id in self.topics or (
            held is not None
            and held[0] == entry.leader_epoch
            and held[1] <= entry.first_offset
            and entry.last_offset <= held[2]
        )

    def waits_for(self, topic_id: TopicId, /) -> bool:
        return topic_id in self.waiting


@st.composite
def entries(draw: st.DrawFn) -> RemoteLogSegmentMetadataEntry:
    first = draw(OFFSETS)
    return RemoteLogSegmentMetadataEntry(
        draw(PARTITIONS), draw(EPOCHS), first, first + draw(st.integers(0, 4)), 0, 10, draw(st.integers(0, 9))
    )


SOME_TOPICS = st.frozensets(st.sampled_from(TOPICS))
VIEWS = st.builds(
    ClusterView,
    living=SOME_TOPICS,
    gone_before=SOME_TOPICS,
    strangers_are_gone=st.booleans(),
    missing=SOME_TOPICS,
    retention_ms=st.dictionaries(st.sampled_from(TOPICS), st.sampled_from([NEVER, 0, 50])),
    lagging=st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 3))),
    lagging_retention_ms=st.dictionaries(st.sampled_from(TOPICS), st.sampled_from([NEVER, 50, 90])),
    log_start=st.dictionaries(PARTITIONS, OFFSETS),
)
TIERS = st.builds(Tier, st.dictionaries(PARTITIONS, st.tuples(EPOCHS, OFFSETS, OFFSETS)), SOME_TOPICS, SOME_TOPICS)
DEAD = st.dictionaries(st.tuples(PARTITIONS, EPOCHS), OFFSETS)


def one_by_one(
    block: list[RemoteLogSegmentMetadataEntry], age_ms: int, view: ClusterView, tier: LongTermTier, dead: DeadTails
) -> Release | None:
    reason = None
    for entry in block:
        reason = release_of(entry, age_ms, view, tier)
        if reason is None:
            dead_from = dead.get((entry.topic_id_partition, entry.leader_epoch), entry.last_offset + 1)
            living = replace(entry, last_offset=min(entry.last_offset, dead_from - 1))
            is_dead = dead_from <= entry.first_offset
            reason = Release.DEAD if is_dead else release_of(living, age_ms, view, tier)
            if reason is None:
                return None
    return reason


@given(st.lists(st.lists(entries(), max_size=8), max_size=3), VIEWS, st.lists(TIERS, max_size=2), DEAD)
def test_columns_say_what_the_entries_say(
    blocks: list[list[RemoteLogSegmentMetadataEntry]], view: ClusterView, tiers: list[Tier], dead: DeadTails
) -> None:
    # The same judges for all: what they have gathered for one object serves the next.
    by_columns, small = (
        ReleaseJudge(view, Tiers(tiers), few_entries=0),
        ReleaseJudge(view, Tiers(tiers), few_entries=99),
    )
    for block in blocks:
        encoded = encode_entries(tuple(block))
        for age_ms in (0, 50, 90):
            expected = one_by_one(block, age_ms, view, Tiers(tiers), dead)
            assert by_columns.release(encoded, age_ms, dead) == expected
            assert small.release(encoded, age_ms, dead) == expected
    assert by_columns.topics_asked == {entry.topic_id_partition.topic_id for block in blocks for entry in block}


def test_a_partition_number_beyond_all_reason_is_judged_and_allocates_nothing() -> None:
    far = RemoteLogSegmentMetadataEntry(TopicIdPartition(TOPICS[0], 2**31 - 1), 0, 0, 9, 0, 10, 0)
    view = ClusterView(living=frozenset(TOPICS), log_start={far.topic_id_partition: 10})
    assert ReleaseJudge(view, Tiers(), few_entries=0).release(encode_entries((far,)), 0, {}) is Release.BELOW_LOG_START

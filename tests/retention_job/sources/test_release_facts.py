"""How long an entry is kept is what agents would say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from retention_job.sources.release_facts import FOREVER, ReleaseFacts
from rlm.lifecycle.release import ClusterView, Tiers, release_of

TOPICS = [TopicId(bytes([number]) * 16) for number in range(4)]
CASES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 20), st.integers(0, 200)), min_size=1, max_size=20
)


@given(CASES)
def test_an_object_may_go_when_agents_would_let_it_go(cases: list[tuple[int, int, int, int]]) -> None:
    retention = {TOPICS[0]: 100, TOPICS[1]: -1, TOPICS[2]: 0}  # the fourth is gone
    starts = {(TOPICS[0], 1): 10, (TOPICS[1], 2): 5}
    view = ClusterView(
        living=frozenset(retention),
        strangers_are_gone=True,
        retention_ms=retention,
        log_start={TopicIdPartition(*where): offset for where, offset in starts.items()},
    )
    facts = ReleaseFacts.of(
        {bytes(topic): kept for topic, kept in retention.items()},
        {(bytes(topic), number): at for (topic, number), at in starts.items()},
    )
    topic, partition, offset, age_ms = (np.array(values, dtype=np.int64) for values in zip(*cases, strict=True))
    kept = facts.retention_of([bytes(one) for one in TOPICS], topic, partition, offset)
    for index in range(len(cases)):
        entry = RemoteLogSegmentMetadataEntry(
            TopicIdPartition(TOPICS[topic[index]], int(partition[index])), 0, 0, int(offset[index]), 0, 1, 0
        )
        is_released = release_of(entry, int(age_ms[index]), view, Tiers()) is not None
        assert is_released == bool(age_ms[index] >= kept[index])


def test_unknown_retentions_are_kept_for_ever() -> None:
    facts = ReleaseFacts.of({TOPICS[0]: None}, {})
    zero = np.zeros(1, dtype=np.int64)
    assert facts.retention_of([TOPICS[0]], zero, zero, zero).tolist() == [FOREVER]

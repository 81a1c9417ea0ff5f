"""Where leader epochs began that retention has taken from a log, as objects tell."""

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.states import DELETING
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import RemoteWalCombinedLogSegmentMetadata
from tests.metadata_topic.metadata_strategies import ORDERS, entry, segment, segment_id

Stored = tuple[int, int, int]
"""Leader epoch, first offset, last offset."""


@pytest.mark.parametrize(
    ("stored", "released", "head", "older"),
    [
        ([], [], (5, 100), []),
        ([(5, 100, 120)], [], (5, 100), []),
        ([(5, 80, 120)], [], (5, 100), [(5, 80)]),
        ([(2, 0, 9), (3, 20, 29), (5, 100, 120)], [], (5, 100), [(2, 0), (3, 20), (5, 100)]),
        ([(2, 30, 39), (3, 20, 29)], [], (5, 100), [(3, 20), (5, 100)]),  # all of epoch 2 was overwritten
        ([(2, 0, 49), (3, 20, 29)], [], (5, 100), [(2, 0), (3, 20), (5, 100)]),
        ([(2, 0, 9)], [(3, 10, 29)], (5, 100), [(2, 0), (3, 10), (5, 100)]),
        ([(2, 0, 9)], [(3, 5, 7)], (5, 100), [(2, 0), (5, 100)]),
        ([(7, 0, 9)], [], (5, 100), []),  # a newer leader's, of which this log has nothing
    ],
)
def test_a_chain_goes_on_below_its_head_as_far_as_objects_tell(
    stored: list[Stored], released: list[Stored], head: tuple[int, int], older: list[tuple[int, int]]
) -> None:
    store = RemoteWalMetadataStore()
    for sequence, (epoch, first, last) in enumerate([*stored, *released]):
        store.apply(segment(sequence, entry(first, last, epoch=epoch)))
        if sequence >= len(stored):
            store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id(sequence), (), DELETING, 1))
    newer = (6, 130)
    found = store.with_older_epochs(ORDERS, LeaderEpochs([head, newer]))
    assert found == LeaderEpochs([*(older or [head]), newer])


def test_a_log_without_leader_epochs_stays_without() -> None:
    store = RemoteWalMetadataStore()
    store.apply(segment(0, entry(0, 9)))
    assert store.with_older_epochs(ORDERS, LeaderEpochs()) == LeaderEpochs()

"""The chain of epochs."""

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs


def test_the_epoch_of_an_offset() -> None:
    chain = LeaderEpochs([(2, 100), (5, 200), (6, 300)])
    assert [chain.epoch_at(offset) for offset in (99, 100, 199, 200, 299, 300, 10_000)] == [
        None, 2, 2, 5, 5, 6, 6
    ]  # fmt: skip


def test_where_an_epoch_ends() -> None:
    chain = LeaderEpochs([(2, 100), (5, 200), (6, 300)])
    assert chain.end_of(2) == 200
    assert chain.end_of(6) is None
    assert chain.end_of(1) == 100, "older than the chain, whose head went with the log's start"
    assert chain.end_of(4) == 0, "all that this leader wrote was truncated"
    assert chain.end_of(7) is None, "newer than the chain: unknown"
    assert LeaderEpochs([]).end_of(0) is None


@pytest.mark.parametrize("pairs", [[(2, 0), (2, 5)], [(2, 0), (1, 5)], [(1, 5), (2, 4)]])
def test_a_chain_that_does_not_ascend_is_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        LeaderEpochs(pairs)

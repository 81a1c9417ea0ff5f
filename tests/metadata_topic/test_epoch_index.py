"""The index of one epoch's runs, and the chain of epochs, against a plain search."""

import random

import pytest

from metadata_topic.epoch_index import EpochIndex, Run
from metadata_topic.leader_epochs import LeaderEpochChain


@pytest.mark.parametrize("seed", range(5))
def test_overlapping_runs_are_found_while_most_of_them_are_removed(seed: int) -> None:
    rng = random.Random(seed)
    runs = [Run(first := rng.randrange(1000), first + rng.choice([0, 3, 40, 400]), 0, n) for n in range(300)]
    index = EpochIndex()
    for run in runs:
        index.add(run)
    rng.shuffle(runs)
    while runs:
        assert index.remove(runs.pop())
        if len(runs) % 10:
            continue
        assert len(index) == len(runs)
        for offset in range(0, 1400, 37):
            covering = [run for run in runs if run.first_offset <= offset <= run.last_offset]
            assert sorted(index.covering(offset)) == sorted(covering)
            reaching = [run for run in runs if run.last_offset >= offset]
            assert sorted(index.reaching(offset)) == sorted(reaching)


def test_what_is_not_there_is_not_removed() -> None:
    index = EpochIndex()
    index.add(Run(5, 9, 0, 1))
    assert not index.remove(Run(5, 9, 0, 2))
    assert not index.remove(Run(5, 8, 0, 1))
    assert len(index) == 1


def test_the_epoch_of_an_offset() -> None:
    chain = LeaderEpochChain([(2, 100), (5, 200), (6, 300)])
    assert [chain.epoch_at(offset) for offset in (99, 100, 199, 200, 299, 300, 10_000)] == [
        None, 2, 2, 5, 5, 6, 6
    ]  # fmt: skip


def test_where_an_epoch_ends() -> None:
    chain = LeaderEpochChain([(2, 100), (5, 200), (6, 300)])
    assert chain.end_of(2) == 200
    assert chain.end_of(6) is None
    assert chain.end_of(1) == 100, "older than the chain, whose head went with the log's start"
    assert chain.end_of(4) == 0, "all that this leader wrote was truncated"
    assert chain.end_of(7) is None, "newer than the chain: unknown"
    assert LeaderEpochChain([]).end_of(0) is None


@pytest.mark.parametrize("pairs", [[(2, 0), (2, 5)], [(2, 0), (1, 5)], [(1, 5), (2, 4)]])
def test_a_chain_that_does_not_ascend_is_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        LeaderEpochChain(pairs)

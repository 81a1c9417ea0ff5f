"""What brokers carry, by two samples of a cluster."""

from cli.costs.cluster_samples import partition_loads
from recovery.reassignment.plan import Load, TopicPartition
from retention_job.cost.estimate import Log, Sample

RACKS = {1: "a", 2: "b"}


def sample(at_s: float, end: int, committed: int) -> Sample:
    return Sample(at_s, RACKS, {("t", 0): Log(1, (1, 2), 0, end, end * 100)}, {"group": {("t", 0): committed}})


def test_followers_and_groups_read_what_a_leader_gives_out() -> None:
    loads = partition_loads(sample(0.0, 1000, 500), sample(10.0, 3000, 1500))
    assert loads == {TopicPartition("t", 0): Load(20_000.0, 20_000.0 + 10_000.0, 300_000.0)}


def test_a_partition_that_is_new_or_was_made_again_has_no_negative_load() -> None:
    [load] = partition_loads(sample(0.0, 1000, 900), sample(10.0, 10, 0)).values()
    assert load == Load(0.0, 1.0, 1000.0)


def test_records_count_with_the_size_that_they_were_appended_with() -> None:
    """Of a compacted log little is left, and its offsets go on."""

    def compacted(at_s: float, end: int, committed: int) -> Sample:
        logs = {("t", 0): Log(1, (1, 2), 0, end, 5000 + (end - 1_000_000) * 100)}
        return Sample(at_s, RACKS, logs, {"group": {("t", 0): committed}})

    [load] = partition_loads(compacted(0.0, 1_001_000, 500), compacted(10.0, 1_003_000, 1500)).values()
    assert load == Load(20_000.0, 20_000.0 + 10_000.0, 305_000.0)

"""Leaders die and others are elected while uploads are under way."""

import pytest

from tests.cluster.replica_moves import leader_of, move_leader
from tests.cluster.script import PLAIN, TRANSACTIONS, ZSTD, Script


@pytest.mark.kafka_core
def test_leaders_killed_while_uploads_are_slow(script: Script) -> None:
    # a slow store: each upload is still under way when its leader dies; what it held is dead or doubled, never wrong
    script.create_topic(partitions=3)
    script.produce(PLAIN, ZSTD, TRANSACTIONS)
    script.switch_all("put-latency-ms", "200")
    script.expect_records_to_flow()
    for _ in range(2):
        victim = leader_of(script.cluster.admin, script.topic)
        assert victim is not None
        script.cluster.broker(victim).kill()
        script.cluster.admin.wait_for_leader(script.topic, other_than=victim)
        script.expect_records_to_flow()
        script.cluster.start_broker(victim)
        script.cluster.admin.wait_for_full_isr(script.topic)
        script.expect_records_to_flow()
    script.clear_switches()
    script.expect_promises()


@pytest.mark.thorough
def test_leaders_moved_to_and_fro_while_uploads_are_slow(script: Script) -> None:
    # each move begins a leader epoch; objects of the one before stay under way
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, ZSTD)
    script.switch_all("put-latency-ms", "200")
    for leader in (2, 3, 1, 2):
        move_leader(script.cluster.admin, script.topic, 0, leader)
        script.expect_records_to_flow()
    script.clear_switches()
    script.expect_promises()

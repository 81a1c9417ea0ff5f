"""Leaders die and others are elected while uploads are under way. `LEADER_MOVED` of `tests.soak` moves them."""

import pytest

from tests.cluster.replica_moves import leader_of
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

"""A follower comes back after a long time: what it missed is read from objects, not sent across zones."""

import pytest

from local_cluster.polling import wait_until
from local_cluster.workload.replica_comparison import compare_replicas
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters, describe
from tests.cluster.replica_moves import wait_for_isr
from tests.cluster.script import PATIENCE_S, Script

LEADER, OTHER, FOLLOWER = 1, 2, 3

PEER_BYTES = "remote_wal_peer_bytes_total"
FOUND_BYTES = "remote_wal_catch_up_found_bytes_total"
RECORD_SIZE = 1000


@pytest.mark.gate
def test_a_follower_that_missed_much_reads_it_from_objects_of_an_earlier_leader(agent_script: Script) -> None:
    # 3's agent stands still -> 10 MB are produced (acks=all: 3 leaves the ISR, 2 has all) and uploaded -> the leader
    # dies, 2 is elected, which uploaded nothing -> 3's agent goes on
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[LEADER, OTHER, FOLLOWER]])
    script.cut_off_follower(FOLLOWER)
    produce_and_upload(script, 10_000, acks="all")
    wait_for_isr(cluster.admin, script.topic, [LEADER, OTHER], timeout_s=PATIENCE_S)
    cluster.broker(LEADER).kill()
    cluster.admin.wait_for_leader(script.topic, expected=OTHER)
    wait_until(
        lambda: any(
            led["topic"] == script.topic and led["log_end_offset"] for led in describe(cluster, OTHER)["partitions"]
        ),
        "the agent of the new leader has taken the partition on",
        PATIENCE_S,
    )

    counters = AgentCounters(cluster)
    script.reconnect_follower(FOLLOWER)
    wait_for_isr(cluster.admin, script.topic, [OTHER, FOLLOWER], timeout_s=PATIENCE_S)
    # Beside another cluster on a full machine some reads come too late, and go inline.
    expect_caught_up_by_objects(counters, 10_000, share=0.5)
    cluster.start_broker(LEADER)
    cluster.admin.wait_for_full_isr(script.topic, timeout_s=PATIENCE_S)
    expect_identical(script, 10_000)


def produce_and_upload(script: Script, records: int, acks: str) -> None:
    """On return, objects hold all of it, and their metadata is published."""
    script.cluster.tools.produce(script.topic, records=records, record_bytes=RECORD_SIZE, config={"acks": acks})

    def stored() -> bool:
        known = [led for led in script.partitions_of_agents() if led["uploaded_offset"] == led["log_end_offset"]]
        is_published = not any(describe(script.cluster, broker_id)["metadata_pending"] for broker_id in (LEADER, OTHER))
        return is_published and sum(int(str(led["uploaded_offset"])) for led in known) >= records

    wait_until(stored, "what was produced is stored", PATIENCE_S)


def expect_caught_up_by_objects(counters: AgentCounters, records: int, share: float = 0.9) -> None:
    """At least this share of the record bytes was linked, as it was found again in objects."""
    missed_bytes = records * RECORD_SIZE
    faults = counters.grown_labels("remote_wal_faults_total", "reason")
    assert counters.growth(RECORD_BYTES, path="linked") >= share * missed_bytes, faults
    assert counters.growth(FOUND_BYTES) >= share * missed_bytes, faults
    assert counters.growth(PEER_BYTES, role="leader") <= (1 - share) * missed_bytes * 1.1, faults


def expect_identical(script: Script, records: int) -> None:
    """All replicas have the same bytes, as many as were produced."""
    comparison = compare_replicas(script.cluster, script.topic, PATIENCE_S)
    assert comparison.identical, str(comparison)
    assert comparison.compared_bytes >= records * RECORD_SIZE

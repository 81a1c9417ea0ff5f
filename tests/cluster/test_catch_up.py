"""A follower comes back after a long time: what it missed is read from objects, not sent across the border."""

from local_cluster.polling import wait_until
from local_cluster.replica_comparison import compare_replicas
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters
from tests.cluster.script import PATIENCE_S, Script

LEADER, OTHER, FOLLOWER = 1, 2, 3

PEER_BYTES = "remote_wal_peer_bytes_total"
FOUND_BYTES = "remote_wal_catch_up_found_bytes_total"
READ_BYTES = "remote_wal_catch_up_read_bytes_total"

RECORDS, RECORD_SIZE = 30_000, 1000
MISSED_BYTES = RECORDS * RECORD_SIZE


def test_a_follower_that_missed_much_reads_it_from_objects_of_an_earlier_agent(agent_script: Script) -> None:
    # broker 3 dies -> 30 MB are produced and uploaded -> the leader's agent starts anew, its link index is empty
    # -> broker 3 comes back and catches up
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[LEADER, OTHER, FOLLOWER]] * 2)
    cluster.kill_broker(FOLLOWER)
    cluster.tools.produce(script.topic, records=RECORDS, record_bytes=RECORD_SIZE, config={"acks": "1"})
    wait_until(lambda: is_uploaded(script), "what was produced is stored", PATIENCE_S)
    script.stop_agent(LEADER)
    script.start_agent(LEADER)
    script.link_topic()

    counters = AgentCounters(cluster)
    cluster.start_broker(FOLLOWER)
    cluster.admin.wait_for_full_isr(script.topic, timeout_s=PATIENCE_S)

    assert counters.growth(RECORD_BYTES, path="linked") >= 0.9 * MISSED_BYTES, counters.grown_labels(
        "remote_wal_faults_total", "reason"
    )
    assert counters.growth(FOUND_BYTES) >= 0.9 * MISSED_BYTES
    assert counters.growth(READ_BYTES) >= 0.9 * MISSED_BYTES
    assert counters.growth(PEER_BYTES, role="leader", direction="sent") <= 0.1 * MISSED_BYTES
    comparison = compare_replicas(cluster, script.topic, PATIENCE_S)
    assert comparison.identical, str(comparison)
    assert comparison.compared_bytes >= MISSED_BYTES


def is_uploaded(script: Script) -> bool:
    """By the leader's agent, all that it knows to be in the logs."""
    known = [partition for partition in script.partitions_of_agents() if partition["log_end_offset"]]
    return (
        bool(known)
        and all(
            partition["uploaded_offset"] == partition["log_end_offset"] and partition["lag_bytes"] == 0
            for partition in known
        )
        and sum(int(str(partition["log_end_offset"])) for partition in known) >= RECORDS
    )

"""Leaders die while uploads are under way, are cut off, or are succeeded by who lacks what they had."""

from pathlib import Path

import pytest

from local_cluster.polling import wait_until
from local_cluster.workload.replica_comparison import compare_replicas
from tests.cluster.agent_views import FAULTS, RECORD_BYTES, AgentCounters
from tests.cluster.kernel_views import is_stopped
from tests.cluster.recovery_commands import drilled_recovery, planned_recovery
from tests.cluster.replica_moves import elect_uncleanly, leader_of
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, ZSTD, Script
from tests.cluster.stored_log import StoredLog, stored_log


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


OLD, FOLLOWER, OTHERS = 1, 2, (2, 3)
UPLOADED = "remote_wal_uploaded_segments_total"
WRONG_BYTES = {"hydration_corrupt", "inline_requested_corrupt", "splice_refetch"}
KEPT, LOST, NEW = (text * 250 for text in (b"kept", b"lost", b"new!"))
RECORDS = 300


def test_what_a_leader_uploads_that_was_cut_off_is_never_linked_and_never_recovered(
    agent_script: Script, tmp_path: Path
) -> None:
    # 1 leads; its agent stands still with an upload in hand of records that nobody else has, and then it does itself
    # -> 2 or 3 leads and goes on from 300 -> the old leader's agent goes on: it uploads -> the old leader is back
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[OLD, *OTHERS]])
    with stored_log(script) as log:
        log.produce(KEPT, RECORDS)
        log.expect_all_stored(OLD, RECORDS)
        old_agent = AgentCounters(cluster, [OLD])
        script.switch(OLD, "stop-before-put")
        log.produce(LOST, RECORDS, acks="1", brokers=[OLD])
        pid = cluster.agent(OLD).pid
        assert pid is not None
        wait_until(lambda: is_stopped(pid), "the agent stands still with an upload in hand", PATIENCE_S)
        cluster.broker(OLD).pause()
        assert log.end_offset(OLD) == 2 * RECORDS
        [leader] = wait_until(lambda: next_leaders(log), "another one leads", PATIENCE_S)
        log.produce(NEW, RECORDS, brokers=OTHERS)

        cluster.agent(OLD).resume()
        wait_until(lambda: old_agent.growth(UPLOADED) > 0, "the old leader's agent uploads", PATIENCE_S)
        assert [start for _, start in log.epochs(leader).entries] == [0, RECORDS]
        cluster.broker(OLD).resume()
        cluster.admin.wait_for_full_isr(script.topic)
        wait_until(log.declared_dead, "what the old leader uploaded is declared dead", PATIENCE_S)
        [(first, end)] = log.declared_dead()
        assert RECORDS == first < end <= 2 * RECORDS
        expect_life_to_go_on(log, leader, tmp_path)


def test_what_an_unclean_election_threw_away_is_told_and_does_not_come_back(
    agent_script: Script, tmp_path: Path
) -> None:
    # 1 and 2 have [0, 300) -> 2 cannot fetch, 1 goes on to 600, all of it stored -> 1 dies, 2 leads from 300 on
    # -> [300, 600) is told as dead -> 1 follows, and cuts its log
    script, cluster = agent_script, agent_script.cluster
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    cluster.admin.create_topic(script.topic, assignment=[[OLD, FOLLOWER]], config=unclean)
    script.link_topic()
    with stored_log(script) as log:
        log.produce(KEPT, RECORDS)
        script.kill_agent(FOLLOWER)
        successor = AgentCounters(cluster, [FOLLOWER])
        log.produce(LOST, RECORDS)  # acknowledged as soon as the follower is out of sync
        wait_until(lambda: told_as_stored(script) == [2 * RECORDS], "all of it is stored", PATIENCE_S)
        cluster.broker(OLD).kill()
        cluster.start_agent(FOLLOWER, wait=False)
        elect_uncleanly(cluster.admin, script.topic, 0, FOLLOWER)

        removed = [(RECORDS, 2 * RECORDS)]
        wait_until(lambda: log.declared_dead() == removed, "what the election removed is told", PATIENCE_S)
        assert successor.growth("remote_wal_dead_entries_published_total") > 0
        wait_until(lambda: log.ranges(FOLLOWER) == [(0, RECORDS)], "none of it counts as stored", PATIENCE_S)
        cluster.start_broker(OLD, wait=False)
        assert planned_recovery(cluster, FOLLOWER, script.topic)["end_offset"] == RECORDS
        cluster.admin.wait_for_full_isr(script.topic)
        expect_life_to_go_on(log, FOLLOWER, tmp_path)
        assert log.declared_dead() == removed


def told_as_stored(script: Script) -> list[object]:
    """The offset up to which agents say that the log is stored. The metadata topic may have too few replicas now."""
    return [one["uploaded_offset"] for one in script.partitions_of_agents()]


def next_leaders(log: StoredLog) -> list[int]:
    """Those of the others that have begun to lead, as their files tell. A client may ask the one that stands still."""
    return [broker_id for broker_id in OTHERS if len(log.epochs(broker_id).entries) > 1]


def expect_life_to_go_on(log: StoredLog, leader: int, scratch: Path) -> None:
    """The new leader's records are linked, all replicas have them, and what is stored gives back these very ones."""
    script, cluster = log.script, log.cluster
    links = AgentCounters(cluster)
    log.produce(NEW, RECORDS)
    wait_until(lambda: links.growth(RECORD_BYTES, path="linked") > 100_000, "links are used", PATIENCE_S)
    comparison = compare_replicas(cluster, script.topic, PATIENCE_S)
    assert comparison.identical, str(comparison)
    end = log.end_offset(leader)
    log.expect_all_stored(leader, end)
    assert drilled_recovery(cluster, leader, script.topic, scratch / "drill")["end_offset"] == end
    drilled = (scratch / "drill").rglob("*.log")
    assert not any(LOST[:8] in path.read_bytes() for path in drilled)
    assert not WRONG_BYTES & script.counters.grown_labels(FAULTS, "reason").keys()

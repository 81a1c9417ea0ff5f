"""What object storage holds of a log after an agent died, and after a broker came back with less than that."""

import os
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from cli.exit_code import ExitCode
from kafka_log.record_batch import scan_batches
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from tests.cluster.agent_views import read_metrics, readiness
from tests.cluster.recovery_commands import CHECKOUT, decide_held, drilled_recovery, planned_recovery, run_command
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script
from tests.cluster.stored_log import read_log, stored_log


def test_a_hole_that_a_killed_agent_left_is_stored_by_the_next_one(agent_script: Script, tmp_path: Path) -> None:
    # stored [0, a) -> the upload of [a, b) fails, the one behind it is stored and told of, then nothing gets through
    # -> kill -9 -> a recovery would end at a, and says so -> the next agent begins with [a, b) -> all can be restored
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    with stored_log(script) as log:
        script.switch(1, "leave-a-hole")
        wait_until(lambda: len(log.ranges(1)) > 1, "something is stored behind the hole", PATIENCE_S)
        script.kill_agent(1)
        [(_, begin), (end, _), *_] = log.ranges(1)
        planned = planned_recovery(cluster, 1, script.topic, exit_code=ExitCode.FINDINGS)
        assert (planned["end_offset"], planned["gap"]) == (begin, {"from_offset": begin, "to_offset": end})

        script.start_agent(1)
        wait_until(lambda: log.ranges(1)[0][1] > end, f"offsets {begin} to {end - 1} are stored", PATIENCE_S)
        assert "missing_offsets_found" in script.agent_log(1)
        script.expect_records_to_flow()
        script.expect_promises()
        log_end = log.end_offset(1)
        log.expect_all_stored(1, log_end)
    planned = planned_recovery(cluster, 1, script.topic)
    assert (planned["status"], planned["end_offset"]) == ("whole", log_end)
    assert drilled_recovery(cluster, 1, script.topic, tmp_path / "drill")["end_offset"] == log_end


LEADER, FOLLOWER, RECORDS, LEFT = 2, 3, 400, 300
ALERT = "RemoteWalRecordsHeld"
HELD = "remote_wal_held_offsets"


@pytest.mark.thorough
def test_what_a_power_cut_took_is_held_and_appended_again_by_a_person(agent_script: Script) -> None:
    script, cluster, topic = agent_script, agent_script.cluster, agent_script.topic
    cluster.admin.create_topic(topic, assignment=[[LEADER]])
    script.link_topic()
    produce(cluster, topic, range(RECORDS))
    with stored_log(script) as log:
        log.expect_all_stored(LEADER, RECORDS)
        assert held(cluster) == 0

        cluster.broker(LEADER).kill()
        script.kill_agent(LEADER)
        cut_off(log.directory(LEADER), LEFT)
        cluster.start_broker(LEADER)
        cluster.admin.wait_for_leader(topic, expected=LEADER)
        script.start_agent(LEADER)
        produce(cluster, topic, [RECORDS])

        assert alert()["expr"] == f"{HELD} > 0"
        wait_until(lambda: held(cluster) == RECORDS - LEFT, "what was lost is held", PATIENCE_S)
    assert f"remote-wal held restore {topic} 0" in readiness(cluster, LEADER)[1]
    found = run_command(cluster, "held list", LEADER, topic, "0", exit_code=1)["held"]
    assert (found[0]["first_offset"], found[-1]["last_offset"]) == (LEFT, RECORDS - 1)
    assert read_log(cluster, topic) == [str(one) for one in (*range(LEFT), RECORDS)]

    decide_held(cluster, LEADER, "restore", topic)
    assert read_log(cluster, topic) == [str(one) for one in (*range(LEFT), RECORDS, *range(LEFT, RECORDS))]
    decide_held(cluster, LEADER, "give-up", topic)
    wait_until(lambda: held(cluster) == 0, "nothing is held any more", PATIENCE_S)


def produce(cluster: LocalCluster, topic: str, numbers: "range | list[int]") -> None:
    """Their texts, a batch for each ten."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0)
        if number % 10 == 9:
            assert producer.flush(PATIENCE_S) == 0
    assert producer.flush(PATIENCE_S) == 0


def cut_off(directory: Path, offset: int) -> None:
    """Leave of the log what lies below, as a power cut does of what is in the page cache alone."""
    [segment] = directory.glob("*.log")
    raw = segment.read_bytes()
    end = next(span.start for span in scan_batches(raw, 0, len(raw)) if span.base_offset >= offset)
    os.truncate(segment, end)
    for index in [*directory.glob("*.index"), *directory.glob("*.timeindex")]:
        index.unlink()


def held(cluster: LocalCluster, leader: int = LEADER) -> float:
    """Offsets, as the leader's agent counts them."""
    return read_metrics(cluster, leader)[HELD, ()]


def alert() -> "dict[str, str]":
    groups = yaml.safe_load((CHECKOUT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    [rule] = [rule for group in groups for rule in group["rules"] if rule.get("alert") == ALERT]
    return dict(rule)

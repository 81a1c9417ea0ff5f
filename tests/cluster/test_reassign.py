"""`remote-wal reassign` on a real cluster: under load, from the tier, drained, taken back, and refused."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cli.exit_code import ExitCode
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.segment_files import list_segments
from kafka_log.topic_partition import TopicIdPartition
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from recovery.reassignment.admin import BEGIN_AT_TIER, ReassignmentAdmin
from recovery.reassignment.plan import TopicPartition
from tests.cluster.conftest import IMPATIENT, STORAGE_PLUGINS, BreakableStore
from tests.cluster.recovery_commands import CHECKOUT, ask_cluster
from tests.cluster.replica_moves import TIERED_TOPIC, leader_of
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script
from tests.cluster.stored_log import followed_metadata

RECORD = b"\x5a" * 10_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("reassign") / "cluster"
    agents = AgentsMode(BreakableStore(), {"remote.log.wal.storage.manager.class.path": str(STORAGE_PLUGINS)})
    settings = ClusterSettings(agents, {**IMPATIENT, BEGIN_AT_TIER: "true"}, tiered_storage=True)
    # Four, as Kafka's own topics have three replicas, and one broker is to be drained.
    with LocalCluster.create(directory, brokers=4, settings=settings) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def script(cluster: LocalCluster, topic: str) -> Iterator[Script]:
    with Script(cluster, topic) as script:
        yield script
    script.heal()


def reassign(cluster: LocalCluster, *arguments: str, exit_code: int = 0) -> Any:
    return json.loads(ask_cluster(cluster, "reassign", *arguments, "--json", exit_code=exit_code))


def planned(file: Path, *replicas: list[int], topic: str) -> str:
    """A plan that gives the topic's partitions, from 0 on, these replicas."""
    rows = [{"topic": topic, "partition": number, "replicas": wanted} for number, wanted in enumerate(replicas)]
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(file)


def replicas(cluster: LocalCluster, topic: str) -> list[tuple[int, ...]]:
    return [state.replicas for state in cluster.admin.partitions(topic)]


def expect_no_gap_in_objects(script: Script) -> None:
    """Every record is in an object, whoever uploaded it: what one leader had left to upload, the next one did."""
    with followed_metadata(script.cluster) as store:
        topic_id = script.topic_id()
        assert topic_id is not None
        for state in script.cluster.admin.partitions(script.topic):
            directory = script.cluster.layout.partition_directory(state.leader, script.topic, state.partition)
            assert directory is not None
            chain = read_leader_epochs(directory)
            with ReassignmentAdmin(KafkaClientConfig(script.cluster.bootstrap_servers)) as admin:
                [end] = admin.log_ends([TopicPartition(script.topic, state.partition)]).values()

            def covered(number: int = state.partition, chain: Any = chain, end: int = end) -> bool:
                offset = 0
                while offset < end:
                    found = store.entries_covering(TopicIdPartition(topic_id, number), offset, chain)
                    if not found:
                        return False
                    ends = chain.end_of(chain.epoch_at(offset))
                    offset = min(found[0].entry.last_offset + 1, end if ends is None else ends)
                return True

            wait_until(covered, f"objects hold partition {state.partition} up to {end}", PATIENCE_S)


@pytest.mark.gate
def test_under_load_partitions_move_and_a_broker_is_drained_without_an_error_in_the_application(
    script: Script, tmp_path: Path
) -> None:
    cluster, topic = script.cluster, script.topic
    script.create_topic(assignment=[[1, 2], [2, 1]])
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()

    # All of it goes to brokers 2 and 3, with the leaders.
    plan = planned(tmp_path / "plan.json", [2, 3], [3, 2], topic=topic)
    said = reassign(cluster, "execute", "--plan", plan)
    assert {move["state"] for move in said["moves"]} == {"done"}
    assert all(set(after) == {2, 3} for after in replicas(cluster, topic))
    assert {leader_of(cluster.admin, topic, number) for number in (0, 1)} == {2, 3}
    script.expect_records_to_flow()
    script.expect_links_to_be_used()

    # Broker 3 is drained, of Kafka's own topics and of the agents' too.
    said = reassign(cluster, "drain", "3", "--max-moves", "4")
    assert {move["state"] for move in said["moves"]} == {"done"}
    assert {topic, "__consumer_offsets"} <= {move["topic"] for move in said["moves"]}
    with ReassignmentAdmin(KafkaClientConfig(cluster.bootstrap_servers)) as admin:
        assert not any(3 in one.replicas for one in admin.cluster().partitions)
    script.expect_records_to_flow()

    expect_no_gap_in_objects(script)
    report = script.expect_promises()
    assert report.sent == report.acknowledged
    assert reassign(cluster, "drain", "3", "--dry-run")["partitions"] == []


def test_kafkas_own_tool_carries_out_a_plan_that_was_made_for_it(script: Script, tmp_path: Path) -> None:
    cluster, topic = script.cluster, script.topic
    script.create_topic(assignment=[[1, 2], [2, 1]])
    script.produce(PLAIN)
    script.expect_records_to_flow()
    plan = tmp_path / "plan.json"
    made = reassign(cluster, "drain", "1", "--dry-run")
    assert made.keys() == {"exit_code", "version", "partitions"}, "Kafka ignores what it does not know"
    plan.write_text(json.dumps(made))

    def tool(what: str) -> str:
        where = ["--bootstrap-server", cluster.bootstrap_servers, "--reassignment-json-file", str(plan)]
        return cluster.tools.run("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", [*where, what])

    assert "Successfully started partition reassignment" in tool("--execute")
    moves = len(made["partitions"])
    assert moves >= 2
    wait_until(lambda: tool("--verify").count("is completed") == moves, "all partitions are moved", PATIENCE_S)
    assert not any(1 in after for after in replicas(cluster, topic))
    script.expect_records_to_flow()
    script.expect_promises()


def produce(cluster: LocalCluster, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.size": 100_000})
    for _ in range(records):
        producer.produce(topic, RECORD, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def local_offsets(cluster: LocalCluster, broker: int, topic: str) -> int:
    """The first offset of the broker's own log."""
    directory = cluster.layout.partition_directory(broker, topic, 0)
    assert directory is not None
    return min(list_segments(directory))


def broker_overrides(cluster: LocalCluster) -> dict[int, object]:
    with ReassignmentAdmin(KafkaClientConfig(cluster.bootstrap_servers)) as admin:
        found = admin._configs("broker", [str(broker) for broker in cluster.broker_ids], BEGIN_AT_TIER)
    return {int(name): (entry and (entry["value"], entry["config_source"])) for name, entry in found.items()}


def test_a_replica_begins_at_the_tier_and_where_nothing_else_is_left_at_the_local_log(
    script: Script, tmp_path: Path
) -> None:
    cluster, tail, bare = script.cluster, script.topic, f"{script.topic}-bare"
    alone = {**TIERED_TOPIC, "min.insync.replicas": "1"}
    # By age, Kafka rolls and tiers the active segment, too.
    cluster.admin.create_topic(
        bare, assignment=[[1]], config={**alone, "local.retention.ms": "1000", "segment.ms": "1000"}
    )
    cluster.admin.create_topic(tail, assignment=[[1]], config=alone)
    script.link_topic()
    produce(cluster, bare, 210)
    produce(cluster, tail, 1_020)
    wait_until(lambda: local_offsets(cluster, 1, tail) > 800, "most of the log is on the tier alone", PATIENCE_S)
    wait_until(lambda: local_offsets(cluster, 1, bare) == 210, "all of the log is on the tier alone", PATIENCE_S)
    before = broker_overrides(cluster)

    # Both at once; the one with nothing local would never end, would its replica begin at the last tiered offset.
    plan = tmp_path / "plan.json"
    wanted = [{"topic": topic, "partition": 0, "replicas": [2]} for topic in (bare, tail)]
    plan.write_text(json.dumps({"version": 1, "partitions": wanted}))
    said = reassign(cluster, "execute", "--plan", str(plan))

    seconds = {move["topic"]: move["seconds"] for move in said["moves"]}
    assert seconds[tail] < 10, "it takes 1 to 2 s on an idle machine"
    assert replicas(cluster, tail) == replicas(cluster, bare) == [(2,)]
    assert local_offsets(cluster, 2, tail) > 800
    assert local_offsets(cluster, 2, bare) == 210
    wait_until(lambda: broker_overrides(cluster) == before, "the brokers' setting is as before", PATIENCE_S)
    assert cluster.tools.consume(tail, records=1_020) == 1_020
    assert cluster.tools.consume(bare, records=210) == 210


def test_a_move_under_way_is_taken_back_by_an_interrupt(script: Script, tmp_path: Path) -> None:
    cluster, topic = script.cluster, script.topic
    script.create_topic(assignment=[[1, 2]])
    script.produce(PLAIN)
    script.expect_records_to_flow(50)
    script.cut_off_follower(3)  # it cannot get in sync

    plan = planned(tmp_path / "plan.json", [2, 3], topic=topic)
    command = [sys.executable, "-m", "cli.main", "reassign", "execute", "--bootstrap-server", cluster.bootstrap_servers]

    def is_under_way() -> bool:
        with ReassignmentAdmin(KafkaClientConfig(cluster.bootstrap_servers)) as admin:
            return TopicPartition(topic, 0) in admin.ongoing()

    with subprocess.Popen(
        [*command, "--plan", plan, "--no-upload-tail", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=CHECKOUT,
    ) as running:  # fmt: skip
        try:
            wait_until(is_under_way, "the move is under way", PATIENCE_S)
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
    assert running.returncode == ExitCode.CANCELLED, output
    assert [move["reason"] for move in json.loads(output)["moves"]] == ["cancelled"]
    assert [set(after) for after in replicas(cluster, topic)] == [{1, 2}]
    script.reconnect_follower(3)
    script.expect_promises()

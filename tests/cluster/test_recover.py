"""A broker loses its log directory, and gets it back from object storage."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from cli.exit_code import ExitCode
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.broker_files.meta_properties import MetaProperties, read_meta_properties
from kafka_log.broker_files.partition_metadata import read_partition_metadata
from kafka_log.topic_partition import TopicIdPartition
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import set_topics
from local_cluster.polling import wait_until
from local_cluster.workload.replica_comparison import compare_replicas
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import AS_LOCAL
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from recovery.logs.log_directory_target import STAGING
from recovery.logs.log_writer import JOURNAL
from tests.cluster.agent_views import describe
from tests.cluster.recovery_commands import CHECKOUT, WORDS, command_line, decide_held, refused_recovery, run_command
from tests.cluster.replica_moves import delete_topic, in_sync_replicas, wait_for_isr
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, Script

ARCHIVE_INTERVAL_MS = 1000
PUT_LATENCY_MS = 5
BUSY_MACHINE_S = 0.5
NEW_DIRECTORY_ID = "dHsvUeAsx4pzL_7iPzNrAg"
RECORDS = 8000
BATCH_RECORDS = 50


def _settings(directory: Path) -> ClusterSettings:
    # The controllers' logs stand apart, as on machines of their own: only brokers are lost here.
    metadata = {number: {"metadata.log.dir": str(directory / f"controller-{number}")} for number in (1, 2, 3)}
    metadata[3]["log.dirs"] = f"{directory / 'disk-a'},{directory / 'disk-b'}"
    return ClusterSettings(
        AgentsMode(overrides={"remote.wal.archive.interval.ms": str(ARCHIVE_INTERVAL_MS)}),
        {"min.insync.replicas": "1"},
        metadata,
    )


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("recover")
    with LocalCluster.create(directory / "cluster", settings=_settings(directory)) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    """All of it runs, whatever the test before left dead or erased."""
    shared_cluster.start()
    return shared_cluster


@dataclass(slots=True)
class Acknowledgements:
    """What was acknowledged: the value by offset, and when."""

    values: dict[int, bytes] = field(default_factory=dict)
    seen_s: dict[int, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    is_open: bool = True

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if not self.is_open:
            return
        if error is not None:
            self.errors.append(str(error))
            return
        self.values[message.offset()] = message.value()
        self.seen_s[message.offset()] = time.monotonic()


@pytest.mark.gate
def test_the_only_replica_comes_back_with_every_record_that_was_uploaded(
    cluster: LocalCluster, topic: str, record_property: Callable[[str, object], None]
) -> None:
    def report(line: str) -> None:
        record_property("recovery point", line)
        sys.stderr.write(f"{line}\n")

    _make_topic(cluster, topic, [[1]], {"segment.bytes": "1048576"})
    acknowledged = Acknowledgements()
    producer = _producer(cluster)
    _produce(producer, topic, 3000, acknowledged)
    _expect_published(cluster, topic, 3000)
    left_alone = _leave_alone_in_sync(cluster, f"{topic}-left-alone")
    identity = read_meta_properties(cluster.layout.log_directories(1)[0])

    # Killed while records go on being acknowledged: those that were not uploaded yet are lost, and no others.
    killed_s = _kill_in_the_middle_of(cluster, topic, acknowledged)
    cluster.start_agent(2)  # what nobody leads it does not get any more
    _erase(cluster, 1)
    _expect_no_start_on_a_half_made_directory(cluster, 1, identity)
    dry = _recover(cluster, 1, "--dry-run")
    # Started on what is restored, the last one in sync would lead with it, and replica 2 would be cut down to that.
    refused = refused_recovery(cluster, 1, "the last replica in sync")
    assert f"{left_alone}-0 to offset 1,000" in refused, (refused, dry)
    assert dry["only_in_sync_here"] == [f"{left_alone}-0"]
    assert not any(path.exists() for path in cluster.layout.log_directories(1))
    told = _recover(cluster, 1, "--lead-with-what-is-restored")
    refused_recovery(cluster, 1, "not empty", "--lead-with-what-is-restored")

    [log] = [one for one in told["logs"] if one["log"] == f"{topic}-0"]
    assert [one["end_offset"] for one in dry["logs"] if one["log"] == f"{topic}-0"] == [log["end_offset"]]
    assert read_meta_properties(cluster.layout.log_directories(1)[0]) == identity, (
        "the same directory for the controllers"
    )
    lost = [offset for offset in acknowledged.values if offset >= log["end_offset"]]
    lost_for_s = max((killed_s - acknowledged.seen_s[offset] for offset in lost), default=0.0)
    report(f"{len(lost)} acknowledged records lost, the oldest acknowledged {lost_for_s * 1000:.0f} ms before the kill")
    assert lost_for_s < (ARCHIVE_INTERVAL_MS + PUT_LATENCY_MS) / 1000 + BUSY_MACHINE_S
    assert log["end_offset"] > 3000

    cluster.start_broker(1)
    cluster.admin.wait_for_leader(topic, expected=1)
    read = _read_all(cluster, topic)
    kept = {offset: value for offset, value in acknowledged.values.items() if offset < log["end_offset"]}
    assert {offset: read[offset] for offset in kept} == kept
    directory = cluster.layout.partition_directory(1, topic, 0)
    assert directory is not None
    assert sum(path.suffix == ".log" for path in directory.iterdir()) > 2, "rolled as segment.bytes says"
    assert all(path.with_suffix(".index").exists() for path in directory.glob("*.log")), "Kafka made its indexes"
    epochs = read_leader_epochs(directory).entries
    assert epochs[-1][1] == log["end_offset"], "a new epoch begins where the recovered log ended"
    cluster.start_agent(1)
    # The idempotent producer of before: the broker knows its sequence from the recovered log.
    _produce(producer, topic, 500, Acknowledgements())
    assert sorted(_read_all(cluster, left_alone)) == list(range(1000)), "nothing that was acknowledged is gone"
    cluster.admin.wait_for_full_isr(left_alone, timeout_s=PATIENCE_S)
    assert compare_replicas(cluster, left_alone, PATIENCE_S).identical
    delete_topic(cluster.admin, left_alone)  # else whoever of its replicas is lost next is refused, too


@pytest.mark.kafka_core
def test_erased_replicas_come_back_and_end_byte_identical(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        script.produce(PLAIN, TRANSACTIONS)
        script.expect_records_to_flow(1000)

        # One of three, while producers and a consumer go on.
        _lose(cluster, 3)
        script.expect_records_to_flow(500)
        told = _recover(cluster, 3)
        assert [log["status"] for log in told["logs"] if log["log"].startswith(topic)] == ["whole"] * 3
        _start(cluster, 3)
        cluster.admin.wait_for_full_isr(topic, timeout_s=PATIENCE_S)
        script.expect_records_to_flow(500)

        # Two of three. With the second one the controllers lose their majority too, so nobody can be asked.
        _lose(cluster, 1)
        wait_until(
            lambda: all(1 not in isr for isr in in_sync_replicas(cluster.admin, topic).values()), "1 is out", PATIENCE_S
        )
        _lose(cluster, 2)
        kraft = cluster.layout.directory.parent / "controller-1"
        told = _recover(cluster, 1, "--cluster-metadata", str(kraft))
        assert sum(log["end_offset"] for log in told["logs"] if log["log"].startswith(topic)) > 0
        _start(cluster, 1)
        for partition in range(3):
            cluster.admin.wait_for_leader(topic, partition, other_than=2)
        # To the controllers its directory is another one now.
        _recover(cluster, 2, "--directory-id", f"{cluster.layout.log_directories(2)[0]}={NEW_DIRECTORY_ID}")
        _start(cluster, 2)

        script.expect_promises()
        _expect_sound(cluster, 1, topic, tmp_path / "drill")


def test_two_disks_come_back_as_of_a_point_in_time_though_the_recovery_was_killed(
    cluster: LocalCluster, topic: str
) -> None:
    _make_topic(cluster, topic, [[3]] * 4, {"segment.bytes": "1048576", "message.timestamp.type": "CreateTime"})
    producer = _producer(cluster)
    began_ms = time.time_ns() // 1_000_000 - RECORDS
    for number in range(RECORDS):  # one a millisecond
        producer.produce(topic, b"%010d" % number * 400, partition=number % 4, timestamp=began_ms + number)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    for partition in range(4):
        _expect_published(cluster, topic, RECORDS // 4, partition)
    disks = cluster.layout.log_directories(3)
    lived_on = [{path.name for path in disk.glob(f"{topic}-*")} for disk in disks]
    assert all(lived_on), "both disks had partitions"
    _lose(cluster, 3)

    until = str(began_ms + RECORDS // 2)
    dry = _recover(cluster, 3, "--dry-run", "--to-timestamp", until)
    assert not any(disk.exists() for disk in disks), "a dry run writes nothing"
    _kill_recovery_in_the_middle(cluster, 3, "--to-timestamp", until)
    told = _recover(cluster, 3, "--to-timestamp", until)

    logs = {log["log"]: log for log in told["logs"] if log["log"].startswith(topic)}
    assert [log["status"] for log in logs.values()] == ["to the timestamp"] * 4
    assert {log["log"]: log["end_offset"] for log in dry["logs"] if log["log"] in logs} == {
        name: log["end_offset"] for name, log in logs.items()
    }
    assert sum(log["resumed_bytes"] for log in logs.values()) > 500_000, "what was written is not written again"
    assert [{path.name for path in disk.glob(f"{topic}-*")} for disk in disks] == lived_on
    _start(cluster, 3)
    for partition in range(4):
        cluster.admin.wait_for_leader(topic, partition, expected=3)
        read = _read_all(cluster, topic, partition)
        numbers = [int(value[:10]) for _, value in sorted(read.items())]
        assert numbers == list(range(partition, 4 * len(numbers), 4)), "from the first record on, none left out"
        # The log ends with a whole batch, at most one batch before the time.
        assert RECORDS // 2 - 4 * BATCH_RECORDS <= numbers[-1] <= RECORDS // 2

    # The agent does not know that this was meant: it holds what was cut off, until a person gives it up. Lost again
    # before anything is written, the logs then end where they ended, though some of it is stored and, as broker and
    # agent were killed right after the uploads, may be unpublished.
    ends = {name: log["end_offset"] for name, log in logs.items()}
    for partition in range(4):
        wait_until(partial(_has_held, cluster, topic, partition), f"{topic}-{partition} is held", PATIENCE_S)
        decide_held(cluster, 3, "give-up", topic, partition)
    _expect_declared_dead(cluster, topic, ends)
    _lose(cluster, 3)
    told = _recover(cluster, 3)
    again = {log["log"]: (log["status"], log["end_offset"]) for log in told["logs"] if log["log"] in ends}
    assert again == {name: ("whole", end) for name, end in ends.items()}


def _has_held(cluster: LocalCluster, topic: str, partition: int) -> bool:
    return bool(run_command(cluster, "held list", 3, topic, str(partition), exit_code=(0, ExitCode.FINDINGS))["held"])


def _leave_alone_in_sync(cluster: LocalCluster, topic: str) -> str:
    """A topic with replicas 1 and 2, of which 2 has half of what was acknowledged, and lives, and cannot fetch."""
    _make_topic(cluster, topic, [[1, 2]], {"min.insync.replicas": "1"})
    producer = _producer(cluster)
    _produce(producer, topic, 500, Acknowledgements())
    assert cluster.broker(2).terminate(60.0)
    wait_for_isr(cluster.admin, topic, [1])
    cluster.agent(2).kill()
    cluster.start_broker(2)
    _produce(producer, topic, 500, Acknowledgements())
    _expect_published(cluster, topic, 1000)
    return topic


def _expect_declared_dead(cluster: LocalCluster, topic: str, ends: dict[str, int]) -> None:
    directory = cluster.layout.partition_directory(3, topic, 0)
    assert directory is not None
    topic_id = read_partition_metadata(directory)
    with _metadata(cluster) as store:

        def declared() -> set[tuple[str, int]]:
            tails = [tail for tail in store.image().dead if tail.topic_id_partition.topic_id == topic_id]
            return {(f"{topic}-{tail.topic_id_partition.partition}", tail.first_offset) for tail in tails}

        wait_until(lambda: set(ends.items()) <= declared(), f"what {topic} lost is declared dead", PATIENCE_S)


def _kill_recovery_in_the_middle(cluster: LocalCluster, broker_id: int, *options: str) -> None:
    """Kill it when it has completed a segment and not yet the whole."""
    staged = [disk / STAGING for disk in cluster.layout.log_directories(broker_id)]
    for _ in range(5):  # on a busy machine it may end before it is looked at
        command = command_line(cluster, "recover", broker_id, *options, "--threads", "1")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=CHECKOUT) as process:
            while process.poll() is None and not any(any(path.glob(f"*/{JOURNAL}")) for path in staged):
                pass
            process.kill()
        if any(path.exists() for path in staged):
            return
        _erase(cluster, broker_id)
    raise AssertionError("the recovery ended before it could be killed, five times")


def _expect_sound(cluster: LocalCluster, broker_id: int, topic: str, scratch: Path) -> None:
    """What is stored is what the living replica has, and Kafka's dump-log reads all of what is restored of it."""
    [replica] = cluster.layout.log_directories(broker_id)
    options = ("--topic", topic, "--replica-log-dir", str(replica), "--drill", str(scratch))
    verified = run_command(cluster, "verify", broker_id, *options)
    assert verified["batches_compared_with_a_replica"] > 100
    assert [(log["fault"], log["batches"] > 0) for log in verified["drill"]] == [("", True)] * 3


def _lose(cluster: LocalCluster, broker_id: int) -> None:
    """The broker and its agent die, and its log directory is gone."""
    cluster.agent(broker_id).kill()
    cluster.broker(broker_id).kill()
    _erase(cluster, broker_id)


def _start(cluster: LocalCluster, broker_id: int) -> None:
    cluster.start_agent(broker_id, wait=False)
    cluster.start_broker(broker_id)
    cluster.wait_for_agent(broker_id)


def _expect_no_start_on_a_half_made_directory(cluster: LocalCluster, broker_id: int, identity: MetaProperties) -> None:
    """Not even when the directory has been formatted meanwhile."""
    [path] = cluster.layout.log_directories(broker_id)
    (path / STAGING).mkdir(parents=True)
    (path / "meta.properties").write_text(
        f"version=1\ncluster.id={identity.cluster_id}\nnode.id={broker_id}\ndirectory.id={identity.directory_id}\n"
    )
    cluster.start_broker(broker_id, wait=False)
    wait_until(lambda: not cluster.broker(broker_id).is_alive(), "the broker has given up", PATIENCE_S)
    log = (cluster.layout.broker_directory(broker_id) / "kafka.log").read_text(errors="replace")
    assert f"{STAGING} is not in the form of topic-partition" in log.replace("'", "").replace('"', "")
    shutil.rmtree(path)


def _make_topic(cluster: LocalCluster, topic: str, assignment: list[list[int]], config: dict[str, str]) -> None:
    cluster.admin.create_topic(topic, config=config, assignment=assignment)
    set_topics(cluster.bootstrap_servers, [topic], TopicSettings(enable=True, wal_retention_ms=AS_LOCAL))
    wait_until(
        lambda: any(_agents_view(cluster, topic, number) for number in cluster.broker_ids), "an agent leads", PATIENCE_S
    )


def _agents_view(cluster: LocalCluster, topic: str, broker_id: int) -> list[dict[str, Any]]:
    try:
        return [one for one in describe(cluster, broker_id)["partitions"] if one["topic"] == topic]
    except OSError:
        return []


def _producer(cluster: LocalCluster, *, idempotent: bool = True) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": idempotent,
            "linger.ms": 2,
            "batch.num.messages": BATCH_RECORDS,
            "delivery.timeout.ms": 120_000,
            "log_level": 0,
        }
    )


def _value(number: int) -> bytes:
    """About 1 KB, which tells its number."""
    return f"{number:010}{WORDS}".encode() * 37


def _produce(producer: Producer, topic: str, records: int, acknowledged: Acknowledgements) -> None:
    for number in range(records):
        producer.produce(topic, _value(number), partition=0, on_delivery=acknowledged)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not acknowledged.errors


def _kill_in_the_middle_of(cluster: LocalCluster, topic: str, acknowledged: Acknowledgements) -> float:
    """Produce on for longer than an upload interval, then kill broker and agent. When, by the monotonic clock."""
    # An idempotent producer whose acknowledged records are lost is told so by the broker, and ends: not this one.
    producer = _producer(cluster, idempotent=False)
    begun = time.monotonic()
    number = 0
    while time.monotonic() < begun + 2.5 * ARCHIVE_INTERVAL_MS / 1000:
        producer.produce(topic, _value(number), partition=0, on_delivery=acknowledged)
        producer.poll(0.002)
        number += 1
    cluster.agent(1).kill()
    cluster.broker(1).kill()
    killed_s = time.monotonic()
    acknowledged.is_open = False
    producer.purge()
    return killed_s


def _expect_published(cluster: LocalCluster, topic: str, end_offset: int, partition: int = 0) -> None:
    """Wait until the metadata topic tells of it: its agent is about to be killed, and publishes after the upload.

    An agent publishes a log's objects in their order, so the last one stands for all.
    """
    [described] = KafkaCluster(KafkaClientConfig(cluster.bootstrap_servers), "test", PATIENCE_S).topics([topic])
    log = TopicIdPartition(described.topic_id, partition)
    with _metadata(cluster) as store:
        wait_until(
            lambda: store.has_runs(log, end_offset - 1, end_offset),
            f"{topic} is published up to offset {end_offset}",
            PATIENCE_S,
        )


@contextmanager
def _metadata(cluster: LocalCluster) -> Iterator[RemoteWalMetadataStore]:
    store = RemoteWalMetadataStore()
    reader = RemoteWalMetadataConsumer(KafkaClientConfig(cluster.bootstrap_servers), store)
    reader.start()
    try:
        yield store
    finally:
        reader.close()


def _erase(cluster: LocalCluster, broker_id: int) -> None:
    for path in cluster.layout.log_directories(broker_id):
        shutil.rmtree(path)


def _recover(cluster: LocalCluster, broker_id: int, *options: str) -> dict[str, Any]:
    return run_command(cluster, "recover", broker_id, *options)


def _end(consumer: Consumer, partition: TopicPartition) -> tuple[int] | None:
    """None while the broker, which has just become the leader, does not know yet that it is."""
    try:
        return (consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)[1],)
    except KafkaException:
        return None


def _read_all(cluster: LocalCluster, topic: str, number: int = 0) -> dict[int, bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    partition = TopicPartition(topic, number, 0)
    consumer.assign([partition])
    read: dict[int, bytes] = {}
    try:
        end = wait_until(lambda: _end(consumer, partition), f"{topic} has an end", PATIENCE_S)[0]

        def reached() -> bool:
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None
                read[message.offset()] = message.value()
            return bool(consumer.position([partition])[0].offset >= end)

        wait_until(reached, f"{topic} is read up to offset {end}", PATIENCE_S)
    finally:
        consumer.close()
    return read

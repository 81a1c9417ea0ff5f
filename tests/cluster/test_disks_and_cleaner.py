"""What a broker does to logs beneath its agent: its cleaner rewrites them, they move between disks, a disk fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from kafka import TopicPartitionReplica
from kafka.admin import KafkaAdminClient
from kafka.record import MemoryRecords

from kafka_log.segment_files import list_segments, log_file_name
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG
from local_cluster.polling import wait_until
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters, describe
from tests.cluster.conftest import IMPATIENT, cluster_of
from tests.cluster.recovery_commands import drilled_recovery, run_command
from tests.cluster.replica_moves import leader_of, wait_for_isr
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script
from tests.cluster.stored_log import StoredLog, stored_log

LEADER, OTHERS = 3, (1, 2)
"""The broker with two disks, which leads here."""
BROKERS = {
    **IMPATIENT,
    "log.cleaner.backoff.ms": "200",
    # By this the broker writes to all of its disks, so it learns soon that one has failed.
    "replica.high.watermark.checkpoint.interval.ms": "1000",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "100",
    "min.insync.replicas": "1",
    # The smallest that Kafka takes.
    "segment.bytes": "1048576",
}
KEYS, VALUE_BYTES = 50, 2000
"""All values that live fit into a tenth of a segment."""
DECLARED_GAPS = "remote_wal_declared_gaps_total"


def with_two_disks(directory: Path) -> ClusterSettings:
    disks = ",".join(str(directory / f"disk-{name}") for name in "ab")
    return ClusterSettings(AgentsMode(), BROKERS, {LEADER: {"log.dirs": disks}})


cluster = cluster_of(with_two_disks)


@pytest.fixture
def script(cluster: LocalCluster, topic: str) -> Iterator[Script]:
    with Script(cluster, topic) as script:
        yield script
    script.heal()


# The cleaner.


class Table:
    """A compacted topic of one partition, and what should be in it."""

    def __init__(self, log: StoredLog) -> None:
        self._log = log
        self._random = Random(36)
        self.values: dict[bytes, bytes] = {}

    def overwrite(self, times: int) -> None:
        """Give every key another value, so many times."""
        # Idempotent, as else a batch that is sent again may come behind a newer one.
        config = {**CLIENT_CONFIG, "enable.idempotence": True, "linger.ms": 10, "batch.size": 16384}
        producer = Producer({"bootstrap.servers": self._log.cluster.bootstrap_servers, **config})
        for _ in range(times):
            for number in range(KEYS):
                key, value = b"%d" % number, self._random.randbytes(VALUE_BYTES)
                producer.produce(self._log.script.topic, value, key, partition=0)
                self.values[key] = value
        assert producer.flush(PATIENCE_S) == 0

    def expect_cleaned(self, *brokers: int) -> None:
        """The cleaner has been through all segments of these brokers but for the active one."""
        for broker_id in brokers:
            wait_until(partial(self._is_cleaned, broker_id), f"broker {broker_id} has cleaned", PATIENCE_S)

    def _is_cleaned(self, broker_id: int) -> bool:
        directory = self._log.directory(broker_id)
        try:
            closed = [(directory / log_file_name(base)).stat().st_size for base in list_segments(directory)[:-1]]
        except FileNotFoundError:
            return False  # it is being replaced just now
        return bool(closed) and sum(closed) < 2 * KEYS * VALUE_BYTES

    def expect_all_read(self) -> None:
        """The leader's agent has seen all of the log, and missed nothing of it."""
        end, told = self._log.end_offset(LEADER), self._log.script.partitions_of_agents
        wait_until(lambda: [one["uploaded_offset"] for one in told()] == [end], f"read up to {end}", PATIENCE_S)
        wait_until(lambda: self._log.ranges(LEADER)[-1][1] == end, f"the metadata tells of {end}", PATIENCE_S)
        assert describe(self._log.cluster, LEADER)["gaps"] == []
        assert not [gap for gap in self._log.store.declared_gaps(self._log.partition) if gap.reason.is_loss]


def test_the_cleaner_at_work_leaves_no_hole_and_costs_no_key(script: Script, tmp_path: Path) -> None:
    # written, cleaned, read by the agent, all at once -> no agent at the leader, which writes and cleans on -> the
    # agent is back, and finds offsets that nobody has any more -> so does the next one
    script.cluster.admin.create_topic(script.topic, assignment=[[LEADER, *OTHERS]], config=COMPACTED)
    script.link_topic()
    with stored_log(script) as log:
        table = Table(log)
        for _ in range(4):
            table.overwrite(20)
        table.expect_cleaned(LEADER, *OTHERS)
        table.expect_all_read()
        before = log.end_offset(LEADER)

        script.kill_agent(LEADER)
        table.overwrite(40)  # acknowledged as soon as the others are out of sync
        table.expect_cleaned(LEADER)
        script.start_agent(LEADER)
        table.expect_all_read()
        [(_, read_before), (begin, _), *_] = log.ranges(LEADER)
        assert before <= read_before < begin, "the cleaner took records that the agent had not read"

        script.stop_agent(LEADER)
        script.start_agent(LEADER)
        links = AgentCounters(script.cluster)
        table.overwrite(20)
        wait_until(lambda: links.growth(RECORD_BYTES, path="linked") > 100_000, "links are used", PATIENCE_S)
        script.cluster.admin.wait_for_full_isr(script.topic)
        table.expect_all_read()
        assert script.counters.growth(DECLARED_GAPS) == 0

        table.expect_cleaned(LEADER, *OTHERS)
        end = log.end_offset(LEADER)

        def has_all(broker_id: int) -> bool:
            return log.end_offset(broker_id) == end

        for broker_id in (LEADER, *OTHERS):
            wait_until(partial(has_all, broker_id), f"broker {broker_id} has all", PATIENCE_S)
            assert newest_values(log.directory(broker_id)) == table.values
        assert drilled_recovery(script.cluster, LEADER, script.topic, tmp_path / "drill")["end_offset"] == end
        assert newest_values(tmp_path / "drill" / f"{script.topic}-0") == table.values


def newest_values(directory: Path) -> dict[bytes, bytes]:
    """The last value of each key, as the segments have it."""
    found: dict[bytes, bytes] = {}
    for base_offset in list_segments(directory):
        records = MemoryRecords((directory / log_file_name(base_offset)).read_bytes())
        while records.has_next():
            found.update((record.key, record.value) for record in records.next_batch())
    return found


# Disks.


def test_replicas_that_move_between_disks_are_uploaded_on_from_where_they_are(script: Script) -> None:
    # two partitions, 3 leads one and follows in the other; under load both go to the other disk, and back
    cluster, topic = script.cluster, script.topic
    script.create_topic(assignment=[[LEADER, *OTHERS], [*OTHERS, LEADER]])
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    with stored_log(script) as log:
        for _ in range(2):
            for partition in (0, 1):
                move_to(cluster, topic, partition, other_disk(cluster, topic, partition))
            expect_linked_on(script)
        script.expect_promises()
        log.expect_all_stored(LEADER, log.end_offset(LEADER))
    assert script.counters.growth(DECLARED_GAPS) == 0
    assert script.counters.growth("remote_wal_log_read_failures_total") == 0
    planned = run_command(cluster, "recover", LEADER, "--dry-run", "--topic", topic)["logs"]
    assert [log["status"] for log in planned] == ["whole"] * 2


def test_when_a_disk_fails_its_partitions_are_led_elsewhere_and_the_others_are_linked_on(script: Script) -> None:
    # 3 leads two partitions, one on each disk -> the broker meets an error on one disk and takes it offline -> that
    # partition is led by another broker, the agent lets it go and says so; the other one is led and linked as before
    cluster, topic = script.cluster, script.topic
    script.create_topic(assignment=[[LEADER, *OTHERS]] * 2)
    kept, failing = cluster.layout.log_directories(LEADER)  # the first one has the controllers' log, too
    move_to(cluster, topic, 0, kept)
    move_to(cluster, topic, 1, failing)
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    with failed(failing):
        cluster.admin.wait_for_leader(topic, 1, other_than=LEADER)
        wait_until(lambda: led_by_agent(cluster, LEADER, topic) == [0], "its agent has let go of it", PATIENCE_S)
        expect_linked_on(script)
        assert "log_directory_failed" in script.agent_log(LEADER)
        script.stop_agent(LEADER)
        script.start_agent(LEADER)
        expect_linked_on(script)
        wait_for_isr(cluster.admin, topic, OTHERS, partition=1)
        assert leader_of(cluster.admin, topic, 0) == LEADER
        assert led_by_agent(cluster, LEADER, topic) == [0]
    cluster.broker(LEADER).terminate(60.0)
    cluster.start_broker(LEADER)
    script.expect_promises()


def expect_linked_on(script: Script) -> None:
    """The agent of the broker with two disks uploads, and links are used."""
    uploads = AgentCounters(script.cluster, [LEADER])
    script.expect_links_to_be_used()
    wait_until(lambda: uploads.growth("remote_wal_uploaded_bytes_total") > 50_000, "it uploads on", PATIENCE_S)
    script.expect_records_to_flow()


def led_by_agent(cluster: LocalCluster, broker_id: int, topic: str) -> list[int]:
    """The partitions that the agent says it uploads."""
    shown = describe(cluster, broker_id)["partitions"]
    return sorted(one["partition"] for one in shown if one["topic"] == topic)


@contextmanager
def failed(disk: Path) -> Iterator[None]:
    """Files can neither be opened nor made there, whoever tries."""
    aside = disk.with_name(f"{disk.name}-aside")
    disk.rename(aside)
    disk.touch()
    try:
        yield
    finally:
        disk.unlink()
        aside.rename(disk)


def other_disk(cluster: LocalCluster, topic: str, partition: int) -> Path:
    replica = cluster.layout.partition_directory(LEADER, topic, partition)
    assert replica is not None
    [other] = set(cluster.layout.log_directories(LEADER)) - {replica.parent}
    return other


def move_to(cluster: LocalCluster, topic: str, partition: int, disk: Path) -> None:
    """Move the replica of the broker with two disks, and wait until it is on this one alone."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    try:
        [error] = admin.alter_replica_log_dirs({TopicPartitionReplica(topic, partition, LEADER): str(disk)}).values()
    finally:
        admin.close()
    assert error.errno == 0, error

    def moved() -> bool:
        disks = cluster.layout.log_directories(LEADER)
        holding = [path for path in disks if (path / f"{topic}-{partition}").is_dir()]
        return holding == [disk] and not any(disk.glob(f"{topic}-{partition}.*-future"))

    wait_until(moved, f"{topic}-{partition} is on {disk}", PATIENCE_S)

"""What consumers read of topics is read from object storage, too: by the same offsets, and the same bytes."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

import remote_wal
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.polling import wait_until
from plugin.loading import ARCHIVE_IMPL_PREFIX
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.script import PATIENCE_S, Script
from tests.spark import spark
from topic_reader.read import IsolationLevel
from topic_reader.sources import StoredTopics
from topic_reader.stored_log import DataLossError

__all__ = ["spark"]

COMPACTED = "compacted"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LEVELS: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
ARCHIVING = {
    "remote.wal.archive.enable": "true",
    "remote.wal.archive.storage.manager.class.name": "plugin.local_directory.LocalWalStorageManager",
    **quick(archive_object_min_bytes=20000, archive_object_max_bytes=50000, archive_run_bytes=10000),
    "remote.wal.archive.object.max.age.ms": "1000",
    **quick(archive_look_s=0.2, archive_delete_grace_ms=1000, expiration_interval_s=0.2, delete_grace_times=0.03),
    **quick(snapshot_interval_s=1),
    "remote.wal.log.metadata.topic.replication.factor": "1",
}


class Seen(NamedTuple):
    """A record as any reader gives it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...]


def produce(cluster: LocalCluster, topic: str, codec: str, partitions: int) -> None:
    """Records with and without keys, values and headers."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec, "linger.ms": 5})
    for number in range(60):
        producer.produce(
            topic,
            None if number % 10 == 0 else b"%s %d " % (codec.encode(), number) * 20,
            None if number % 3 == 0 and topic != COMPACTED else b"key %d" % (number % 7),
            partition=number % partitions,
            timestamp=1_700_000_000_000 + number,
            headers=[("codec", codec.encode()), ("empty", None)] if number % 4 == 0 else None,
        )
    assert producer.flush(PATIENCE_S) == 0


def transact(cluster: LocalCluster, topic: str, codec: str, partitions: int) -> None:
    """Transactions that are committed and aborted in turn, between others' records."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec}
    producer = Producer({**settings, "transactional.id": f"{topic}-{codec}"})
    others = Producer(settings)
    producer.init_transactions(PATIENCE_S)
    for turn in range(4):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, b"%d of turn %d" % (number, turn), partition=number % partitions)
            others.produce(topic, b"beside it", partition=number % partitions)
        assert producer.flush(PATIENCE_S) == 0
        assert others.flush(PATIENCE_S) == 0
        (producer.abort_transaction if turn % 2 else producer.commit_transaction)(PATIENCE_S)


def consumed(cluster: LocalCluster, topic: str, partitions: int, level: IsolationLevel) -> list[Seen]:
    """What a consumer reads from the beginning to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": level,
        }
    )
    seen: list[Seen] = []
    with closing(consumer):
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        ended: set[int] = set()
        while len(ended) < partitions:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{topic} did not end"
            if message.error() is not None:
                ended.add(message.partition())
                continue
            kind, time_ms = message.timestamp()
            headers = tuple((name, value) for name, value in message.headers() or ())
            seen.append(
                Seen(message.partition(), message.offset(), message.key(), message.value(), time_ms, kind - 1, headers)
            )
    return sorted(seen)


def stored(source: remote_wal.Source, topic: str, partitions: int, level: IsolationLevel) -> list[Seen]:
    return [
        Seen(
            number, one.offset, one.key, one.value, one.timestamp_ms, one.timestamp_type, one.headers
        )
        for number in range(partitions)
        for one in remote_wal.read(topic, number, source, isolation_level=level)
    ]  # fmt: skip


def expect_all_stored(source: remote_wal.Source, topic: str, records: Sequence[Seen]) -> None:
    """Up to the last record of each partition."""
    ends = {one.partition: one.offset + 1 for one in records}

    def is_stored() -> bool:
        with StoredTopics.find(source, [topic]).opened() as topics:
            return all(topics.log(topic, number).bounds()[1] >= end for number, end in ends.items())

    wait_until(is_stored, f"all of {topic} is stored", PATIENCE_S, interval_s=0.5)


@pytest.mark.gate
def test_every_codec_and_transactions_are_read_from_objects_while_brokers_run(agent_script: Script) -> None:
    cluster, topic = agent_script.cluster, agent_script.topic
    # Records of 2023 would go with the broker's next look at retention, as soon as newer ones began a segment.
    cluster.admin.create_topic(topic, 1, config={"retention.ms": "-1"})
    agent_script.link_topic()
    for codec in CODECS:
        produce(cluster, topic, codec, 1)
    transact(cluster, topic, "lz4", 1)
    source = remote_wal.Source(cluster.layout.server_properties(1))
    records = consumed(cluster, topic, 1, "read_uncommitted")
    expect_all_stored(source, topic, records)
    assert stored(source, topic, 1, "read_uncommitted") == records
    committed = consumed(cluster, topic, 1, "read_committed")
    assert stored(source, topic, 1, "read_committed") == committed
    assert 0 < len(committed) < len(records)
    asked = replace(source, bootstrap_servers=cluster.bootstrap_servers)
    assert stored(asked, topic, 1, "read_committed") == committed

    # Nothing is stored of a topic that is not enabled: brokers say whether that is all of it.
    other = f"{topic}-inline"
    cluster.admin.create_topic(other, 1, config={"retention.ms": "-1"})
    assert stored(asked, other, 1, "read_uncommitted") == []
    produce(cluster, other, "none", 1)
    with pytest.raises(DataLossError, match="all its records went inline"):
        stored(asked, other, 1, "read_uncommitted")


@pytest.fixture
def archiving_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    archive = {**ARCHIVING, f"{ARCHIVE_IMPL_PREFIX}directory": str(tmp_path / "archive")}
    settings = ClusterSettings(QuickAgents(overrides=archive), {"log.cleaner.min.cleanable.ratio": "0.01"})
    with LocalCluster.create(tmp_path / "cluster", brokers=1, settings=settings) as cluster:
        cluster.start()
        yield cluster


@pytest.mark.timeout(900)
def test_with_all_brokers_stopped_the_reader_and_spark_give_what_consumers_read(
    archiving_cluster: LocalCluster, spark: SparkSession
) -> None:
    cluster = archiving_cluster
    settings = {
        "plain": {},
        "appended": {"message.timestamp.type": "LogAppendTime"},
        "transactions": {},
        "archived": {"segment.bytes": "1048576"},
        COMPACTED: {"cleanup.policy": "compact", "segment.ms": "1000", "max.compaction.lag.ms": "1000"},
    }
    partitions = dict(zip(settings, (3, 1, 2, 1, 1), strict=True))
    for topic, config in settings.items():
        cluster.admin.create_topic(topic, partitions[topic], 1, config={"retention.ms": "-1"} | config)
        set_topics(cluster.bootstrap_servers, [topic], replace(LINKED_AND_KEPT, archive=topic == "archived"))
    for topic, codec in ((topic, codec) for topic in settings for codec in CODECS):
        produce(cluster, topic, codec, partitions[topic])
    for codec in CODECS:
        transact(cluster, "transactions", codec, partitions["transactions"])
        # As Java's producers compress.
        cluster.tools.produce("plain", records=200, record_bytes=300, config={"compression.type": codec})
    cluster.tools.produce("archived", records=1000, record_bytes=500, config={"compression.type": "snappy"})
    source = remote_wal.Source(cluster.layout.server_properties(1))
    wait_until(lambda: any((cluster.layout.directory.parent / "archive").rglob("*.*")), "some is archived", PATIENCE_S)
    before = {
        (topic, level): consumed(cluster, topic, partitions[topic], level) for topic in settings for level in LEVELS
    }
    for topic in settings:
        expect_all_stored(source, topic, before[topic, "read_uncommitted"])
    latest = {one.key: one.value for one in before[COMPACTED, "read_uncommitted"] if one.key is not None}
    cluster.stop()

    spark.dataSource.register(remote_wal.RemoteWalDataSource)
    for (topic, level), records in before.items():
        for where in (source, replace(source, from_objects=True)) if topic != COMPACTED else ():
            assert stored(where, topic, partitions[topic], level) == records, (topic, level, where.from_objects)
        read = spark.read.format("remote_wal").option("includeHeaders", "true").option("failOnDataLoss", "true")
        read = read.options(
            **{"brokerConfig": str(source.broker_config), "subscribe": topic, "kafka.isolation.level": level}
        )
        rows = read.load().selectExpr("*", "unix_millis(timestamp) AS ms").collect()
        by_spark = sorted(
            Seen(
                row.partition,
                row.offset,
                row.key if row.key is None else bytes(row.key),
                row.value if row.value is None else bytes(row.value),
                row.ms,
                row.timestampType,
                tuple((name, value if value is None else bytes(value)) for name, value in row.headers or ()),
            )
            for row in rows
        )
        if topic == COMPACTED:
            read_latest = {one.key: one.value for one in by_spark if one.key is not None}
            assert {key: value for key, value in read_latest.items() if key in latest} == latest
            assert all(read_latest[key] is None for key in read_latest.keys() - latest.keys()), "tombstones are cleaned"
        else:
            assert by_spark == records, (topic, level)

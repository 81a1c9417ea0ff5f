"""Spark reads topics from what is stored of them, in the session of the report's tests."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import remote_wal
from local_cluster.polling import wait_until
from tests.recovery.ruins import ORDERS, Ruins
from tests.topic_reader.test_read import transactions
from tests.topic_reader.test_spark_source import READ_COMMITTED, options
from tests.topic_reader.written import BASE_MS, Written, marker, written_batch


@pytest.mark.gate
def test_batches_and_streams_give_each_record_once_with_the_columns_of_kafkas_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    ruins = Ruins(tmp_path)
    ruins.write()
    sent = [Written(b"k%d" % number, b"v%d" % number, BASE_MS + number) for number in range(100)]
    sent[3] = Written(b"k3", None, BASE_MS + 3, (("h", b"1"), ("h", None)))

    def upload(first: int, end: int) -> None:
        raw = written_batch(first, sent[first:end], codec="zstd")
        ruins.upload(first, (ORDERS, 0, first, raw))

    upload(0, 40)
    upload(40, 60)
    spark.dataSource.register(remote_wal.RemoteWalDataSource)
    read = spark.read.format("remote_wal").options(**options(ruins))
    frame = read.option("includeHeaders", "true").load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = {row.offset: row for row in frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()}
    assert sorted(rows) == list(range(60))
    assert [(row.key, row.value, row.ms) for _, row in sorted(rows.items())] == [
        (one.key, one.value, one.timestamp_ms) for one in sent[:60]
    ]
    assert [(one.key, one.value) for one in rows[3].headers] == [("h", b"1"), ("h", None)]
    assert (rows[0].topic, rows[0].partition, rows[0].timestampType, rows[0].headers) == ("orders", 0, 0, None)
    wanted = {"startingTimestamp": str(BASE_MS + 7), "endingOffsets": json.dumps({"orders": {"0": 12}})}
    narrow = spark.read.format("remote_wal").options(**options(ruins), **wanted, columns="offset")
    assert [row.asDict() for row in narrow.load().collect()] == [{"offset": number} for number in range(7, 12)]

    # A stream goes on where its checkpoint ends, whatever was stored meanwhile.
    stream = spark.readStream.format("remote_wal").options(**options(ruins)).option("startingOffsets", "earliest")
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    for end in (60, 100):
        if end > 60:
            upload(60, end)
        writer = stream.load().writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start(out).awaitTermination()
        found = sorted(row.offset for row in spark.read.parquet(out).collect())
        assert found == list(range(end))


def test_a_stream_that_starts_at_the_end_gives_what_comes_after_it(spark: SparkSession, tmp_path: Path) -> None:
    ruins = Ruins(tmp_path)
    ruins.write()
    for number, raw in enumerate(transactions()):
        ruins.upload(number, (ORDERS, 0, int.from_bytes(raw[:8], "big"), raw))
    spark.dataSource.register(remote_wal.RemoteWalDataSource)
    stream = spark.readStream.format("remote_wal").options(**options(ruins), **READ_COMMITTED)
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def found() -> list[int]:
        writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start(str(out)).awaitTermination()
        return sorted(row.offset for row in spark.read.schema("offset LONG").parquet(str(out)).collect())

    assert found() == [], "it starts before the open transaction"
    for path in (checkpoint / "commits").iterdir():  # as if it was killed in its first batch
        path.unlink()
    ruins.upload(100, (ORDERS, 0, 16, marker(16, 3, commits=True)))
    assert found() == [], "Spark repeats that batch, and ends as it has no rows"
    assert found() == [13, 14, 15]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"failOnDataLos": "false"}, "there is no option failOnDataLos (is failOnDataLoss meant?)"),
        ({"brokerConfig": "/nowhere/server.properties"}, "No such file or directory: '/nowhere/server.properties'"),
        ({"subscribe": "order"}, "read topics order: no topic of this name is known (is orders meant?)"),
        ({"endingOffsets": '{"orders": {"0": 80}}'}, "read orders-0: offsets 40 to 79 are in no readable object"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    spark: SparkSession, tmp_path: Path, more: dict[str, str], said: str
) -> None:
    ruins = Ruins(tmp_path)
    ruins.write()
    ruins.upload(1, (ORDERS, 0, 0, written_batch(0, [Written(None, b"v", BASE_MS)] * 40)))
    spark.dataSource.register(remote_wal.RemoteWalDataSource)
    with pytest.raises(PySparkException) as told:
        spark.read.format("remote_wal").options(**options(ruins)).options(**more).load().collect()
    assert said.lower() in str(told.value).lower()
    assert "Traceback" not in str(told.value)


def test_an_object_that_filters_leave_out_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    ruins = Ruins(tmp_path)
    ruins.write()
    for first in (0, 40):
        raw = written_batch(first, [Written(None, b"v", BASE_MS)] * 40)
        path = ruins.upload(first, (ORDERS, 0, first, raw))
        if not first:
            damaged = bytearray(path.read_bytes())
            damaged[damaged.index(raw) + len(raw) - 1] ^= 1
            path.write_bytes(damaged)
    spark.dataSource.register(remote_wal.RemoteWalDataSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        read = spark.read.format("remote_wal").options(**options(ruins)).option("pushFilters", "true")
        wanted = read.load().where("offset >= 42 AND offset < 50 AND partition = 0")
        assert sorted(row.offset for row in wanted.collect()) == list(range(42, 50))
        with pytest.raises(Exception, match="offsets 7 to 39"):
            read.load().where("offset >= 7").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.thorough
def test_a_stream_that_is_killed_in_a_batch_gives_each_record_once_after_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    ruins = Ruins(tmp_path)
    ruins.write(more="rsm.wal.config.get.latency.ms=500\n")
    for first in range(0, 200, 10):
        ruins.upload(first, (ORDERS, 0, first, written_batch(first, [Written(None, b"v", BASE_MS)] * 10)))
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    told = json.dumps({**options(ruins), "startingOffsets": "earliest", "settledMs": "0"})
    command = [sys.executable, "-m", "tests.retention_job.spark.stream_to_files", told, str(out), str(checkpoint)]

    def is_in_a_batch() -> bool:
        assert running.poll() is None, "it ended before it could be killed"
        return (checkpoint / "offsets" / "0").exists()

    with subprocess.Popen(command, start_new_session=True) as running:
        try:
            wait_until(is_in_a_batch, "the stream's first batch has begun", 240.0)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
    assert not (checkpoint / "commits" / "0").exists()
    subprocess.run(command, check=True, timeout=400)
    assert sorted(row.offset for row in spark.read.parquet(str(out)).collect()) == list(range(200))

"""Measures Spark's part on this machine: the report over many objects, and the source beside Spark's own for Kafka.

The report runs in processes of one driver whose JVM has 1 GB and is the executor, too. Its metadata and inventory are
made before, as files, so that reading Kafka is not in its figures. The source reads what brokers with agents have of
one topic; Spark then has a host of its own, a network namespace, into which the kernel counts the bytes.
"""

import json as json_format
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.connection import Json
from cli.tables import show, table
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG, LINKED_AND_KEPT, set_topics
from local_cluster.processes import descendants
from local_cluster.zones import ZoneHosts
from metadata_topic.topic.topic import METADATA_TOPIC
from perf.clusters import STORE_HOST, Rounds, Store, object_store
from perf.pack import records_of
from retention_job.settings import InventoryFile, KafkaSource, Sources
from retention_job.sources.kafka import RAW_COLUMNS, Cluster, Kafka, Offsets
from tests.retention_job.recorded.history import (
    CLUSTER_ID,
    HistorySpec,
    Planted,
    bulk_segments,
    cluster_of,
    record_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_NOW_MS: Final = 1_790_000_000_000
_CHUNK: Final = 5_000
_SPARK_HOST: Final = 11
_JVM_MEMORY: Final = "1g"
_RECORD_BYTES: Final = 1_000
_KEYS_AND_SIZES: Final = "key BINARY, value BINARY, partition INT, offset LONG, name STRING, size LONG, at_ms LONG"
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Used:
    """CPU time and memory that this process and its descendants have used: driver, JVM, and Python's workers."""

    seconds: float
    cpu_s: float
    jvm_mb: float
    """The largest resident set of the JVM, and of this Python."""
    python_mb: float

    @classmethod
    def now(cls) -> "Used":
        """Return what was used since this process began; dead children count once their parents have waited for
        them."""
        ticks, jvm_mb = 0, 0.0
        for pid in (os.getpid(), *descendants(os.getpid())):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                jvm_mb = max(jvm_mb, _resident_mb(pid))
        return cls(time.monotonic(), ticks / _TICKS_A_SECOND, jvm_mb, _resident_mb(os.getpid()))

    def since(self, before: "Used") -> "Used":
        """Return what was used since `before`; the memory is the peak, not a difference."""
        return replace(self, seconds=self.seconds - before.seconds, cpu_s=self.cpu_s - before.cpu_s)


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


# The report.


@dataclass(frozen=True)
class _MadeTopic(Kafka):
    """A metadata topic that is a file, up to a part of each partition."""

    path: str
    spec: HistorySpec
    part: float = 1.0

    def cluster(self) -> Cluster:
        ends = dict.fromkeys(self.spec.broker_ids, round(self.spec.per_broker * self.part))
        offsets = Offsets(dict.fromkeys(self.spec.broker_ids, 0), ends)
        found = cluster_of(self.spec, Planted(), offsets)
        return replace(found, offsets={**found.offsets, METADATA_TOPIC: offsets})

    def records(
        self, spark: "SparkSession", topic: str, starting: Mapping[int, int], ending: Mapping[int, int]
    ) -> "DataFrame":
        if topic != METADATA_TOPIC:
            return spark.createDataFrame([], RAW_COLUMNS)
        within = f"offset >= {min(starting.values())} AND offset < {max(ending.values())}"
        columns = ("key", "value", "partition", "offset", "at_ms AS timestamp_ms")
        return spark.read.parquet(self.path).filter(within).selectExpr(*columns)


def _make(spark: "SparkSession", spec: HistorySpec, directory: Path) -> None:
    """Write the topic, and an inventory of its objects."""
    from plugin.format.object_keys import ObjectKeyFactory

    def rows(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        names = ObjectKeyFactory.of("", CLUSTER_ID)
        for batch in batches:
            for broker_id, first in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                made = list(bulk_segments(spec, broker_id, range(first, min(first + _CHUNK, spec.per_broker))))
                keys, values = zip(*map(record_of, made), strict=True)
                yield pa.RecordBatch.from_pydict(
                    {
                        "key": pa.array(keys, pa.binary()),
                        "value": pa.array(values, pa.binary()),
                        "partition": pa.array([broker_id] * len(made), pa.int32()),
                        "offset": [one.combined_segment_id.sequence for one in made],
                        "name": [names.key_of(one.combined_segment_id) for one in made],
                        "size": [one.size_bytes for one in made],
                        "at_ms": [one.event_timestamp_ms for one in made],
                    }
                )

    chunks = [(broker, first) for broker in spec.broker_ids for first in range(0, spec.per_broker, _CHUNK)]
    asked = spark.createDataFrame(chunks, "broker INT, first INT").repartition(16)
    asked.mapInArrow(rows, _KEYS_AND_SIZES).write.parquet(str(directory / "topic"))
    made = spark.read.parquet(str(directory / "topic"))
    listed = made.selectExpr("'wal' AS bucket", "name AS key", "size", "timestamp_millis(at_ms) AS last_modified_date")
    listed.write.parquet(str(directory / "inventory"))


def _report(directory: Path, spec: HistorySpec) -> list[dict[str, Any]]:
    """Make the world if it is not there; run the report over it, and again with 1 % more records."""
    from plugin.prices import PriceTable
    from retention_job.page.report import make_report
    from retention_job.page.report_output import ReportOutput
    from retention_job.run import RunSettings, run
    from retention_job.settings import StoreSections
    from retention_job.spark.session import spark_session

    spark = spark_session("local[2]", memory=_JVM_MEMORY, settings={"spark.sql.shuffle.partitions": "16"})
    if not directory.exists():
        _make(spark, spec, directory)
        return []
    found = []
    inventory = (InventoryFile(str(directory / "inventory"), CLUSTER_ID),)
    sources = Sources(KafkaSource("nowhere:1"), str(directory / "state"), inventory, is_incremental=True)
    output = ReportOutput(spark, str(directory / "output"))
    for run_id, part in (("all", 0.99), ("more", 1.0)):
        before = Used.now()
        topic = _MadeTopic(str(directory / "topic"), spec, part)
        result = run(RunSettings(sources, _NOW_MS, run_id), spark, topic)
        make_report(result, PriceTable.load(), StoreSections(), output, CLUSTER_ID).write(output)
        result.finish()
        used = Used.now().since(before)
        found.append(_figures("report", f"{spec.segments:,} objects, {run_id}", result.history.read.records, used))
    return found


# The source.


def _read(form: str, options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Read a topic once, into nothing."""
    import remote_wal
    from retention_job.spark.session import spark_session

    spark = spark_session("local[2]", memory=_JVM_MEMORY)
    spark.dataSource.register(remote_wal.RemoteWalDataSource)
    before = Used.now()
    observed = spark.read.format(form).options(**options).load()
    counted = observed.selectExpr("count(*) AS n", "sum(length(value)) AS b").collect()[0]
    return [_figures(form, options["subscribe"], counted.n, Used.now().since(before)) | {"value_bytes": counted.b}]


def _figures(part: str, what: str, records: int, used: Used) -> dict[str, Any]:
    return {
        "part": part, "of": what, "records": records, "seconds": used.seconds, "cpu_s": used.cpu_s,
        "jvm_mb": used.jvm_mb, "python_mb": used.python_mb,
    }  # fmt: skip


def _sources(mb: int, rounds: int) -> list[dict[str, Any]]:
    """Read a topic of plain records and one of zstd by both sources in turns."""
    from confluent_kafka import Producer

    hosts = ZoneHosts("198.18", (1, 2, 3, STORE_HOST, _SPARK_HOST))
    found = []
    with ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="remote-wal-perf-")))
        ends.enter_context(hosts.make())
        store = ends.enter_context(object_store(Store.NATIVE, 0, hosts))
        settings = ClusterSettings(AgentsMode(store), hosts=hosts, heap_mb=384, full_compiler=True)
        cluster = ends.enter_context(LocalCluster.create(directory / "cluster", settings=settings))
        cluster.start(300.0)
        config = cluster.layout.server_properties(1)
        for codec in ("none", "zstd"):
            cluster.admin.create_topic(codec, partitions=4, replication_factor=3)
            set_topics(cluster.bootstrap_servers, [codec], LINKED_AND_KEPT)
            cluster.wait_until_ready()
            own = {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec, "linger.ms": 20}
            producer = Producer({**CLIENT_CONFIG, **own})
            records = records_of("json", _RECORD_BYTES)
            for number in range(mb * 1_000_000 // _RECORD_BYTES):
                producer.produce(codec, records[number % len(records)], partition=number % 4)
                if number % 1000 == 0:
                    producer.poll(0)
                while len(producer) > 50_000:
                    producer.poll(0.1)
            producer.flush()
            stored = {"brokerConfig": str(config), "fromObjects": "true", "subscribe": codec}
            at_brokers = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": codec}
            threading.Event().wait(5.0)  # what went inline is uploaded after it
            for _ in range(rounds):
                for form, options in (("remote_wal", stored), ("kafka", at_brokers)):
                    before = hosts.entered_bytes()[_SPARK_HOST]
                    environment = {**os.environ, **store.environment()}
                    [one] = _in_a_process([form, json_format.dumps(options)], environment, hosts.prefix(_SPARK_HOST))
                    found.append(one | {"network_bytes": hosts.entered_bytes()[_SPARK_HOST] - before})
    return found


def _in_a_process(
    words: Sequence[str], environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Run this module in a process of its own, whose memory and workers are all that is counted."""
    command = [*prefix, sys.executable, "-m", "perf.spark", *words]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: list[dict[str, Any]] = json_format.loads(done.stdout.splitlines()[-1])
    return found


def spark(
    part: Annotated[list[str] | None, typer.Option(help="report, source. Default: both.")] = None,
    objects: Annotated[list[int] | None, typer.Option(min=1000, help="Default: 300,000 and 1,000,000.")] = None,
    mb: Annotated[int, typer.Option(min=1, help="Of each topic that the source reads.")] = 300,
    rounds: Rounds = 1,
    json: Json = False,
) -> None:
    """Measure the report over so many objects, and the source beside Spark's own for Kafka. The source needs root."""
    found: list[dict[str, Any]] = []
    if "report" in (part or ("report",)):
        for count in objects or (300_000, 1_000_000):
            with tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory:
                words = ["report", f"{directory}/world", str(count)]
                _in_a_process(words)
                found += _in_a_process(words)
    if "source" in (part or ("source",)):
        found += _sources(mb, rounds)
    if json:
        typer.echo(json_format.dumps(found, indent=1))
        return
    rows = [
        (
            one["part"], one["of"], f"{one['records']:,}", f"{one['seconds']:.0f}", f"{one['cpu_s']:.0f}",
            f"{1e6 * one['cpu_s'] / max(1, one['records']):.0f}", f"{one['jvm_mb']:.0f}", f"{one['python_mb']:.0f}",
            f"{one['network_bytes'] / 1e6:.0f}" if "network_bytes" in one else "",
        )
        for one in found
    ]  # fmt: skip
    columns = (">records", ">s", ">CPU s", ">for a million", ">JVM MB", ">driver's Python MB", ">network MB")
    show(table("part", "of", *columns, rows=rows, title="Spark on this machine"))


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "report":
        measured = _report(Path(rest[0]), HistorySpec(int(rest[1]), _NOW_MS, brokers=10))
    else:
        measured = _read(kind, json_format.loads(rest[0]))
    print(json_format.dumps(measured))

"""How long `remote-wal report`'s engine takes, and how much memory, from a real topic through Spark's connector."""

import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from cli.tables import show, table
from local_cluster.cluster import LocalCluster
from metadata_topic.topic.client_config import KafkaClientConfig
from metadata_topic.topic.topic import METADATA_TOPIC
from perf.clusters import log_bytes
from perf.options import Results
from plugin.archive_storage import StoredArchiveObject
from plugin.format.object_keys import ObjectKeyFactory
from retention_job.run import RunResult, RunSettings, run
from retention_job.settings import InventoryFile, KafkaSource, LifeTimes, Sources
from retention_job.sources.kafka_cluster import Cluster, Offsets
from retention_job.sources.kafka_reading import Kafka
from retention_job.spark.session import DEFAULT_MEMORY, spark_session
from tests.retention_job.recorded.defects import planted
from tests.retention_job.recorded.history import (
    CLUSTER_ID,
    HOUR_MS,
    HistorySpec,
    Planted,
    StoredObject,
    broker_ids,
    bulk_records,
    bulk_starts,
    cluster_of,
    event_ms,
    object_bytes,
    sequences_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_800_000_000_000
_CHUNK = 20_000
_SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run took."""

    seconds: float
    cpu_s: float
    """Of Spark's JVM and all Pythons: a busy machine changes it less than the time."""
    phases_s: Mapping[str, float]
    peak_gib: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the job."""

    name: str
    segments: int
    records: int
    spent: Spent
    findings: int
    missing: int
    """Planted and not found."""
    surplus: int
    """Found and not planted."""
    topic_bytes: int
    """Of the metadata topic's log."""
    state_bytes: Mapping[str, int]
    """What the run and those before it keep for the next one, by table."""


class BesideKafka(Kafka):
    """The metadata topic is real; the topics that it tells of, and their logs, are not."""

    def __init__(self, spec: HistorySpec, defects: list[Planted], admin: "MetadataTopic") -> None:
        self._spec, self._defects, self._admin = spec, defects, admin

    def cluster(self, source: KafkaSource, /) -> Cluster:
        return cluster_of(self._spec, self._defects, self._admin.offsets())


class MetadataTopic:
    """The topic of a broker on this machine: a partition per broker of the history, and one more."""

    def __init__(self, bootstrap_servers: str, partitions: int) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        self._servers, self._partitions = bootstrap_servers, partitions
        admin = AdminClient(KafkaClientConfig(bootstrap_servers).for_confluent())
        config = {"retention.ms": "-1", "segment.bytes": str(256 * 1024 * 1024)}
        admin.create_topics([NewTopic(METADATA_TOPIC, partitions, 1, config=config)])[METADATA_TOPIC].result(60)
        self._producer = Producer(
            KafkaClientConfig(bootstrap_servers).for_confluent(
                compression_type="zstd",
                linger_ms=50,
                batch_size=900_000,
                queue_buffering_max_messages=200_000,
                enable_idempotence=True,
            )
        )

    def write(self, spec: HistorySpec, defects: Planted) -> int:
        """The bulk and the defects of this part of the history; how many records."""
        written = 0
        for start in range(0, spec.per_broker, _CHUNK):
            for broker_id in broker_ids(spec):
                sequences = sequences_of(spec, start, min(start + _CHUNK, spec.per_broker))
                keys, values = bulk_records(spec, broker_id, sequences)
                starts = bulk_starts(spec, keys, sequences).tolist() if spec.with_starts else [None] * len(keys)
                columns = (sequences.tolist(), keys.tolist(), starts, values.tolist())
                for sequence, key, begun, value in zip(*columns, strict=True):
                    if (broker_id, sequence) not in defects.unpublished:
                        for record in filter(None, (begun, value)):
                            self._produce(broker_id, key, record)
                            written += 1
        for broker_id, (key, value) in defects.records:
            self._produce(broker_id, key, value)
        self._producer.flush(120)
        return written + len(defects.records)

    def _produce(self, partition: int, key: bytes, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(METADATA_TOPIC, value, key, partition)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def offsets(self) -> Offsets:
        """Where the partitions begin and end."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(KafkaClientConfig(self._servers).for_confluent(group_id="none"))
        try:
            marks = {
                number: consumer.get_watermark_offsets(TopicPartition(METADATA_TOPIC, number), timeout=30)
                for number in range(self._partitions)
            }
        finally:
            consumer.close()
        return Offsets({n: mark[0] for n, mark in marks.items()}, {n: mark[1] for n, mark in marks.items()})


def write_inventory(directory: Path, spec: HistorySpec, defects: Planted) -> None:
    """Add this part's objects to the inventory, as S3 writes it in Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys = ObjectKeyFactory.of("", CLUSTER_ID)
    prefix = keys.list_prefix()
    directory.mkdir(exist_ok=True)
    for broker_id in broker_ids(spec):
        sequences = sequences_of(spec, 0, spec.per_broker)
        lost = [sequence for owner, sequence in defects.lost if owner == broker_id]
        sequences = sequences[~np.isin(sequences, lost)]
        names = [f"{prefix}{broker_id}/000000000001/{sequence:012x}.rwal" for sequence in sequences.tolist()]
        sizes = np.full(len(sequences), object_bytes(spec))
        _write_part(
            pa, pq, directory / f"{spec.first_segment}-{broker_id}.parquet", names, sizes, event_ms(spec, sequences)
        )
    names = [keys.key_of(stored.segment_id) for stored in defects.objects]
    names += [stored.key for stored in defects.archive_objects]
    stored_objects: list[StoredObject | StoredArchiveObject] = [*defects.objects, *defects.archive_objects]
    sizes = np.array([stored.size_bytes for stored in stored_objects])
    times = np.array([stored.last_modified_ms for stored in stored_objects])
    _write_part(pa, pq, directory / f"{spec.first_segment}-planted.parquet", names, sizes, times)


def _write_part(pa: Any, pq: Any, path: Path, names: list[str], sizes: Any, times: Any) -> None:
    table = pa.table(
        {
            "bucket": pa.repeat("wal", len(names)),
            "key": names,
            "size": pa.array(sizes, pa.int64()),
            "last_modified_date": pa.array(times).cast(pa.timestamp("ms", "UTC")),
            "storage_class": pa.repeat("EXPRESS_ONEZONE", len(names)),
        }
    )
    pq.write_table(table, path, row_group_size=500_000)


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """The highest sum of the proportional set sizes of Spark's JVM and all Pythons, in GiB, as the list's one item."""
    peak, done = [0.0], threading.Event()

    def sample() -> None:
        while not done.wait(_SAMPLE_S):
            peak[0] = max(peak[0], sum(_pss_kib(process) for process in Path("/proc").glob("[0-9]*")) / 2**20)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _pss_kib(process: Path) -> int:
    """0 for processes that are not the job's."""
    try:
        if _fields_of(process):
            for line in (process / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _fields_of(process: Path) -> list[str]:
    """Of its `stat`, from the state on; empty for one that is not of this session, or is its Kafka broker. Raises
    OSError, IndexError.
    """
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    command = (process / "cmdline").read_bytes()
    is_jobs = b"SparkSubmit" in command or b"pyspark" in command or b"perf" in command
    return fields if fields[3] == own[3] and is_jobs else []


def job_cpu_s() -> float:
    """Seconds of processor time of the job's processes so far, and of those that they have started and that ended."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            ticks += sum(map(int, _fields_of(process)[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def state_bytes(state: Path) -> dict[str, int]:
    """Of the tables of all runs of a state path, the largest first; staged rows by their kind."""
    found: Counter[str] = Counter()
    for file in state.glob("runs/*/**/*.parquet"):
        table = file.relative_to(state).parts[2:-1]
        found["/".join(table)] += file.stat().st_size
    return dict(found.most_common())


class Bench:
    """Writes a history and runs the job over it."""

    def __init__(self, directory: Path, cluster: LocalCluster, base: HistorySpec, spark: "SparkSession") -> None:
        self._directory, self._spark, self._cluster = directory, spark, cluster
        self._servers = cluster.bootstrap_servers
        self._topic = MetadataTopic(cluster.bootstrap_servers, base.brokers + 1)
        self._defects: list[Planted] = []
        self.measured: list[Measured] = []

    def write(self, spec: HistorySpec) -> float:
        """Make this part of the history; how many seconds it took."""
        began = time.monotonic()
        defects = planted(spec)
        self._topic.write(spec, defects)
        write_inventory(self._directory / "inventory", spec, defects)
        self._defects.append(defects)
        return time.monotonic() - began

    def measure(self, name: str, spec: HistorySpec, incremental: bool) -> Measured:
        """Run the job over all that was written."""
        inventory = (InventoryFile(str(self._directory / "inventory"), CLUSTER_ID),)
        sources = Sources(
            KafkaSource(self._servers),
            inventory,
            str(self._directory / "state"),
            incremental,
            LifeTimes(slack_ms=HOUR_MS),
            inventory,
        )
        phases: list[tuple[str, float]] = []
        began, cpu_s = time.monotonic(), job_cpu_s()
        settings = RunSettings(
            sources, NOW_MS, name, progress=lambda line: phases.append((line.split()[0], time.monotonic()))
        )
        with peak_memory() as peak:
            result = run(settings, self._spark, BesideKafka(spec, self._defects, self._topic))
            result.finish()
        ended = time.monotonic()
        marks = [*phases, ("", ended)]
        took = {line: after - at for (line, at), (_, after) in pairwise(marks)}
        spent = Spent(ended - began, job_cpu_s() - cpu_s, took, peak[0])
        measured = self._judged(name, spec, result, spent)
        self.measured.append(measured)
        return measured

    def _judged(self, name: str, spec: HistorySpec, result: RunResult, spent: Spent) -> Measured:
        rows = result.findings.select("kind", "topic", "partition", "segment").collect()
        found = {(row[0], row[1], row[2], row[3]) for row in rows}
        expected = set().union(*(part.expected for part in self._defects))
        records = result.history.read.records
        segments = spec.first_segment * spec.brokers + spec.segments
        topic_bytes = log_bytes(self._cluster, 1, METADATA_TOPIC, spec.brokers + 1)
        missing, surplus = len(expected - found), len(found - expected)
        kept = state_bytes(self._directory / "state")
        return Measured(name, segments, records, spent, len(rows), missing, surplus, topic_bytes, kept)


def report(
    segments: Annotated[int, typer.Option(min=1000, help="Combined segments; each has an object.")] = 5_000_000,
    entries: Annotated[int, typer.Option(min=1, help="Entries of each.")] = 10,
    hot_entries: Annotated[int, typer.Option(min=0, help="So many of them of one crowded partition.")] = 1,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each broker.")] = 400,
    starts: Annotated[bool, typer.Option(help="A record of each segment's begin, too, as agents write.")] = False,
    added: Annotated[float, typer.Option(min=0, max=1, help="New segments before the incremental run.")] = 0.01,
    cores: Annotated[int, typer.Option(min=1)] = 2,
    memory: Annotated[str, typer.Option(help="Of Spark's JVM.")] = DEFAULT_MEMORY,
    directory: Annotated[Path | None, typer.Option(help="Where everything goes; else a temporary one.")] = None,
    results: Results = Path("perf/results"),
) -> None:
    """Measure the Spark job: a whole run and an incremental one over a history with planted defects."""
    with tempfile.TemporaryDirectory(prefix="remote-wal-report-", dir=directory) as scratch:
        spec = HistorySpec(
            segments,
            NOW_MS,
            entries_per_segment=entries,
            hot_entries=hot_entries,
            partitions_per_broker=partitions,
            with_starts=starts,
        )
        measured = _measure(Path(scratch), spec, added, cores, memory)
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"report-{segments}-of-{entries}-hot{hot_entries}{'-starts' if starts else ''}.json"
    path.write_text(json.dumps([asdict(one) for one in measured], indent=2) + "\n")
    _print(measured)


def _measure(directory: Path, spec: HistorySpec, added: float, cores: int, memory: str) -> list[Measured]:
    later = replace(spec, segments=max(6000, int(spec.segments * added)), first_segment=spec.per_broker, part=1)
    with LocalCluster.create(directory / "cluster", brokers=1) as cluster:
        cluster.start()
        settings = {"spark.sql.shuffle.partitions": str(4 * cores), "spark.local.dir": str(directory / "spark")}
        spark = spark_session(f"local[{cores}]", memory=memory, settings=settings)
        try:
            bench = Bench(directory, cluster, spec, spark)
            typer.echo(f"history written in {bench.write(spec):.0f} s")
            typer.echo(f"whole run: {bench.measure('whole', spec, incremental=False)}")
            if added:
                bench.write(later)
                typer.echo(f"incremental run: {bench.measure('incremental', later, incremental=True)}")
            return bench.measured
        finally:
            spark.stop()


def _print(measured: list[Measured]) -> None:
    rows = [
        (
            one.name, f"{one.segments:,}", f"{one.records:,}", f"{one.spent.seconds:.1f}",
            f"{one.spent.cpu_s:.1f}", f"{one.spent.peak_gib:.2f}",
            f"{one.findings:,}", one.missing, one.surplus, f"{one.topic_bytes / 1e6:,.0f}",
            f"{sum(one.state_bytes.values()) / 1e6:,.0f}",
        )
        for one in measured
    ]  # fmt: skip
    columns = (
        ">segments", ">records read", ">seconds", ">CPU s", ">peak GiB", ">findings", ">missing", ">surplus",
        ">topic, MB", ">kept, MB",
    )  # fmt: skip
    show(table("run", *columns, rows=rows, title="remote-wal report"))

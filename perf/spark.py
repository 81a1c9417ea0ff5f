"""Measures Spark's part on this machine: the report over many objects, and the source beside Spark's own for Kafka.

The metadata and the store's listing are made before, as files that stay, so that reading Kafka and the store is not in
the figures, and a later call goes on with them. Driver and executors, two of one core each, are processes of their own.
The source reads what brokers with agents have of one topic; Spark then has a host of its own, a network namespace, into
which the kernel counts the bytes. Each figure is shown when it is there.
"""

import asyncio
import json as json_format
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from local_cluster.broker_config import AgentsMode
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.object_store.store_spec import OwnStore
from local_cluster.processes import descendants
from local_cluster.zones import ZoneHosts
from metadata_topic.records.topic_doubt import EpochEnds
from metadata_topic.topic.topic import METADATA_TOPIC
from perf.clusters import STORE_HOST, Rounds, object_store, started_cluster
from perf.loads import RECORD_BYTES, record
from plugin.clients.backend_settings import ObjectBackendSettings
from plugin.clients.object_store import ListedObject, ListPage
from plugin.format.entry_columns import COLUMN_HEAD, HEAD
from plugin.format.object_keys import ObjectKeyFactory
from plugin.loading import StorageSpec
from plugin.local_directory import DirectoryStore, LocalDirectorySettings, LocalWalStorageManager
from retention_job.settings import KafkaSource, Sources, StoreListing
from retention_job.sources.kafka import RAW_COLUMNS, Cluster, Kafka, Offsets
from tests.retention_job.recorded.history import (
    CLUSTER_ID,
    HistorySpec,
    Planted,
    Record,
    bulk_segments,
    cluster_of,
    record_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOW_MS: Final = 1_790_000_000_000
_BROKERS: Final = 10
_CHUNK: Final = 50_000
_PARTITIONS_AT: Final = 37 + HEAD.size + COLUMN_HEAD.size
"""Where a record has the lowest of its entries' partitions."""
_SPARK_HOST: Final = 11
_PAYLOADS: Final = 10_000
_DIRECTORY: Final = Path(tempfile.gettempdir()) / "remote-wal-perf-spark"
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Part(StrEnum):
    """The parts of the measurement, in order; each uses what those before it have made."""

    MAKE = "make"
    ALL = "all"
    """A report that reads everything but the last hundredth."""
    MORE = "more"
    """The next one, which reads that."""
    SOURCE = "source"


def _used() -> tuple[float, float, float]:
    """Return the time, and the CPU seconds of the driver (this process and its JVM) and of executors with their
    workers."""
    here, driver, executors = os.getpid(), 0, 0
    for pid in (here, *descendants(here)):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if pid == here:
            driver += sum(map(int, fields[11:13]))
        elif int(fields[1]) == here:
            driver += sum(map(int, fields[11:15]))
        else:
            executors += sum(map(int, fields[11:15]))
    return time.monotonic(), driver / _TICKS_A_SECOND, executors / _TICKS_A_SECOND


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _session(settings: Mapping[str, str] | None = None) -> "SparkSession":
    import pyspark

    from retention_job.spark.session import spark_session

    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    return spark_session("local-cluster[2,1,1024]", settings=settings)


def _figures(
    part: str, of: str, records: int, before: tuple[float, ...], spark: "SparkSession | None" = None
) -> dict[str, Any]:
    """Return a part's figures since `before`; memory is the peak of this process and of the driver's JVM."""
    seconds, driver, executors = (now - then for now, then in zip(_used(), before, strict=True))
    found = {
        "part": part, "of": of, "records": records, "seconds": seconds, "driver_cpu_s": driver,
        "executors_cpu_s": executors, "cpu_s_a_million": 1e6 * (driver + executors) / max(1, records),
        "python_mb": _resident_mb(os.getpid()),
    }  # fmt: skip
    if spark is not None:
        jvm: Any = spark.sparkContext
        executor_list = jvm._jsc.sc().statusStore().executorList(False)  # noqa: SLF001
        each = [executor_list.apply(at) for at in range(executor_list.size())]
        found |= {
            "jvm_mb": _resident_mb(jvm._gateway.proc.pid),  # noqa: SLF001
            "input_mb": sum(one.totalInputBytes() for one in each) / 1e6,
            "shuffle_mb": sum(one.totalShuffleRead() for one in each) / 1e6,
        }
    return found


# The report.


@dataclass(frozen=True)
class _MadeTopic(Kafka):
    """A metadata topic that is files, up to a part of each partition."""

    path: str
    spec: HistorySpec
    part: float = 1.0

    def cluster(self) -> Cluster:
        ends = dict.fromkeys(self.spec.broker_ids, round(self.spec.per_broker * self.part))
        offsets = Offsets(dict.fromkeys(self.spec.broker_ids, 0), ends)
        found = cluster_of(self.spec, Planted(), offsets)
        return replace(found, offsets={**found.offsets, METADATA_TOPIC: offsets})

    def epoch_ends(self, _epochs: Mapping[int, int]) -> EpochEnds:
        return {}

    def records(
        self, spark: "SparkSession", topic: str, starting: Mapping[int, int], ending: Mapping[int, int]
    ) -> "DataFrame":
        if topic != METADATA_TOPIC:
            return spark.createDataFrame([], RAW_COLUMNS)
        within = f"offset >= {min(starting.values())} AND offset < {max(ending.values())}"
        return spark.read.schema(RAW_COLUMNS).parquet(self.path).filter(within)


class MadeStore(LocalWalStorageManager):
    """A store whose listing is files: so many objects would be too many for a disk."""

    def open_store(self, settings: ObjectBackendSettings) -> DirectoryStore:
        assert isinstance(settings, LocalDirectorySettings)  # noqa: S101 - narrows what settings_model made
        return _MadeObjects(settings.directory, 0.0, 0.0, self._sleep)


class _MadeObjects(DirectoryStore):
    async def list_page(self, prefix: str, page: str | None) -> ListPage:
        """Return one of the files of the broker that the prefix ends with; those of the first if it names none."""
        return await asyncio.to_thread(self._page, prefix.split("/")[-2], int(page or 0))

    def _page(self, broker_id: str, number: int) -> ListPage:
        import pyarrow.parquet as pq

        files = sorted(Path(self._directory).glob(f"{broker_id if broker_id.isdigit() else 1}-*.parquet"))
        if not files:
            return ListPage([], None)
        found = map(ListedObject, *pq.read_table(files[number]).to_pydict().values())
        return ListPage(list(found), str(number + 1) if number + 1 < len(files) else None)


def _make(spec: HistorySpec, directory: Path) -> None:
    """Write the topic, and a listing of its objects."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ObjectKeyFactory.of("", CLUSTER_ID)
    for name in ("topic", "store"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    for first in range(0, spec.per_broker, _CHUNK):
        made = list(bulk_segments(spec, 1, range(first, min(first + _CHUNK, spec.per_broker))))
        records, ids = list(map(record_of, made)), [one.combined_segment_id for one in made]
        offsets, times = [one.sequence for one in ids], [one.event_timestamp_ms for one in made]
        for broker_id in spec.broker_ids:
            keys, values = zip(*(_of_broker(broker_id, spec, one) for one in records), strict=True)
            listed = [names.key_of(one._replace(broker_id=broker_id)) for one in ids]
            number = pa.array([broker_id] * len(ids), pa.int32())
            sizes = [one.size_bytes for one in made]
            tables = {
                "topic": {"key": keys, "value": values, "partition": number, "offset": offsets, "timestamp_ms": times},
                "store": {"key": listed, "size_bytes": sizes, "last_modified_ms": times},
            }
            for name, columns in tables.items():
                pq.write_table(pa.table(columns), directory / name / f"{broker_id}-{first}.parquet")
    last = next(bulk_segments(spec, _BROKERS, range(first, first + 1)))
    if record_of(last) != _of_broker(_BROKERS, spec, records[0]):
        raise ValueError("records have another layout than is assumed here")


def _of_broker(broker_id: int, spec: HistorySpec, record: Record) -> Record:
    """Return the first broker's record as this one's, which differs in its id and the partitions; encoding is slow."""
    key, value = record
    writer = struct.pack(">I", broker_id)
    [lowest] = struct.unpack_from("<q", value, _PARTITIONS_AT)
    partition = struct.pack("<q", lowest + (broker_id - 1) * (spec.partitions_per_broker + 1))
    middle, rest = value[6:_PARTITIONS_AT], value[_PARTITIONS_AT + 8 :]
    return writer + key[4:], b"".join((value[:2], writer, middle, partition, rest))


def _report(part: Part, directory: Path, spec: HistorySpec) -> dict[str, Any]:
    """Run the report over what was made."""
    from plugin.prices import PriceTable
    from retention_job.page.report import make_report
    from retention_job.page.report_output import ReportOutput
    from retention_job.run import RunSettings, run
    from retention_job.settings import StoreSections

    spark = _session({"spark.sql.shuffle.partitions": "16"})
    spec_of_store = StorageSpec("perf.spark.MadeStore", None, {"directory": str(directory / "store")})
    store = StoreListing(spec_of_store, CLUSTER_ID)
    sources = Sources(KafkaSource("nowhere:1"), str(directory / "state"), store, is_incremental=part is Part.MORE)
    output = ReportOutput(spark, str(directory / "output"))
    before = _used()
    topic = _MadeTopic(str(directory / "topic"), spec, 0.99 if part is Part.ALL else 1.0)
    result = run(RunSettings(sources, _NOW_MS, f"{part}-{os.getpid()}"), spark, topic)
    make_report(result, PriceTable.load(), StoreSections(), output, CLUSTER_ID).write(output)
    result.finish()
    return _figures(part, f"{spec.segments:,} objects", result.history.read.records, before, spark)


def _world(part: Part, count: int, root: Path) -> dict[str, Any]:
    """Make the world, or run the report over it, in a process of its own."""
    directory, spec = root / str(count), HistorySpec(count, _NOW_MS, brokers=_BROKERS)
    if part is not Part.MAKE:
        return _report(part, directory, spec)
    before, unfinished = _used(), root / f"{count}.part"
    if not directory.exists():
        _make(spec, unfinished)
        unfinished.rename(directory)
    return _figures(part, f"{count:,} objects", count, before)


# The source.


def _read(form: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Read a topic once, into nothing."""
    import remote_wal

    spark = _session()
    spark.dataSource.register(remote_wal.RemoteWalDataSource)
    before = _used()
    observed = spark.read.format(form).options(**options).load()
    counted = observed.selectExpr("count(*) AS n", "sum(length(value)) AS b").collect()[0]
    return _figures(form, options["subscribe"], counted.n, before, spark) | {"value_bytes": counted.b}


def _sources(mb: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Read a topic of plain records and one of zstd by both sources in turns."""
    hosts = ZoneHosts("198.18", (1, 2, 3, STORE_HOST, _SPARK_HOST))
    with ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="remote-wal-perf-")))
        ends.enter_context(hosts.make())
        store = ends.enter_context(object_store(OwnStore.S3_NATIVE, 0, hosts))
        agents = AgentsMode(store)
        cluster = ends.enter_context(started_cluster(directory / "cluster", agents, hosts=hosts, heap_mb=384))
        config, payload = cluster.layout.server_properties(1), directory / "payload"
        payload.write_bytes(b"\n".join(record(number, is_json=True) for number in range(_PAYLOADS)))
        for codec in ("none", "zstd"):
            cluster.admin.create_topic(codec, partitions=4, replication_factor=3)
            set_topics(cluster.bootstrap_servers, [codec], LINKED_AND_KEPT)
            cluster.wait_until_ready()
            cluster.tools.produce(
                codec,
                records=mb * 1_000_000 // RECORD_BYTES,
                config={"compression.type": codec, "linger.ms": "20"},
                payload_file=payload,
            )
            stored = {"brokerConfig": str(config), "fromObjects": "true", "subscribe": codec}
            at_brokers = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": codec}
            threading.Event().wait(5.0)  # what went inline is uploaded after it
            for _ in range(rounds):
                for form, options in (("remote_wal", stored), ("kafka", at_brokers)):
                    before = hosts.entered_bytes()[_SPARK_HOST]
                    environment = {**os.environ, **store.environment()}
                    one = _in_a_process([form, json_format.dumps(options)], environment, hosts.prefix(_SPARK_HOST))
                    yield one | {"network_mb": (hosts.entered_bytes()[_SPARK_HOST] - before) / 1e6}


def _in_a_process(
    words: Sequence[str], environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> dict[str, Any]:
    """Run this module in a process of its own, whose memory and workers are all that is counted."""
    command = [*prefix, sys.executable, "-m", "perf.spark", *words]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json_format.loads(done.stdout.splitlines()[-1])
    return found


def spark(
    part: Annotated[list[Part] | None, typer.Option(help="By default all.")] = None,
    objects: Annotated[list[int] | None, typer.Option(min=1000, help="By default a million and ten.")] = None,
    directory: Annotated[Path, typer.Option(help="Where objects stay that were made.")] = _DIRECTORY,
    mb: Annotated[int, typer.Option(min=1, help="Of each topic that the source reads.")] = 300,
    rounds: Rounds = 1,
) -> None:
    """Measure the report over so many objects, and the source beside Spark's own for Kafka. The source needs root."""
    chosen = part or list(Part)
    for count in objects or (1_000_000, 10_000_000):
        for one in chosen:
            if one is not Part.SOURCE:
                _show(_in_a_process([one, str(count), str(directory)]))
    if Part.SOURCE in chosen:
        for found in _sources(mb, rounds):
            _show(found)


def _show(found: Mapping[str, Any]) -> None:
    told = (f"{name} {value}" if isinstance(value, str) else f"{name} {value:,.0f}" for name, value in found.items())
    typer.echo(", ".join(told))


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind in list(Part):
        measured = _world(Part(kind), int(rest[0]), Path(rest[1]))
    else:
        measured = _read(kind, json_format.loads(rest[0]))
    print(json_format.dumps(measured))

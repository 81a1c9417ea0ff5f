"""How fast logs are rebuilt: beside a plain copy of the same objects, and beside Kafka's own catch-up.

A store is filled with combined segments of one size, each with batches of every partition. Then, in turns and from the
same store: all its objects are copied into files, and the logs are restored into files (checked, cut into segments).
Both read with the same number of requests at a time, and end with fsync. Kafka's catch-up is what a broker of a stock
cluster takes, with as many bytes, from being registered with an empty log directory until it is in sync again.
"""

import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from cli.tables import show, table
from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicId, TopicIdPartition
from local_cluster.object_store.store_spec import StoreSpec
from local_cluster.polling import wait_until
from perf.clusters import object_store, started_cluster
from perf.options import LatencyMs, Results
from plugin.loading import load_storage_manager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from recovery.logs.log_plan import PlanRules
from recovery.logs.log_settings import LogSettings
from recovery.logs.restore import RestoreJob, restore_logs
from recovery.logs.run_reader import RunReader
from recovery.metadata.inventory import Inventory, from_objects

_TOPIC = "rebuild"
_LOST = 3
_RECORD_BYTES = 1000
_BATCH_RECORDS = 16
_PAYLOAD = bytes(range(256)) * 64
_PATIENCE_S = 300.0
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """One measurement."""

    what: str
    store: str
    seconds: float
    megabytes: float

    @property
    def megabytes_per_s(self) -> float:
        return self.megabytes / self.seconds


def rebuild(
    megabytes: Annotated[int, typer.Option(min=1, help="Of records in the topic.")] = 300,
    partitions: Annotated[int, typer.Option(min=1)] = 6,
    object_kilobytes: Annotated[int, typer.Option(min=1, help="Of a combined segment.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    threads: Annotated[int, typer.Option(min=1)] = 8,
    latency_ms: LatencyMs = 5,
    store: Annotated[list[str] | None, typer.Option(help="directory, s3; both by default.")] = None,
    catch_up: Annotated[bool, typer.Option("--catch-up/--no-catch-up", help="Measure stock Kafka as well.")] = True,
    results: Results = Path("perf/results"),
) -> None:
    """Measure the rate of rebuilding logs from object storage; print a table and write JSON."""
    from rich.console import Console

    results.mkdir(parents=True, exist_ok=True)
    rates: list[Rate] = []
    load = (megabytes, partitions, object_kilobytes)
    with Console().status("preparing") as line, tempfile.TemporaryDirectory(prefix="remote-wal-rebuild-") as place:
        for kind in store or ["directory", "s3"]:
            with object_store(kind, latency_ms) as spec, _credentials(spec):
                rates += _from_store(Path(place) / kind, spec, kind, load, (rounds, threads), line.update)
        if catch_up:
            line.update("Kafka's own catch-up")
            rates.append(_catch_up(Path(place) / "stock", load))
    document = {"megabytes": megabytes, "partitions": partitions, "threads": threads, "latency_ms": latency_ms}
    document["object_kilobytes"] = object_kilobytes
    rows = [asdict(rate) | {"megabytes_per_s": rate.megabytes_per_s} for rate in rates]
    (results / "rebuild.json").write_text(json.dumps(document | {"rates": rows}, indent=1))
    _print(rates)


def _from_store(
    place: Path,
    spec: StoreSpec,
    kind: str,
    load: tuple[int, int, int],
    turns: tuple[int, int],
    tell: Callable[[str], None],
) -> list[Rate]:
    rounds, threads = turns
    settings = spec.settings(place / "objects")
    storage = load_storage_manager(spec.class_name, None, settings, StorageContext("rebuild", 1))
    place.mkdir()
    rates: list[Rate] = []
    try:
        tell(f"{kind}: filling the store")
        partitions = _fill(storage, load)
        inventory = from_objects(storage, None)
        for number in range(rounds):
            tell(f"{kind}, round {number + 1} of {rounds}")
            rates.append(_timed("plain copy", kind, place / "copy", lambda to: _copy(storage, to, threads)))
            restore = partial(_restore, storage, inventory, partitions, threads)
            rates.append(_timed("rebuild", kind, place / "logs", restore))
    finally:
        storage.close()
    return rates


def _fill(storage: RemoteWalStorageManager, load: tuple[int, int, int]) -> list[TopicIdPartition]:
    """`load`: megabytes, partitions, and kilobytes of an object."""
    megabytes, count, object_kilobytes = load
    partitions = [TopicIdPartition(TopicId(_TOPIC.encode().ljust(16)), number) for number in range(count)]
    batches_each = max(1, object_kilobytes * 1000 // count // len(_batch(0)))
    for sequence in range(max(1, megabytes * 1000 // object_kilobytes)):
        first = sequence * batches_each * _BATCH_RECORDS
        records = b"".join(_batch(first + number * _BATCH_RECORDS) for number in range(batches_each))
        last = first + batches_each * _BATCH_RECORDS - 1
        entries = tuple(RemoteLogSegmentMetadataEntry(one, 0, first, last, -1, -1, 0) for one in partitions)
        state = RemoteLogSegmentState.COPY_SEGMENT_STARTED
        segment_id = CombinedSegmentId(1, 1, sequence)
        metadata = RemoteWalCombinedLogSegmentMetadata(segment_id, entries, state, sequence)
        storage.copy_log_segment_data(metadata, [records] * count)
    return partitions


def _batch(base_offset: int) -> bytes:
    """A batch of 16 KB, as a producer with default settings sends them under load; what is in it nobody reads."""
    after_crc = struct.pack(">hiqqqhii", 0, _BATCH_RECORDS - 1, 0, 0, -1, -1, -1, _BATCH_RECORDS) + _PAYLOAD
    return struct.pack(">qiibI", base_offset, 9 + len(after_crc), 0, 2, crc32c(after_crc)) + after_crc


def _timed(what: str, kind: str, directory: Path, work: Callable[[Path], int]) -> Rate:
    started = time.perf_counter()
    size = work(directory)
    seconds = time.perf_counter() - started
    shutil.rmtree(directory)
    os.sync()
    return Rate(what, kind, seconds, size / MEGABYTE)


def _copy(storage: RemoteWalStorageManager, directory: Path, threads: int) -> int:
    """All objects as they are, in parallel; the bytes of the objects."""
    directory.mkdir()
    stored = list(storage.list_log_segments())

    def copy(number: int) -> int:
        one = stored[number]
        data = storage.fetch_log_segment(one.combined_segment_id, 0, one.size_bytes)
        with (directory / str(number)).open("wb") as file:
            return file.write(data)

    with ThreadPoolExecutor(threads) as pool:
        size = sum(pool.map(copy, range(len(stored))))
        list(pool.map(_sync, directory.iterdir()))
    return size


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _restore(
    storage: RemoteWalStorageManager,
    inventory: Inventory,
    partitions: list[TopicIdPartition],
    threads: int,
    directory: Path,
) -> int:
    """The logs; their bytes."""
    jobs = []
    for one in partitions:
        runs = inventory.log_runs(one)
        name = f"{_TOPIC}-{one.partition}"
        jobs.append(RestoreJob(one, name, directory / name, runs, runs.plan(PlanRules()), LogSettings()))
    restored = restore_logs(jobs, RunReader(storage), threads=threads)
    if any(log.gap for log in restored):
        raise RuntimeError("the rebuilt logs have gaps")
    return sum(log.written_bytes for log in restored)


def _catch_up(place: Path, load: tuple[int, int, int]) -> Rate:
    """A broker with an empty log directory, in a stock cluster."""
    # The controllers' logs stand apart, so that the directory can be erased.
    metadata = {number: {"metadata.log.dir": str(place.parent / f"controller-{number}")} for number in (1, 2, 3)}
    with started_cluster(place, None, broker_overrides=metadata) as cluster:
        cluster.admin.create_topic(_TOPIC, partitions=load[1])
        cluster.tools.produce(
            _TOPIC, records=load[0] * MEGABYTE // _RECORD_BYTES, record_bytes=_RECORD_BYTES, config={"acks": "all"}
        )
        cluster.broker(_LOST).kill()
        [log_directory] = cluster.files.log_directories(_LOST)
        size = sum(path.stat().st_size for path in log_directory.glob(f"{_TOPIC}-*/*.log"))
        identity = (log_directory / "meta.properties").read_text()
        shutil.rmtree(log_directory)
        log_directory.mkdir()
        (log_directory / "meta.properties").write_text(identity)
        out_of_sync = lambda: all(_LOST not in isr for isr in cluster.admin.in_sync_replicas(_TOPIC).values())  # noqa: E731
        wait_until(out_of_sync, "the broker is out of sync", _PATIENCE_S)
        cluster.start_broker(_LOST)
        started = time.perf_counter()
        cluster.admin.wait_for_full_isr(_TOPIC, timeout_s=_PATIENCE_S)
        return Rate("Kafka's own catch-up", "network", time.perf_counter() - started, size / MEGABYTE)


@contextmanager
def _credentials(spec: StoreSpec) -> Iterator[None]:
    """The store's, for this process too."""
    before = {name: os.environ.get(name) for name in spec.environment()}
    os.environ.update(spec.environment())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _print(rates: list[Rate]) -> None:
    rows = []
    for store, what in dict.fromkeys((rate.store, rate.what) for rate in rates):
        copies = [rate.megabytes_per_s for rate in rates if (rate.store, rate.what) == (store, "plain copy")]
        those = [rate for rate in rates if (rate.store, rate.what) == (store, what)]
        speed = median(rate.megabytes_per_s for rate in those)
        share = f"{speed / median(copies):.2f}" if copies else "-"
        seconds = median(rate.seconds for rate in those)
        rows.append((store, what, f"{those[0].megabytes:,.0f}", f"{seconds:.1f}", f"{speed:,.0f}", share))
    columns = ("store", "what", ">MB", ">s", ">MB/s (median)", ">of the copy")
    show(table(*columns, rows=rows, title="Rebuilding logs"))

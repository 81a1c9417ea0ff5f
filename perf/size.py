"""Measures what a recovery of one broker must know, and a stream's trigger: many generated objects, in a real snapshot.

No brokers run. The snapshot is read from a directory as `recover --dry-run` reads it, the listing names each object as
a store would, and every log of the broker is planned. A real store adds the time of its listing: a request for each
thousand objects.
"""

import random
import resource
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from cli.connection import Json
from cli.tables import show, table, tell_json
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import FINISHED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import with_archive
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.snapshots.sparse_store import SparseStore
from metadata_topic.store.store_image import StoreImage
from plugin.format.entry_column_batches import LogFilter
from plugin.format.entry_columns import COLUMN_HEAD, HEAD, encode
from plugin.loading import StorageSpec, load_storage_manager
from plugin.remote_wal_storage_manager import (
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
    blobs_of,
)
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from recovery.logs.log_plan import PlanRules
from recovery.metadata.inventory import from_metadata, take_in_told

_PARTITIONS: Final = 100
"""Led by each broker; each has two followers, so a broker has three times as many logs."""
_NEW: Final = 1000
"""Objects that are told of between two triggers."""
_CLASS: Final = "plugin.local_directory.LocalWalStorageManager"
_INCARNATION: Final = 1_700_000_000_000
_FIRST_OFFSET_AT: Final = HEAD.size + 3 * COLUMN_HEAD.size
"""Where a block of entries has the lowest of its first offsets."""


class _Generated:
    """The segments of all brokers, by writer and sequence; each holds batches of some logs that its broker leads."""

    def __init__(self, objects: int, brokers: int, entries: int) -> None:
        self.brokers, self._entries = brokers, entries
        self.each = objects // brokers

    def __len__(self) -> int:
        return self.each * self.brokers

    def __iter__(self) -> Iterator[PublishedSegment]:
        for broker_id in range(self.brokers):
            blocks = [bytearray(block) for block in self._blocks(broker_id)]
            for sequence in range(self.each):
                turn, kind = divmod(sequence, len(blocks))
                struct.pack_into("<q", blocks[kind], _FIRST_OFFSET_AT, 50 * turn)
                segment_id = CombinedSegmentId(broker_id, _INCARNATION, sequence)
                block = bytes(blocks[kind])
                yield PublishedSegment(segment_id, FINISHED, _INCARNATION + sequence, 60_064, b"", block)

    def _blocks(self, broker_id: int) -> Iterator[bytes]:
        """Yield entries of the broker's objects, which differ in nothing but their offsets from turn to turn."""
        logs = [log_of(broker_id, number) for number in range(_PARTITIONS)]
        random.Random(broker_id).shuffle(logs)  # noqa: S311 (figures that can be repeated)
        for begin in range(0, len(logs), self._entries):
            at = [64 + 5000 * place for place in range(self._entries + 1)]
            placed = zip(sorted(logs[begin : begin + self._entries]), at, at[1:], strict=False)
            yield encode(
                [RemoteLogSegmentMetadataEntry(log, 3, 0, 49, start, end, start) for log, start, end in placed]
            )

    def logs_of(self, broker_id: int) -> list[TopicIdPartition]:
        """Return the logs that the broker leads or follows."""
        return [
            log_of(leader, number)
            for leader in range(self.brokers)
            for number in range(_PARTITIONS)
            if broker_id in {(leader + step * (1 + number)) % self.brokers for step in (0, 1, 2)}
        ]


def _later(segment: PublishedSegment, behind: int) -> CombinedSegmentId:
    broker_id, incarnation, sequence = segment.combined_segment_id
    return CombinedSegmentId(broker_id, incarnation, behind + sequence)


def log_of(leader: int, number: int) -> TopicIdPartition:
    """Return a log: topics have thirty partitions each."""
    topic, partition = divmod(leader * _PARTITIONS + number, 30)
    return TopicIdPartition(TopicId(topic.to_bytes(16, "big")), partition)


class _Listed:
    """A store that lists the generated objects."""

    request_counts = RequestCounts()

    def __init__(self, generated: _Generated) -> None:
        self._generated = generated

    async def list_log_segments(self) -> AsyncIterator[list[StoredSegment]]:
        for broker_id in range(self._generated.brokers):
            ids = (CombinedSegmentId(broker_id, _INCARNATION, sequence) for sequence in range(self._generated.each))
            yield [StoredSegment(one, f"c/{broker_id}/{one.sequence:012x}.rwal", 60_064, _INCARNATION) for one in ids]


def size(
    objects: Annotated[int, typer.Option(help="Finished objects in the metadata.")] = 2_000_000,
    entries: Annotated[int, typer.Option(help="Entries of each.")] = 12,
    brokers: Annotated[int, typer.Option(help="Each leads 100 partitions of three replicas.")] = 90,
    json: Json = False,
) -> None:
    """Plan one broker's recovery with so many objects, and show each step's CPU time and the peak of memory."""
    generated = _Generated(objects, brokers, entries)
    with tempfile.TemporaryDirectory() as directory:
        context = StorageContext("perf", 1)
        storage = load_storage_manager(StorageSpec(_CLASS, None, {"directory": directory}), context)
        _save(generated, storage)
        figures = _planned(generated, storage, Path(directory))
        storage.close()
    if json:
        tell_json(figures)
    else:
        show(table("step", ">value", rows=[(name, f"{value:,.1f}") for name, value in figures.items()], title="size"))


def _save(generated: _Generated, storage: RemoteWalStorageManager) -> None:
    image = with_archive(StoreImage({0: len(generated)}, segments=generated), ArchiveStore())
    SnapshotKeeper(blobs_of(storage, "put", "-"), "perf", 1, 1).save(image, _INCARNATION)


def _planned(generated: _Generated, storage: RemoteWalStorageManager, directory: Path) -> dict[str, float]:
    figures: dict[str, float] = {"objects": len(generated)}
    figures["snapshot, MB"] = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()) / 1e6
    before_mb = _peak_mb()

    def step(name: str) -> None:
        now_s = time.process_time()
        figures[f"{name}, s of CPU"] = now_s - began[-1]
        began.append(now_s)

    began = [time.process_time()]
    image = SnapshotKeeper(blobs_of(storage, "read", "-"), "perf", 1, 1).load()
    if image is None:
        raise LookupError("the snapshot cannot be read")
    step("load the snapshot")
    store = SparseStore()
    store.restore(image)
    newest = CombinedSegmentId(0, _INCARNATION, generated.each - 1)
    store.apply_all([(PublishedSegment(newest, FINISHED, _INCARNATION, 1, b"", b""), (0, len(generated)))])
    store.settle()
    step("take in what was told since")
    logs = generated.logs_of(1)
    listed = cast(RemoteWalStorageManager, _Listed(generated))
    inventory = from_metadata(store, ArchiveStore(), listed, None, wanted=LogFilter(logs))
    step("list, and find the logs' runs")
    plans = [inventory.log_runs(log).plan(PlanRules()) for log in logs]
    step("plan the logs")
    told = [one._replace(combined_segment_id=_later(one, generated.each)) for one in islice(generated, _NEW)]
    store.apply_all([(one, (0, len(generated) + at)) for at, one in enumerate(told, 1)])
    trigger = take_in_told(inventory, store, ArchiveStore(), told)
    if trigger is None:
        raise LookupError("new objects alone take no look at all")
    step(f"take in {_NEW} new objects")
    for log in logs[:30]:
        trigger.log_runs(log).plan(PlanRules())
    step("plan 30 logs of them")
    figures["logs"] = len(logs)
    figures["runs planned"] = sum(len(plan.extents) for plan in plans)
    figures["whole, s of CPU"] = began[-1] - began[0]
    figures["memory that it took, MB"] = _peak_mb() - before_mb
    return figures


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

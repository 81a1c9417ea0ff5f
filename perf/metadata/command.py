"""What the metadata topic costs in bytes, and how long and how much memory it takes to load a large store."""

import json as json_format
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated

import typer

from cli.connection import Json
from cli.tables import show, table, tell_json
from metadata_topic.records import serde
from metadata_topic.store.snapshots.snapshot import read_image, snapshot_chunks
from metadata_topic.store.store import RemoteWalMetadataStore
from perf.metadata.brokers import Told, measure_brokers
from perf.metadata.volume import Load, measure_volume, records, zstd
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState

_TEMPLATES = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """A store's content."""

    segments: int
    entries: int
    """Of each segment."""

    @property
    def load(self) -> Load:
        """So many entries in each object, of ten times as many partitions where they are few."""
        partitions = max(self.entries, 1000)
        return Load(partitions=partitions, share_of_partitions=self.entries / partitions)


SHAPES = (Shape(10_000, 1000), Shape(500_000, 20))


def metadata(
    tail: Annotated[float, typer.Option(min=0, max=1, help="Which part is in the topic's tail only.")] = 0.1,
    scale: Annotated[float, typer.Option(min=0.001, help="Fewer or more segments.")] = 1.0,
    objects: Annotated[int, typer.Option(min=1, help="Objects whose records are compressed.")] = 200,
    brokers: Annotated[
        list[int] | None, typer.Option(min=1, help="Instead: what an agent keeps of so many brokers' objects.")
    ] = None,
    objects_each: Annotated[int, typer.Option(min=1, help="Of each broker.")] = 2000,
    entries_each: Annotated[int, typer.Option(min=1, help="Of each of these objects.")] = 100,
    memory_mb: Annotated[int, typer.Option(min=0, help="That entries may take, beside without such a bound.")] = 0,
    json: Json = False,
) -> None:
    """Measure bytes per entry, the topic's share of the data, and the loading of 10 million entries on one core.

    With --brokers, instead: memory, disk and CPU for each object of all brokers, and to look up 1,000 partitions.
    """
    if brokers:
        bounds = (None, memory_mb * 1_000_000)
        _brokers([Told(count, objects_each, entries_each, bound) for count in brokers for bound in bounds], json)
        return
    volumes = []
    for share in (1.0, 0.8, 0.5):
        load = Load(share_of_partitions=share)
        volume = measure_volume(load, zstd(), objects)
        volumes.append(
            (
                f"{share:.0%} of {load.partitions}",
                f"{volume.bytes_per_entry:.1f}",
                f"{volume.compressed_bytes_per_entry:.2f}",
                f"{volume.share_of(load):.2%}",
            )
        )
    columns = ("partitions in each object", "B/entry", "with zstd", "share of 30 MB/s")
    show(table(*columns, rows=volumes, title="The topic's volume"))
    loads = []
    for shape in SHAPES:
        scaled = Shape(max(1, int(shape.segments * scale)), shape.entries)
        measured = measure_loading(scaled, tail)
        loads.append(
            (
                f"{scaled.segments:,} x {scaled.entries:,}",
                f"{measured.snapshot_bytes / 1e6:,.0f}",
                f"{measured.snapshot_s:.1f}",
                f"{measured.tail_s:.1f}",
                f"{measured.entries:,}",
                f"{measured.peak_bytes / 1e6:,.0f}",
            )
        )
    loading = ("segments x entries", "snapshot MB", "snapshot s", "tail s", "entries", "peak MB")
    show(table(*loading, rows=loads, title="Loading"))


def _brokers(tolds: Sequence[Told], json: bool) -> None:
    measured = [(told, measure_brokers(told)) for told in tolds]
    if json:
        tell_json([{**asdict(told), "known": asdict(known)} for told, known in measured])
        return
    rows = [
        (
            f"{told.brokers}",
            f"{told.brokers * told.objects:,}",
            "" if told.memory_bytes is None else f"{told.memory_bytes / 1e6:,.0f}",
            f"{known.memory_bytes / 1e6:,.0f}",
            f"{known.memory_bytes / (told.brokers * told.objects):,.0f}",
            f"{known.peak_bytes / 1e6:,.0f}",
            f"{known.disk_bytes / 1e6:,.0f}",
            f"{known.cpu_us_per_object:,.0f}",
            f"{known.topic_bytes_per_object:,.0f}",
            f"{known.look_up_s:.2f}",
            f"{known.look_up_wall_s:.2f}",
        )
        for told, known in measured
    ]
    columns = (
        ">brokers", ">objects", ">bound MB", ">memory MB", ">B/object", ">peak MB", ">disk MB", ">us CPU/object",
        ">topic B/object", ">look-up, s CPU", ">s",
    )  # fmt: skip
    show(table(*columns, rows=rows, title=f"{tolds[0].entries} entries in each object", without_lines=True))


@dataclass(frozen=True, slots=True)
class Loading:
    """What a process of its own, on one core, took to load a snapshot and a tail."""

    snapshot_bytes: int
    snapshot_s: float
    tail_s: float
    entries: int
    peak_bytes: int


def measure_loading(shape: Shape, tail: float) -> Loading:
    """Write a snapshot and a tail to files, and load them in a subprocess that is bound to one core."""
    in_snapshot = int(shape.segments * (1 - tail))
    with tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory:
        store = RemoteWalMetadataStore()
        with (Path(directory) / "tail").open("wb") as file:
            for sequence, (key, value) in enumerate(_segments(shape)):
                if sequence < in_snapshot:
                    store.apply(serde.decode_or_keep_out(key, value), (0, sequence))
                else:
                    file.write(len(value).to_bytes(4, "big") + key + value)
        (Path(directory) / "snapshot").write_bytes(b"".join(snapshot_chunks(store.image())))
        del store
        command = [sys.executable, "-m", "perf.metadata.command", directory]
        out = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return Loading(**json_format.loads(out.stdout))


def _segments(shape: Shape) -> Iterator[tuple[bytes, bytes]]:
    """FINISHED records: a few hundred different blocks of entries, in turns."""
    templates = [
        value
        for key, value in records(shape.load, _TEMPLATES)
        if value[26] == RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]
    for sequence, value in zip(range(shape.segments), cycle(templates), strict=False):
        key = CombinedSegmentId(1, 1, sequence).to_bytes()
        yield key, value[:2] + key + value[18:]


def _load(directory: Path) -> Loading:
    """In the subprocess."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    store = RemoteWalMetadataStore()
    began_s = time.perf_counter()
    snapshot = (directory / "snapshot").read_bytes()
    size = len(snapshot)
    store.restore(read_image(snapshot))
    del snapshot
    snapshot_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    offset = store.progress.get(0, 0)
    with (directory / "tail").open("rb") as file:
        while head := file.read(20):
            value = file.read(int.from_bytes(head[:4], "big"))
            store.apply(serde.decode_or_keep_out(head[4:], value), (0, offset))
            offset += 1
    store.topic_id_partitions()
    tail_s = time.perf_counter() - began_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    entries = sum(segment.entry_count for segment in store.image().segments)
    return Loading(size, snapshot_s, tail_s, entries, peak_bytes)


if __name__ == "__main__":
    print(json_format.dumps(asdict(_load(Path(sys.argv[1])))))

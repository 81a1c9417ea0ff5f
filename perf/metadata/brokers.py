"""What an agent keeps of so many brokers' objects: memory, disk and CPU, in a process of its own.

Each broker has partitions of its own, and a few blocks of entries that come in turns. All of its objects are kept, as
before their retention is over, so what is measured is an hour of few objects or some minutes of many.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records import serde
from metadata_topic.records.leader_epochs import LeaderEpochChain
from metadata_topic.records.records import PublishedSegment
from metadata_topic.store.segments.entry_blocks import MemoryBound
from metadata_topic.store.store import RemoteWalMetadataStore
from perf.metadata.volume import Load, measure_volume, records, zstd
from plugin.format.entry_columns import COLUMN_HEAD, COLUMNS, HEAD
from plugin.segment_metadata import CombinedSegmentId

_TEMPLATES: Final = 8
_OFFSETS_IN_A_TURN: Final = 1000
"""More than templates have of one partition."""
_LED: Final = 1000
"""Partitions of each broker."""
LOOKED_UP: Final = 1000
_NEWEST_EPOCH: Final = 40
"""Above all of `records`."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the topic tells."""

    brokers: int
    objects: int
    """Of each broker."""
    entries: int
    """Of each object."""
    memory_bytes: int | None
    """What entries may take; None: all that they need."""

    @property
    def load(self) -> Load:
        """Of one broker, some of whose partitions have something in each object."""
        return Load(partitions=max(self.entries, _LED), share_of_partitions=self.entries / max(self.entries, _LED))


@dataclass(frozen=True, slots=True)
class Known:
    """What it took."""

    memory_bytes: int
    """Anonymous memory beyond an empty store's process."""
    peak_bytes: int
    """Resident, with what was mapped of files."""
    disk_bytes: int
    """Of all files without names: entries, index, segments' rows."""
    cpu_us_per_object: float
    """To decode and apply its two records, with the index."""
    topic_bytes_per_object: float
    look_up_s: float
    """What is asked of the store of `LOOKED_UP` partitions, or as many as there are, whose leader changes; CPU."""
    look_up_wall_s: float


def measure_brokers(told: Told) -> Known:
    """In a subprocess that is bound to one core."""
    command = [sys.executable, "-m", "perf.metadata.brokers", json.dumps(asdict(told))]
    out = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return Known(**json.loads(out.stdout))


def told_records(told: Told) -> Iterator[tuple[bytes, bytes]]:
    """STARTED and FINISHED records of all brokers' objects, in turns; partitions' offsets rise from one to the next."""
    templates = {broker: _templates(told.load, broker) for broker in range(1, told.brokers + 1)}
    for sequence in range(told.objects):
        turn, template = divmod(sequence, _TEMPLATES)
        for broker, values in templates.items():
            key = CombinedSegmentId(broker, 1, sequence).to_bytes()
            started, finished = values[template]
            yield key, started[:2] + key + started[18:]
            yield key, finished.value(key, turn * _OFFSETS_IN_A_TURN)


@dataclass(frozen=True, slots=True)
class _Template:
    """A FINISHED record."""

    raw: bytes
    first_offset_at: int
    """Where the minimum of the column of first offsets stands."""

    @classmethod
    def of(cls, key: bytes, raw: bytes) -> Self:
        """From the record as it is published."""
        record = serde.decode(key, raw)
        if not isinstance(record, PublishedSegment):
            raise TypeError(f"no segment: {record}")
        column = [spec.name for spec in COLUMNS].index("first_offset")
        return cls(raw, raw.index(record.entry_block) + HEAD.size + column * COLUMN_HEAD.size)

    def value(self, key: bytes, further: int) -> bytes:
        """Of that object, all offsets `further` on."""
        changed = bytearray(self.raw)
        changed[2:18] = key
        minimum, width = COLUMN_HEAD.unpack_from(self.raw, self.first_offset_at)
        COLUMN_HEAD.pack_into(changed, self.first_offset_at, minimum + further, width)
        return bytes(changed)


def _templates(load: Load, broker: int) -> list[tuple[bytes, _Template]]:
    told = iter(records(load, _TEMPLATES, seed=broker))
    return [(started, _Template.of(key, finished)) for (_, started), (key, finished) in zip(told, told, strict=True)]


def _measure(told: Told) -> Known:
    """In the subprocess."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as directory:
        bound = None if told.memory_bytes is None else MemoryBound(Path(directory), told.memory_bytes)
        store, cpu_s = RemoteWalMetadataStore(bound), 0.0
        before = _memory_bytes()
        for number, (key, value) in enumerate(told_records(told)):
            began_s = time.process_time()
            store.apply(serde.decode_or_keep_out(key, value), (0, number))
            cpu_s += time.process_time() - began_s
        partitions = store.topic_id_partitions()
        memory_bytes, disk_bytes = _memory_bytes() - before, _unnamed_bytes(Path(directory))
        began_s, began_wall_s = time.process_time(), time.perf_counter()
        for partition in partitions[:: max(1, len(partitions) // LOOKED_UP)][:LOOKED_UP]:
            _look_up(store, partition)
        return Known(
            memory_bytes,
            _memory_bytes("VmHWM"),
            disk_bytes,
            1e6 * cpu_s / (told.brokers * told.objects),
            measure_volume(told.load, zstd(), 100).topic_bytes / 100,
            time.process_time() - began_s,
            time.perf_counter() - began_wall_s,
        )


def _look_up(store: RemoteWalMetadataStore, partition: TopicIdPartition) -> None:
    """As the agent of a new leader does (`rlm.write_path.reading.resume_point`, `rlm.lifecycle.failover`), whose epoch
    begins behind all that is stored.
    """
    chain = store.with_older_epochs(partition, LeaderEpochChain([(_NEWEST_EPOCH, 2**61)]))
    if not store.stored_ranges(partition, chain):
        raise LookupError(f"nothing is known of {partition}")
    store.declared_gaps(partition)
    store.released_up_to(partition, chain)
    store.first_dead_offset(partition, chain)
    store.outside_of(partition, chain)


def _unnamed_bytes(directory: Path) -> int:
    """What this process has there in files without names, as the disk counts it."""
    descriptors = [Path(one) for one in Path("/proc/self/fd").iterdir()]
    there = [one for one in descriptors if one.is_symlink() and one.readlink().is_relative_to(directory)]
    return sum(one.stat().st_blocks * 512 for one in there)


def _memory_bytes(field: str = "RssAnon") -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [kb] = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(kb) * 1024


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(Told(**json.loads(sys.argv[1]))))))

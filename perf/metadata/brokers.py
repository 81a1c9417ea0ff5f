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
from itertools import cycle
from pathlib import Path
from typing import Final

from metadata_topic.records import serde
from metadata_topic.store.entry_blocks import MemoryBound
from metadata_topic.store.store import RemoteWalMetadataStore
from perf.metadata.volume import Load, measure_volume, records, zstd
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState

_TEMPLATES: Final = 8
_LED: Final = 1000
"""Partitions of each broker."""


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
    """Entries; the index's files come on top, 20 bytes for each."""
    cpu_us_per_object: float
    """To decode and apply its two records, with the index."""
    topic_bytes_per_object: float


def measure_brokers(told: Told) -> Known:
    """In a subprocess that is bound to one core."""
    command = [sys.executable, "-m", "perf.metadata.brokers", json.dumps(asdict(told))]
    out = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return Known(**json.loads(out.stdout))


def told_records(told: Told) -> Iterator[tuple[bytes, bytes]]:
    """STARTED and FINISHED records of all brokers' objects, in turns."""
    templates = {broker: _templates(told.load, broker) for broker in range(1, told.brokers + 1)}
    for sequence in range(told.objects):
        for broker, values in templates.items():
            key = CombinedSegmentId(broker, 1, sequence).to_bytes()
            for value in next(values):
                yield key, value[:2] + key + value[18:]


def _templates(load: Load, broker: int) -> Iterator[tuple[bytes, bytes]]:
    values = [value for _, value in records(load, _TEMPLATES, seed=broker)]
    started = [one for one in values if one[26] == RemoteLogSegmentState.COPY_SEGMENT_STARTED]
    finished = [one for one in values if one[26] == RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    return cycle(zip(started, finished, strict=True))


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
        store.topic_id_partitions()
        objects = told.brokers * told.objects
        return Known(
            _memory_bytes() - before,
            _memory_bytes("VmHWM"),
            store.entry_bytes["disk"],
            1e6 * cpu_s / objects,
            measure_volume(told.load, zstd(), 100).topic_bytes / 100,
        )


def _memory_bytes(field: str = "RssAnon") -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [kb] = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(kb) * 1024


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(Told(**json.loads(sys.argv[1]))))))

"""Compares the replicas of a partition byte by byte, in the brokers' log directories.

A partition's log is one stream of record batches, and each replica cuts it into segment files at its own places. So the
batches are compared one by one, and file names only show where a difference is. Batches carry the leader's epoch and
CRC, hence equal batches are equal in everything that Kafka replicates. Compacted topics cannot be compared: each
replica cleans its log by itself.
"""

import contextlib
import hashlib
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from local_cluster.polling import WaitTimeoutError, wait_until

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster

_BATCH_START = struct.Struct(">qi11xi")
"""Base offset, the length of what follows this field, and the last offset delta. Source: Kafka's message format."""
_LOG_OVERHEAD_BYTES = 12
"""Base offset and length, which the length does not count."""


class ReplicaReadError(Exception):
    """A replica's files cannot be read as a log; the message names file and position."""


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The replicas of one partition, compared over the offsets [start_offset, end_offset) that all have."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    log_end_offsets: Mapping[int, int]
    """End offsets by broker."""
    compared_bytes: int
    """The compared bytes of the first replica."""
    sha256: str
    """The hash of these bytes."""
    difference: str | None
    """The place where a replica first differs from the first one, for people; None if none does."""

    @property
    def identical(self) -> bool:
        """Whether all replicas hold the same bytes and have the same end."""
        return self.difference is None and len(set(self.log_end_offsets.values())) == 1


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """The comparison of all partitions of one topic."""

    partitions: tuple[PartitionComparison, ...]

    @property
    def identical(self) -> bool:
        """Whether every partition's replicas are identical; False if nothing was compared."""
        return bool(self.partitions) and all(partition.identical for partition in self.partitions)

    @property
    def compared_bytes(self) -> int:
        return sum(partition.compared_bytes for partition in self.partitions)

    def __str__(self) -> str:
        differing = [found for found in self.partitions if not found.identical]
        for found in sorted(differing, key=lambda one: one.difference is None):
            ends = ", ".join(f"broker {broker} has {end}" for broker, end in found.log_end_offsets.items())
            return found.difference or f"log end offsets differ in {found.topic}-{found.partition}: {ends}"
        return f"{len(self.partitions)} partitions identical over {self.compared_bytes} bytes"


def compare_replicas(cluster: "LocalCluster", topic: str, timeout_s: float = 60.0) -> ReplicaComparison:
    """Wait until all replicas have the same end, or the deadline; then compare the offsets that all have.

    No client should write meanwhile: replicas that never reach the same end are compared as they are at the deadline,
    and count as different. Raises ReplicaReadError.
    """
    states = cluster.admin.partitions(topic)

    def directory(broker: int, partition: int) -> Path:
        found = cluster.layout.partition_directory(broker, topic, partition)
        if found is None:
            raise ReplicaReadError(f"broker {broker} has no directory of {topic}-{partition}")
        return found

    def level() -> bool:
        try:
            ends = [
                {ReplicaLog(directory(one, state.partition)).end_offset() for one in state.replicas} for state in states
            ]
        except ReplicaReadError:
            return False  # a directory that is being made; if it stays away, the comparison says so
        return all(len(its) == 1 for its in ends)

    with contextlib.suppress(WaitTimeoutError):  # the report tells which replica lags
        wait_until(level, f"the replicas of {topic} are level", timeout_s, interval_s=0.2)
    return ReplicaComparison(
        tuple(
            compare_partition(topic, state.partition, {one: directory(one, state.partition) for one in state.replicas})
            for state in states
        )
    )


def compare_partition(topic: str, partition: int, directories: Mapping[int, Path]) -> PartitionComparison:
    """Compare the partition directories of brokers. Raises ReplicaReadError."""
    logs = {broker: ReplicaLog(path) for broker, path in directories.items()}
    ends = {broker: log.end_offset() for broker, log in logs.items()}
    start, end = max(log.start_offset() for log in logs.values()), min(ends.values())
    reference, *others = logs
    size, digest = 0, hashlib.sha256()
    for _, data in logs[reference].batches(start, end):
        size += len(data)
        digest.update(data)
    differences = (
        f"broker {other} differs from broker {reference} {where}"
        for other in others
        if (where := _first_difference(logs[reference].batches(start, end), logs[other].batches(start, end)))
    )
    return PartitionComparison(topic, partition, start, end, ends, size, digest.hexdigest(), next(differences, None))


class _Batch(NamedTuple):
    """A whole record batch, and its place."""

    path: Path
    position: int
    size: int
    base_offset: int
    end_offset: int
    """The offset after the last record."""


class ReplicaLog:
    """One replica's log, read from its .log files."""

    def __init__(self, directory: Path) -> None:
        self._segments = sorted(path for path in directory.glob("*.log") if path.stem.isdigit())
        if not self._segments:
            raise ReplicaReadError(f"{directory} holds no log segment")

    def start_offset(self) -> int:
        """Return the first segment's base offset."""
        return int(self._segments[0].stem)

    def end_offset(self) -> int:
        """Return the offset after the last complete batch."""
        last = self._segments[-1]
        found = deque((batch.end_offset for batch, _ in _batches(last)), maxlen=1)
        return found[0] if found else int(last.stem)

    def batches(self, start_offset: int, end_offset: int) -> Iterator[tuple[_Batch, bytes]]:
        """Yield the complete batches between the two offsets, with their bytes."""
        for path in self._segments:
            for batch, file in _batches(path):
                if batch.base_offset >= start_offset and batch.end_offset <= end_offset:
                    file.seek(batch.position)
                    yield batch, file.read(batch.size)


def _batches(path: Path) -> Iterator[tuple[_Batch, BinaryIO]]:
    """Yield each whole batch of a file, and the file. A file that retention has removed meanwhile has none."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        position, size = 0, path.stat().st_size
        while position + _BATCH_START.size <= size:
            file.seek(position)
            base, length, last_delta = _BATCH_START.unpack(file.read(_BATCH_START.size))
            if length <= 0 or base < 0:
                raise ReplicaReadError(f"{path} holds no batch at byte {position}")
            whole = length + _LOG_OVERHEAD_BYTES
            if position + whole > size:
                return
            yield _Batch(path, position, whole, base, base + last_delta + 1), file
            position += whole


def _first_difference(ours: Iterator[tuple[_Batch, bytes]], theirs: Iterator[tuple[_Batch, bytes]]) -> str | None:
    """Return the place in `theirs` of the first byte that differs; None if none does."""
    for mine, other in zip_longest(ours, theirs):
        (batch, data), expected = other or mine, mine[1] if mine and other else b""
        if data != expected:
            same = next((at for at, (a, b) in enumerate(zip(data, expected, strict=False)) if a != b), 0)
            return f"in {batch.path} at byte {batch.position + same}, in the batch with base offset {batch.base_offset}"
    return None

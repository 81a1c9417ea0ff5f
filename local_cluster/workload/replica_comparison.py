"""Compares the replicas of a partition byte by byte, in the brokers' log directories.

A partition's log is one stream of record batches, and each replica cuts it into segment files at its own places. So
streams are compared, and file names only show where a difference is. Batches carry the leader's epoch and CRC, hence
equal streams are equal in everything that Kafka replicates. Compacted topics cannot be compared: each replica cleans
its log by itself.
"""

import contextlib
import hashlib
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from local_cluster.polling import WaitTimeoutError, wait_until

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster

_BATCH_START = struct.Struct(">qi")
"""Base offset, and the length of what follows this field. Source: Kafka's message format, record batch."""
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_POSITION = 23
_CHUNK_BYTES = 1 << 20


class ReplicaReadError(Exception):
    """A replica's files cannot be read as a log; the message names file and position."""


@dataclass(frozen=True, slots=True)
class ReplicaDifference:
    """The first byte at which a replica differs from the first replica of the comparison."""

    reference_broker: int
    broker: int
    path: Path
    """The file of `broker` in which the byte is."""
    position: int
    base_offset: int
    """The base offset of the batch that holds the byte."""

    def __str__(self) -> str:
        return (
            f"broker {self.broker} differs from broker {self.reference_broker} in {self.path} at byte "
            f"{self.position}, in the batch with base offset {self.base_offset}"
        )


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
    """The compared bytes of one replica."""
    sha256: str
    """The hash of the compared bytes of the first replica."""
    difference: ReplicaDifference | None

    @property
    def identical(self) -> bool:
        """Whether all replicas hold the same bytes and have the same end."""
        return self.difference is None and len(set(self.log_end_offsets.values())) == 1


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """All partitions of one topic."""

    partitions: tuple[PartitionComparison, ...]

    @property
    def identical(self) -> bool:
        """Whether every partition's replicas are identical; False if nothing was compared."""
        return bool(self.partitions) and all(partition.identical for partition in self.partitions)

    @property
    def compared_bytes(self) -> int:
        """The compared bytes of one replica of each partition."""
        return sum(partition.compared_bytes for partition in self.partitions)

    @property
    def first_difference(self) -> ReplicaDifference | None:
        return next((found.difference for found in self.partitions if found.difference is not None), None)

    def __str__(self) -> str:
        if self.first_difference is not None:
            return str(self.first_difference)
        uneven = [found for found in self.partitions if not found.identical]
        if uneven:
            return f"log end offsets differ in {uneven[0].topic}-{uneven[0].partition}: " + ", ".join(
                f"broker {broker} has {end}" for broker, end in uneven[0].log_end_offsets.items()
            )
        return f"{len(self.partitions)} partitions identical over {self.compared_bytes} bytes"


def compare_replicas(cluster: "LocalCluster", topic: str, timeout_s: float = 60.0) -> ReplicaComparison:
    """Wait until all replicas have the same end, or the deadline; then compare the offsets that all have.

    No client should write meanwhile: replicas that never reach the same end are compared as they are at the deadline,
    and count as different. Raises ReplicaReadError.
    """
    replicas = [(state.partition, state.replicas) for state in cluster.admin.partitions(topic)]

    def directories(partition: int, brokers: Iterable[int]) -> dict[int, Path]:
        found = {}
        for broker in brokers:
            path = cluster.files.partition_directory(broker, topic, partition)
            if path is None:
                raise ReplicaReadError(f"broker {broker} has no directory of {topic}-{partition}")
            found[broker] = path
        return found

    def level() -> bool:
        try:
            return all(
                len({ReplicaLog(path).end_offset() for path in directories(number, brokers).values()}) == 1
                for number, brokers in replicas
            )
        except ReplicaReadError:
            return False  # a directory that is being made; if it stays away, the comparison says so

    with contextlib.suppress(WaitTimeoutError):  # the report tells which replica lags
        wait_until(level, f"the replicas of {topic} are level", timeout_s, interval_s=0.2)
    return ReplicaComparison(
        tuple(compare_partition(topic, number, directories(number, brokers)) for number, brokers in replicas)
    )


def compare_partition(topic: str, partition: int, directories: Mapping[int, Path]) -> PartitionComparison:
    """Compare the partition directories of brokers. Raises ReplicaReadError."""
    logs = {broker: ReplicaLog(path) for broker, path in directories.items()}
    ends = {broker: log.end_offset() for broker, log in logs.items()}
    start = max(log.start_offset() for log in logs.values())
    end = min(ends.values())
    streams = {broker: log.stream(start, end) for broker, log in logs.items()}
    return PartitionComparison(
        topic,
        partition,
        start,
        end,
        ends,
        min(stream.size for stream in streams.values()),
        next(iter(streams.values())).sha256(),
        _first_difference(streams),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of bytes in one file."""

    path: Path
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReplicaStream:
    """Bytes of one replica between two offsets, across its files."""

    pieces: tuple[_Piece, ...]

    @property
    def size(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)

    def chunks(self) -> Iterator[bytes]:
        """The bytes in chunks of one size, whatever the files' sizes are."""
        rest = b""
        for piece in self.pieces:
            with piece.path.open("rb") as file:
                file.seek(piece.start)
                left = piece.end - piece.start
                while left:
                    data = file.read(min(left, _CHUNK_BYTES - len(rest)))
                    if not data:
                        raise ReplicaReadError(f"{piece.path} ends before byte {piece.end}")
                    left -= len(data)
                    rest += data
                    if len(rest) == _CHUNK_BYTES:
                        yield rest
                        rest = b""
        if rest:
            yield rest

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()

    def locate(self, distance: int) -> tuple[Path, int]:
        """Return file and position of the byte at this distance into the stream."""
        for piece in self.pieces:
            if distance < piece.end - piece.start:
                return piece.path, piece.start + distance
            distance -= piece.end - piece.start
        last = self.pieces[-1]
        return last.path, last.end


class ReplicaLog:
    """A partition directory, read from its .log files."""

    def __init__(self, directory: Path) -> None:
        self._segments = sorted(path for path in directory.glob("*.log") if path.stem.isdigit())
        if not self._segments:
            raise ReplicaReadError(f"{directory} holds no log segment")

    def start_offset(self) -> int:
        """The first segment's base offset."""
        return int(self._segments[0].stem)

    def end_offset(self) -> int:
        """The offset after the last whole batch."""
        last = self._segments[-1]
        ends = deque((batch[-1] for batch in _batches(last)), maxlen=1)
        return ends[0] if ends else int(last.stem)

    def stream(self, start_offset: int, end_offset: int) -> ReplicaStream:
        """Return the whole batches between the two offsets."""
        pieces = []
        for index, path in enumerate(self._segments):
            following = self._segments[index + 1 :]
            if following and int(following[0].stem) <= start_offset:
                continue
            start: int | None = None
            stop = 0
            for base, position, size, batch_end in _batches(path):
                if base >= start_offset and batch_end <= end_offset:
                    start = position if start is None else start
                    stop = position + size
            if start is not None:
                pieces.append(_Piece(path, start, stop))
        return ReplicaStream(tuple(pieces))


def _batches(path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Yield (base offset, position, size, offset after the last record) of each whole batch of a file."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            position = 0
            while position + _LAST_OFFSET_DELTA_POSITION + _LAST_OFFSET_DELTA.size <= size:
                base, length, last_delta = _batch_start(file, position)
                if length <= 0 or base < 0:
                    raise ReplicaReadError(f"{path} holds no batch at byte {position}")
                whole = length + _BATCH_START.size
                if position + whole > size:
                    return
                yield base, position, whole, base + last_delta + 1
                position += whole
    except FileNotFoundError:
        return  # retention removed it meanwhile


def _batch_start(file: BinaryIO, position: int) -> tuple[int, int, int]:
    file.seek(position)
    head = file.read(_LAST_OFFSET_DELTA_POSITION + _LAST_OFFSET_DELTA.size)
    base, length = _BATCH_START.unpack_from(head)
    (last_delta,) = _LAST_OFFSET_DELTA.unpack_from(head, _LAST_OFFSET_DELTA_POSITION)
    return base, length, last_delta


def _first_difference(streams: Mapping[int, ReplicaStream]) -> ReplicaDifference | None:
    reference, *others = streams
    for broker in others:
        distance = _distance_of_first_difference(streams[reference], streams[broker])
        if distance is not None:
            path, position = streams[broker].locate(distance)
            inside = [base for base, start, size, _end in _batches(path) if start <= position < start + size]
            return ReplicaDifference(reference, broker, path, position, inside[0] if inside else -1)
    return None


def _distance_of_first_difference(left: ReplicaStream, right: ReplicaStream) -> int | None:
    distance = 0
    for ours, theirs in zip(left.chunks(), right.chunks(), strict=False):
        if ours != theirs:
            same = next(
                (index for index, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
                min(len(ours), len(theirs)),
            )
            return distance + same
        distance += len(ours)
    return None if left.size == right.size else distance

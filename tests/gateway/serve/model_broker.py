"""A broker as consumers see it: logs with transactions, and its own answers to Fetch requests, by another codec.

A client that follows KIP-227 as the Java consumer does, and reads transactions as it does.
"""

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer import FetchRequest, FetchResponse

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicIdPartition
from tests.kafka_log.batches import batch, batch_around
from tests.replication.fetch_frames import TOPIC_ID, encode

TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = 0, 1
Topic = FetchResponse.FetchableTopicResponse


@dataclass
class ModelLog:
    epoch: int = 3
    batches: list[bytes] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Base and last offset of each batch."""
    high_watermark: int = 0
    log_start: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """First offset of each producer's transaction that has not ended."""
    ended: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Producer, first offset, marker's offset, whether it was aborted."""
    values: dict[int, bool] = field(default_factory=dict)
    """Data offsets, and whether the record is never to be read by who reads what is committed."""

    @property
    def end(self) -> int:
        return self.spans[-1][1] + 1 if self.spans else 0

    def append(self, records: int, producer_id: int = -1, size: int = 20) -> None:
        attributes = TRANSACTIONAL if producer_id >= 0 else 0
        if producer_id >= 0:
            self.open.setdefault(producer_id, self.end)
        base = self.end
        self.batches.append(
            batch(base, records, self.epoch, b"v" * size, attributes=attributes, producer_id=producer_id)
        )
        self.spans.append((base, base + records - 1))

    def replicate(self, batches: int) -> None:
        """Move the high watermark by this many batches and one more, if there are so many."""
        ends = [last + 1 for _, last in self.spans if last + 1 > self.high_watermark]
        if ends:
            self.high_watermark = ends[min(batches, len(ends) - 1)]

    def end_transaction(self, producer_id: int, *, aborts: bool) -> None:
        """End the producer's transaction, if one is open."""
        if producer_id not in self.open:
            return
        body = b"\x14" + b"\0\0\0" + b"\x08" + struct.pack(">hh", 0, ABORT if aborts else COMMIT) + b"\x01\0"
        base = self.end
        attributes = TRANSACTIONAL | CONTROL
        self.batches.append(batch_around(body, base, 1, self.epoch, attributes=attributes, producer_id=producer_id))
        self.spans.append((base, base))
        self.ended.append((producer_id, self.open.pop(producer_id), base, aborts))

    @property
    def last_stable(self) -> int:
        unstable = list(self.open.values()) + [
            first for _, first, marker, _ in self.ended if marker >= self.high_watermark
        ]
        return min([self.high_watermark, *unstable])

    def committed(self) -> list[int]:
        """Offsets of data that a read-committed consumer is to see, up to the last stable offset."""
        aborted = [(pid, first, marker) for pid, first, marker, aborts in self.ended if aborts]
        found: list[int] = []
        for raw, (base, last) in zip(self.batches, self.spans, strict=True):
            attributes, producer_id = struct.unpack_from(">h20xq", raw, 21)
            is_aborted = attributes & TRANSACTIONAL and any(
                pid == producer_id and first <= base < marker for pid, first, marker in aborted
            )
            if not attributes & CONTROL and not is_aborted and last < self.last_stable:
                found += range(base, last + 1)
        return found

    def read(self, offset: int, limit: int, max_bytes: int, *, at_least_one: bool) -> list[bytes]:
        found: list[bytes] = []
        for raw, (_, last) in zip(self.batches, self.spans, strict=True):
            if last < offset:
                continue
            is_room = sum(map(len, found)) + len(raw) <= max_bytes or (not found and at_least_one)
            if last >= limit or not is_room:
                break
            found.append(raw)
        return found

    def answer(self, wanted: Any, *, is_committed: bool, max_bytes: int, at_least_one: bool) -> Any:
        number, offset = wanted.partition, wanted.fetch_offset
        if wanted.current_leader_epoch not in (-1, self.epoch):
            return Topic.PartitionData(partition_index=number, error_code=74, high_watermark=-1, records=b"")
        if not self.log_start <= offset <= self.end:
            return Topic.PartitionData(partition_index=number, error_code=1, high_watermark=-1, records=b"")
        limit = self.last_stable if is_committed else self.high_watermark
        records = self.read(offset, limit, min(max_bytes, wanted.partition_max_bytes), at_least_one=at_least_one)
        aborted = [
            Topic.PartitionData.AbortedTransaction(producer_id=pid, first_offset=first)
            for pid, first, marker, aborts in self.ended
            if aborts and marker >= offset and marker < self.high_watermark
        ]
        return Topic.PartitionData(
            partition_index=number,
            error_code=0,
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable,
            log_start_offset=self.log_start,
            aborted_transactions=aborted if is_committed else None,
            records=b"".join(records),
        )


class ModelBroker:
    """Answers sessionless Fetch requests at once."""

    def __init__(self, partitions: int) -> None:
        self.logs = {number: ModelLog() for number in range(partitions)}
        self.asked: list[Any] = []

    def fetch(self, frame: bytes) -> bytes:
        version, correlation_id = struct.unpack_from(">hi", frame, 2)
        request = FetchRequest.decode(frame, version=version, header=True)
        assert (request.session_id, request.session_epoch) == (0, -1), "full, and without a session"
        self.asked.append(request)
        left, answered = request.max_bytes, []
        for topic in request.topics:
            assert topic.topic_id == uuid.UUID(bytes=TOPIC_ID)
            for wanted in topic.partitions:
                log, is_first = self.logs[wanted.partition], left == request.max_bytes
                is_committed = request.isolation_level == 1
                told = log.answer(wanted, is_committed=is_committed, max_bytes=left, at_least_one=is_first)
                left -= len(told.records or b"")
                answered.append(told)
        topic = Topic(topic_id=uuid.UUID(bytes=TOPIC_ID), partitions=answered)
        return encode(FetchResponse(responses=[topic], session_id=0, version=version), correlation_id)


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC_ID, number)


class ModelConsumer:
    """Reads all partitions from the beginning, in a fetch session."""

    def __init__(self, partitions: int, version: int, *, is_committed: bool, max_bytes: int, epoch: int = 3) -> None:
        self.positions = dict.fromkeys(range(partitions), 0)
        self.version, self.is_committed, self.max_bytes, self.epoch = version, is_committed, max_bytes, epoch
        self.session_id, self.session_epoch = 0, 0
        self._sent: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self.read: dict[int, list[int]] = {number: [] for number in range(partitions)}

    def request(self, *, max_wait_ms: int = 500, min_bytes: int = 1, client_id: str = "consumer") -> bytes:
        self._correlation_id += 1
        wanted = {number: (offset, self.epoch) for number, offset in self.positions.items()}
        changed = {one: at for one, at in wanted.items() if self._sent.get(one) != at or self.session_epoch <= 0}
        self._sent = wanted
        partitions = [
            FetchRequest.FetchTopic.FetchPartition(
                partition=number,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                partition_max_bytes=self.max_bytes,
                last_fetched_epoch=-1,
                log_start_offset=-1,
            )
            for number, (offset, epoch) in changed.items()
        ]
        topic = FetchRequest.FetchTopic(topic_id=uuid.UUID(bytes=TOPIC_ID), partitions=partitions)
        message = FetchRequest(
            version=self.version,
            **({"replica_id": -1} if self.version < 15 else {}),
            topics=[topic] if partitions else [],
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=4 * self.max_bytes,
            isolation_level=int(self.is_committed),
            session_id=self.session_id,
            session_epoch=self.session_epoch,
        )
        message.with_header(correlation_id=self._correlation_id, client_id=client_id)
        return bytes(message.encode(header=True))

    def take(self, frame: bytes) -> Any:
        """Handle an answer as FetchSessionHandler and CompletedFetch do. Returns it."""
        response = FetchResponse.decode(frame, version=self.version, header=True)
        assert int.from_bytes(frame[:4], "big") == self._correlation_id
        if response.error_code:
            self.session_id, self.session_epoch = 0, 0
            return response
        was_full, self.session_id = self.session_epoch == 0, response.session_id
        self.session_epoch = self.session_epoch + 1 if response.session_id else 0
        if was_full:
            answered = {one.partition_index for topic in response.responses for one in topic.partitions}
            assert answered == set(self.positions)
        for topic in response.responses:
            for told in topic.partitions:
                if not told.error_code:
                    self._take_records(told)
                elif told.error_code == 1:
                    self.positions[told.partition_index] = -2
        return response

    def _take_records(self, told: Any) -> None:
        number, raw = told.partition_index, told.records or b""
        waiting = sorted((one.first_offset, one.producer_id) for one in told.aborted_transactions or ())
        aborted: set[int] = set()
        for span, attributes, producer_id in _spans(raw):
            while self.is_committed and waiting and waiting[0][0] <= span.last_offset:
                aborted.add(waiting.pop(0)[1])
            if attributes & CONTROL:
                if _is_abort(raw, span.start):
                    aborted.discard(producer_id)
            elif not (attributes & TRANSACTIONAL and producer_id in aborted):
                position = self.positions[number]
                self.read[number] += [one for one in range(span.base_offset, span.last_offset + 1) if one >= position]
            self.positions[number] = max(self.positions[number], span.last_offset + 1)


def _spans(raw: bytes) -> Iterator[tuple[Any, int, int]]:
    for span in scan_batches(raw, 0, len(raw)):
        yield span, *struct.unpack_from(">h20xq", raw, span.start + 21)


def _is_abort(raw: bytes, start: int) -> bool:
    at = start + 61 + 1 + 1 + 1 + 1 + 1  # the record's length, attributes, time, offset, the key's length
    return bool(struct.unpack_from(">hh", raw, at)[1] == ABORT)

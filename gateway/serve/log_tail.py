"""Follows the partitions of one broker for all of a zone's consumers. Sans-IO.

It asks one full Fetch after the other, read-committed, for every followed partition at once, and each insists on the
leader epoch that a consumer has proved. The question waits at the broker until something is visible, for `HEARTBEAT_MS`
at most. So each answer is the push of what became visible, and the heartbeat of all partitions.

A partition is followed from the position of a consumer that is near its end; the broker answers consumers that are far
behind. Memory is bounded: the oldest records of the largest log go first.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.serve.fetch_frames import (
    READ_COMMITTED,
    FetchRequest,
    WantedPartition,
    decode_response,
    encode_sessionless,
)
from gateway.serve.serving import ReadLog
from gateway.serve.visible_log import VisibleLog
from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicIdPartition
from replication.wire.fetch_frame import FETCH_API_KEY, TOPIC_ID_VERSION

HEARTBEAT_MS: Final = 250
"""How long a request for what is visible waits at the broker (guessed)."""
MAX_LOGS: Final = 2000
"""Logs of one broker that are followed (guessed)."""
_RESPONSE_BYTES, _PARTITION_BYTES = 16 * 1024 * 1024, 4 * 1024 * 1024
"""The most that one response may hold, and of one partition (guessed)."""
_NOT_WANTED_S: Final = 10.0
"""A log that no consumer asked for is no longer followed after so long (guessed)."""
_REFUSED_S: Final = 1.0
"""Pause after a log could not be followed (guessed)."""
_NEAR_BYTES: Final = 32 * 1024 * 1024
"""If a consumer is nearer to the end than this, its log is followed (guessed)."""
_CLIENT_ID: Final = b"remote-wal-gateway"
_HEAD: Final = struct.Struct(">hhih")
_NO_RACK: Final = b"\x01"


@dataclass(slots=True)
class _Followed:
    log: VisibleLog
    wanted_s: float


class HeldRecords:
    """Bounds the memory of records that the tails of all brokers hold together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tails: list[LogTail] = []

    def add(self, tail: "LogTail") -> None:
        """Count this tail's records towards the bound, too."""
        self._tails.append(tail)

    @property
    def size(self) -> int:
        """Bytes of records that all tails hold."""
        return sum(one.size for one in self._tails)

    def trim(self) -> None:
        """Drop the oldest records of whichever log holds the most, until all fit."""
        while self.size > self._max_bytes:
            max((log for one in self._tails for log in one.logs()), key=lambda log: log.size).drop_oldest()


class LogTail:
    """The logs of one broker that the gateway follows for consumers. All times are monotonic seconds."""

    def __init__(self, held: HeldRecords) -> None:
        """`held` bounds the records that this tail and those of other brokers hold."""
        self._held = held
        held.add(self)
        self._followed: dict[TopicIdPartition, _Followed] = {}
        """In the order in which they are asked for."""
        self._refused_s: dict[TopicIdPartition, float] = {}
        self._asked: dict[TopicIdPartition, VisibleLog] = {}
        self._asked_s = 0.0
        self._correlation_id = 0

    @property
    def size(self) -> int:
        """Bytes of records that this tail holds."""
        return sum(log.size for log in self.logs())

    def logs(self) -> Iterator[VisibleLog]:
        """Yield the logs that are followed."""
        return (one.log for one in self._followed.values())

    def __len__(self) -> int:
        """Return how many logs are followed."""
        return len(self._followed)

    # FollowedLogs.

    def get(self, log: TopicIdPartition, now_s: float) -> VisibleLog | None:
        """Return the log and note that it is needed now; None if it is not followed."""
        followed = self._followed.get(log)
        if followed is None:
            return None
        followed.wanted_s = now_s
        return followed.log

    def propose(self, log: TopicIdPartition, epoch: int, read: ReadLog, now_s: float) -> None:
        """Follow a log: its broker has just sent a consumer records in this leader epoch."""
        followed = self._followed.get(log)
        if followed is not None:
            followed.wanted_s = now_s
            if followed.log.epoch >= epoch:
                return
        elif len(self._followed) >= MAX_LOGS or now_s < self._refused_s.get(log, now_s):
            return
        behind = read.end_offset - read.next_offset
        if behind > 0 and not (read.size and behind * read.size <= read.offsets * _NEAR_BYTES):
            return
        self._followed[log] = _Followed(VisibleLog(epoch, read.next_offset), now_s)

    # The questions.

    def ask(self, now_s: float) -> bytes | None:
        """Return the next request for what is visible; None while no log is followed."""
        for log in [log for log, one in self._followed.items() if now_s - one.wanted_s > _NOT_WANTED_S]:
            del self._followed[log]
        if len(self._refused_s) > MAX_LOGS:
            self._refused_s.clear()
        if not self._followed:
            return None
        self._correlation_id = (self._correlation_id + 1) % (1 << 31)
        head = _HEAD.pack(FETCH_API_KEY, TOPIC_ID_VERSION, self._correlation_id, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
        limits = HEARTBEAT_MS, 1, _RESPONSE_BYTES, READ_COMMITTED
        request = FetchRequest(head, TOPIC_ID_VERSION, self._correlation_id, "", *limits, 0, -1, (), (), _NO_RACK)
        self._asked = {log: one.log for log, one in self._followed.items()}
        self._asked_s = now_s
        wanted = (
            WantedPartition(log, one.epoch, one.next_offset, -1, -1, _PARTITION_BYTES)
            for log, one in self._asked.items()
        )
        return encode_sessionless(request, wanted, HEARTBEAT_MS)

    def answered(self, frame: Buffer, now_s: float) -> None:
        """Take the response to the last request. Raises MalformedFrameError."""
        response = decode_response(memoryview(frame))
        asked, self._asked = self._asked, {}
        if response.error:
            return
        told_of = {one.log: one for one in response.partitions}
        for log, visible in asked.items():
            followed, told = self._followed.get(log), told_of.get(log)
            if followed is None or followed.log is not visible:
                continue
            size = visible.size
            if told is None or not visible.take(told, self._asked_s):
                del self._followed[log]
                self._refused_s[log] = now_s + _REFUSED_S
            elif visible.size > size:  # those without records come first next time
                self._followed[log] = self._followed.pop(log)
        self._held.trim()

    def drop_all(self) -> None:
        """Follow no log any more: the broker's agent does not support it, or the connection ended."""
        self._followed.clear()

"""Decides which topics' records are packed on their way to another zone, and knows how small they become.

A topic is packed unless `remote.wal.pack.enable` is off, at the agent or for the topic, or not known yet: a topic that
is off never enters a stream that others' records share. What its records become is measured as they are packed. If that
is hardly less, as for random or well compressed bytes, the topic rests: its records go plain for a while.

`ratio_of` is the price of a topic's inline bytes: so many of them cross zones as one (`Prices.inline_gb`).
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kafka_log.topic_partition import TopicId
from replication.wire.metrics import PackingMetrics
from replication.wire.packed_message import MAX_PIECES, PackedTopic, Piece, Topic, TopicRecords, cut

MIN_RATIO: Final = 1.15
"""A topic that packs less rests (guessed): with acks=all a byte less is worth the CPU of packing eight."""
SAMPLE_BYTES: Final = 128 * 1024
"""So much of a topic is packed before it is judged (guessed)."""
REST_S: Final = 60.0
"""For how long a topic rests (guessed): it costs 128 KiB of packing a minute then."""
_RECENT_BYTES: Final = 4 * 1024 * 1024
"""A topic's ratio is that of about so many of its last bytes (guessed)."""
_MAX_TOPICS: Final = 10_000
"""Topics that are remembered; clients can name any number of topics that do not exist (guessed)."""
_THREADS: Final = 2
"""Large messages that are packed at once (guessed)."""


class TopicPacking:
    """How well the records of one topic pack, and whether packing pauses for it."""

    __slots__ = (
        "_plain_bytes",
        "_recent_packed",
        "_recent_plain",
        "packed_bytes",
        "plain_bytes",
        "ratio",
        "rests_until_s",
    )

    def __init__(self) -> None:
        self.plain_bytes = self.packed_bytes = 0
        """Bytes of what was packed, before and after, since the agent started."""
        self._recent_plain = self._recent_packed = 0
        self.ratio = 1.0
        self.rests_until_s = float("-inf")

    def add(self, plain_bytes: int, packed_bytes: int, now_s: float) -> bool:
        """Count records that were packed. Returns whether packing pauses for the topic from now on."""
        self.plain_bytes += plain_bytes
        self.packed_bytes += packed_bytes
        self._recent_plain += plain_bytes
        self._recent_packed += packed_bytes
        if self._recent_plain < SAMPLE_BYTES:
            return False
        self.ratio = self._recent_plain / self._recent_packed
        if self._recent_plain >= _RECENT_BYTES:
            self._recent_plain //= 2
            self._recent_packed //= 2
        if self.ratio >= MIN_RATIO:
            return False
        self.ratio, self._recent_plain, self._recent_packed = 1.0, 0, 0
        self.rests_until_s = now_s + REST_S
        return True


class Packing:
    """Decides which topics' records are packed. One for each agent, in the event loop; any thread may ask for
    ratios."""

    def __init__(
        self, clock: Callable[[], float], metrics: PackingMetrics, is_allowed: Callable[[Topic], bool]
    ) -> None:
        """`clock` gives monotonic seconds.

        `is_allowed` says whether the settings allow to pack a topic, by id or name; False while that is not known.
        """
        self._clock = clock
        self._metrics = metrics
        self._topics: dict[Topic, TopicPacking] = {}
        self._is_allowed = is_allowed
        self.pool = ThreadPoolExecutor(_THREADS, "packing")
        """Packs and unpacks large messages."""

    def cut(self, size: int, records: Iterable[TopicRecords] | None) -> list[Piece]:
        """Return the pieces of a message's body of `size` bytes; none if all of it goes plain.

        `records` are all records in it; None: it may have records, and nobody knows where.
        """
        pieces = [] if records is None else cut(size, records, self._packs)
        is_any_packed, is_few = any(piece.is_packed for piece in pieces), len(pieces) <= MAX_PIECES
        for piece in pieces:
            if not (piece.is_packed and is_few):
                self._metrics.plain_bytes.inc(sum(piece.records.values()))
        return pieces if is_any_packed and is_few else []

    def _packs(self, topic: Topic) -> bool:
        known = self._topics.get(topic)
        return self._is_allowed(topic) and (known is None or self._clock() >= known.rests_until_s)

    def packed(self, topics: Iterable[PackedTopic]) -> None:
        """Count the sizes of a message's topics before and after packing."""
        for topic, plain_bytes, packed_bytes in topics:
            self._metrics.before_bytes.inc(plain_bytes)
            self._metrics.after_bytes.inc(packed_bytes)
            if topic not in self._topics and len(self._topics) >= _MAX_TOPICS:
                del self._topics[next(iter(self._topics))]
            if self._topics.setdefault(topic, TopicPacking()).add(plain_bytes, packed_bytes, self._clock()):
                self._metrics.rests.inc()

    def ratio_of(self, topic: Topic) -> float:
        """Return the size of the topic's inline bytes after packing, relative to before; 1.0 if they are not packed.

        Nothing is packed within a zone, where bytes cost nothing.
        """
        known = self._topics.get(topic)
        return 1.0 if known is None or not self._packs(topic) else known.ratio

    def describe(self, names: Mapping[TopicId, str]) -> dict[str, dict[str, float]]:
        """Return by topic, the largest first, the ratio of packing, and the bytes before and after it."""
        told: dict[str, dict[str, float]] = {}
        by_size = sorted(self._topics.copy().items(), key=lambda item: -item[1].plain_bytes)
        for topic, known in by_size:
            name = str(names.get(TopicId(topic), topic.hex()) if isinstance(topic, bytes) else topic)
            bytes_ = {"plain_bytes": known.plain_bytes, "packed_bytes": known.packed_bytes}
            told.setdefault(name, {"ratio": round(self.ratio_of(topic), 2), **bytes_})
        return told

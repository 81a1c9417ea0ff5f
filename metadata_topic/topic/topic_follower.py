"""Follows a topic from its beginning, or from where a snapshot ends: all partitions, no group, one thread.

The follower owns its positions (`positions`: the next offset to read, per partition). Batches are given to `take`, in
order per partition, and the positions move when `take` returns; when the consumer fails, a new one continues from
there. The follower is caught up when every partition has reached the end that it had at the start.

Having caught up once is not being up to date now: `read_to_end` waits for the latter (`ReadBarriers`). A consumer that
reads nothing although there is more is replaced (`StallWatch`).

The start position may be gone. Either retention has cut the topic beyond it: that is a gap (counted, and logged with
its size). Or the topic ends before it or has another id, so that it was recreated, or lost its tail: then everything is
read from the beginning. `metadata_topic.store.topic_continuity` draws the conclusions.

It costs next to nothing when idle: brokers hold a fetch for up to a second, and batches are gathered as long. So what
is read is up to about two seconds old. Until it has caught up, which a starting agent waits for, a separate consumer is
used without such waits.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from kafka_cluster.client_config import ConfluentValue, KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.topic.reading_positions import Continuity, ReadingPositions, SameTopic
from metadata_topic.topic.topic_consumer import ConfluentReader, ConsumerFactory, ConsumerLike, MessageLike

log = structlog.get_logger(__name__)


_EAGER_WAIT_MS = 100


class TopicRecord(NamedTuple):
    """One record as it was read, with its partition and offset."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """How large the follower's fetches are, how long they wait, and the pauses before retries."""

    batch_records: int = 500
    batch_wait_ms: int = 1000
    fetch_wait_ms: int = 1000
    fetch_min_bytes: int = 64 * 1024
    retry_pause_ms: int = 1000
    """The longest pause; the first ones are shorter."""
    request_timeout_ms: int = 10_000
    end_offset_timeout_ms: int = 3000
    """For questions while reading continues: a partition whose broker just died has no leader for seconds, and no other
    partition is read meanwhile."""
    new_partitions_check_ms: int = 60_000
    stall_check_ms: int = 20_000
    """A consumer that does not move between two looks, although the topic had more at the first, is replaced."""
    absence_check_ms: int | None = None
    """For a topic that need not exist: how often to look for it. None: its absence is a fault."""

    @property
    def eager(self) -> "FollowSettings":
        """Settings with which brokers hold no fetch if there is any record."""
        return replace(self, fetch_min_bytes=1, fetch_wait_ms=min(self.fetch_wait_ms, _EAGER_WAIT_MS))


DEFAULT_SETTINGS = FollowSettings()
ONE_LOOK = FollowSettings(
    fetch_min_bytes=1,
    fetch_wait_ms=100,
    batch_wait_ms=100,
    request_timeout_ms=30_000,
    end_offset_timeout_ms=30_000,
)
"""For a command: it follows nothing, so slow answers are waited for, and none waits behind a fetch."""


class _Barrier:
    def __init__(self) -> None:
        self.goals: Mapping[int, int] | None = None
        self.is_passed = False
        self.is_settled = threading.Event()

    def pass_(self) -> None:
        self.is_passed = True
        self.is_settled.set()


class ReadBarriers:
    """Waits until a topic has been read to its end at the time of the request.

    Code that draws a conclusion from what is *not* known must wait first: a reader may lag because of its batching, a
    slow broker, or an outage. A barrier's goals are the end offsets asked for after the request was made, so what was
    acknowledged to any writer before the request is below them. The reading thread asks for the goals and compares them
    with its positions, because progress and content match there.

    `wait` is for any thread but the reader's; `serve` is for the reader's only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Barrier] = []
        self._is_over = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything that is in the topic at the call has been processed. Blocks.

        False on a timeout, for instance because no broker gave the topic's end, or when reading has ended.
        """
        barrier = _Barrier()
        with self._lock:
            if self._is_over:
                return False
            self._waiting.append(barrier)
        barrier.is_settled.wait(timeout_s)
        with self._lock:
            self._waiting.remove(barrier)
        return barrier.is_passed

    def serve(self, end_offsets: Callable[[], Mapping[int, int] | None], positions: Mapping[int, int]) -> None:
        """Finish the waits whose goals are reached. `end_offsets` returns ends by partition, None if unknown.

        Unknown ends are asked for again at the next call: a partition that has just lost its leader gets one within a
        moment.
        """
        with self._lock:
            waiting = list(self._waiting)
        unasked = [barrier for barrier in waiting if barrier.goals is None]
        goals = end_offsets() if unasked else None
        for barrier in unasked:
            barrier.goals = goals
        for barrier in waiting:
            if barrier.goals is not None and all(
                positions.get(partition, 0) >= goal for partition, goal in barrier.goals.items()
            ):
                barrier.pass_()

    def give_up(self) -> None:
        """End all waits, because reading has ended.

        The interpreter joins its pools' threads when it exits, so a thread that still waited would keep the process
        alive.
        """
        with self._lock:
            self._is_over = True
            for barrier in self._waiting:
                barrier.is_settled.set()


_FIRST_OF_LONGEST: Final = 0.1
"""Of the longest pause: for some tenths of a second a new topic is not known to every broker (guessed)."""


class StallWatch:
    """Notices a consumer that does not move although there is more to read. Sans-IO; all times are monotonic seconds.

    Consumers have been reported to read nothing more of a partition after its leader had moved, without any error,
    until they were replaced (librdkafka issues 843, 2363 and 2625). Two looks show this: nothing was read in between,
    although the partition already ended beyond the position at the first look. Ends are asked for all partitions at
    once: while one has no leader they are unknown, and nothing is concluded.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._looked_s = now_s
        self._positions: Mapping[int, int] = {}
        self._end_offsets: Mapping[int, int] = {}

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to compare positions with the topic's ends."""
        return now_s - self._looked_s >= self._interval_s

    def find_stalled(self, positions: Mapping[int, int], end_offsets: Mapping[int, int], now_s: float) -> int | None:
        """Return a partition that has not moved since the last look although it had more to read; None if there is
        none.

        Arguments are by partition: the next offset to read, and the end according to brokers now; empty when unknown.
        """
        earlier, goals = self._positions, self._end_offsets
        self._looked_s, self._positions, self._end_offsets = now_s, dict(positions), dict(end_offsets)
        for partition, position in positions.items():
            if earlier.get(partition) == position < goals.get(partition, 0):
                return partition
        return None


class TopicFollower:
    """Reads a topic on its own thread and passes every record to `take`, retrying all errors."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        topic: str,
        take: Callable[[Sequence[TopicRecord]], None],
        settings: FollowSettings = DEFAULT_SETTINGS,
        rack: str | None = None,
        consumer_factory: ConsumerFactory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`take` runs on the follower's thread and must not raise.

        `rack` lets it read from a broker in its zone. Without a factory, real consumers are made.
        """
        self._topic = topic
        self._take = take
        self._settings = settings
        descriptions = KafkaCluster(client_config, f"follow-{topic}", settings.request_timeout_ms / 1000)
        factory = consumer_factory or partial(ConfluentReader, descriptions=descriptions)

        def make_consumer(*, is_eager: bool) -> ConsumerLike:
            return factory(_consumer_config(client_config, topic, settings.eager if is_eager else settings, rack))

        self._make_consumer = make_consumer
        self._clock = clock
        self._reading = ReadingPositions(topic, self._timeout_s, settings.end_offset_timeout_ms / 1000)
        self._stop = threading.Event()
        self._settled = threading.Event()  # Caught up, dead, or without a topic that need not exist.
        self._is_there: bool | None = None
        self._barriers = ReadBarriers()
        self._failure: BaseException | None = None
        self._told = "", 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start reading from the topic's beginning. Subclasses may start elsewhere."""
        self.begin()

    def begin(
        self,
        prepare: Callable[[], Mapping[int, int]] = dict,
        start_over: Callable[[], None] = lambda: None,
        continuity: Continuity | None = None,
    ) -> None:
        """Start reading from where `prepare` says.

        `prepare` is called on the follower's thread, until something was read, and returns where to begin: the next
        offset per partition, 0 for absent ones. It must not raise. `start_over` is called on that thread when the topic
        is another one than was read so far. `continuity` gets what the brokers say of the topic as a whole, before
        anything is read of it, and before `read_to_end` is answered.
        """
        self._reading.start_over, self._reading.continuity = start_over, continuity or SameTopic()
        self._thread = threading.Thread(target=self._run, args=(prepare,), name=f"follow-{self._topic}", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the follower has caught up once, and is still reading."""
        return self._reading.is_caught_up and self._failure is None

    @property
    def is_there(self) -> bool | None:
        """Whether the topic exists; None until a broker has answered."""
        return self._is_there

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until `ready`; False when time ran out first, the thread died, or an optional topic is missing."""
        return self._settled.wait(timeout_s) and self.ready

    def read_to_end(self, timeout_s: float) -> bool:
        """Wait until `take` got everything that is in the topic at the call. Blocks.

        False on a timeout, or when no broker gives the topic's end.
        """
        return self._barriers.wait(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """The defect that ended the thread for good; all other errors are retried."""
        return self._failure

    @property
    def positions(self) -> dict[int, int]:
        """The next offset to read, per partition."""
        return dict(self._reading.positions)

    @property
    def left(self) -> int:
        """How many records remain until the follower has caught up; 0 while the topic's ends are unknown."""
        return self._reading.left

    @property
    def counters(self) -> dict[str, int]:
        """`records`, `batches`, `errors`, `consumer_restarts`, `stalls`; `gaps` and `gap_records` that retention
        removed unread, `started_over` when the topic was another one.
        """
        return dict(self._reading.counters)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, prepare: Callable[[], Mapping[int, int]]) -> None:
        from confluent_kafka import KafkaException

        longest_s = self._settings.retry_pause_ms / 1000
        retrying = Retrying(
            retry=retry_if_exception_type((KafkaException, KafkaClusterError)),
            wait=wait_exponential(longest_s * _FIRST_OF_LONGEST, longest_s),
            stop=lambda _state: self._stop.is_set(),
            before_sleep=self._tell_failure,
            retry_error_callback=lambda _state: None,
            sleep=self._pause,
        )
        try:
            while not self._stop.is_set():
                retrying(self._follow, prepare)
        except BaseException as failure:
            self._failure = failure
            self._settled.set()
            log.exception("metadata_topic_follower_died", topic=self._topic)
        finally:
            self._barriers.give_up()

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _tell_failure(self, state: RetryCallState) -> None:
        """Log once for each reason, however often it is retried, until something was read."""
        self._reading.counters["consumer_restarts"] += 1
        news = str(state.outcome and state.outcome.exception()), self._reading.counters["records"]
        if news != self._told:
            log.warning("metadata_topic_read_failed", topic=self._topic, error=news[0])
        self._told = news

    def _follow(self, prepare: Callable[[], Mapping[int, int]]) -> None:
        """Read until stopped; an eager consumer stops once caught up."""
        if self._stop.is_set():  # while it paused
            return
        if not any(self._reading.positions.values()):
            self._reading.positions.update(prepare())
        is_eager = self._settings.fetch_min_bytes > 1 and not self._reading.is_caught_up
        consumer = self._make_consumer(is_eager=is_eager)
        try:
            if not self._find_topic(consumer):
                return
            self._reading.take_up(consumer)
            self._settle()
            checks = max(1, self._settings.new_partitions_check_ms // self._settings.batch_wait_ms)
            idle = 0
            stall_watch = StallWatch(self._settings.stall_check_ms / 1000, self._clock())
            while not self._stop.is_set() and not (is_eager and self._reading.is_caught_up):
                messages = consumer.consume(self._settings.batch_records, self._batch_wait_s)
                self._hand_over(consumer, messages)
                self._barriers.serve(lambda: self._reading.ends_of_the_same(consumer), self._reading.positions)
                # A full batch means that more was waiting: then a partition may have to wait for its turn.
                if len(messages) < self._settings.batch_records and stall_watch.is_due(now_s := self._clock()):
                    self._look_for_stalls(consumer, stall_watch, now_s)
                idle += 1
                if idle >= checks:
                    idle = 0
                    if consumer.partition_count(self._topic, self._timeout_s) > len(self._reading.positions):
                        self._reading.take_up(consumer)
                        self._settle()
                    self._reading.ends_of_the_same(consumer)
        finally:
            consumer.close()

    def _look_for_stalls(self, consumer: ConsumerLike, watch: StallWatch, now_s: float) -> None:
        """Raise MetadataTopicError when the consumer must be replaced."""
        stalled = watch.find_stalled(self._reading.positions, self._reading.ends_if_told(consumer) or {}, now_s)
        if stalled is not None:
            self._reading.counters["stalls"] += 1
            raise MetadataTopicError(
                "follow",
                f"{self._topic}-{stalled}",
                f"nothing was read beyond offset {self._reading.positions[stalled]}",
            )

    def _find_topic(self, consumer: ConsumerLike) -> bool:
        """Wait for an optional topic; False when stopped meanwhile. Raises MetadataTopicError."""
        while not self._stop.is_set():
            if consumer.partition_count(self._topic, self._timeout_s) > 0:
                if self._is_there is False:
                    self._settled.clear()
                self._is_there = True
                return True
            self._is_there = False
            if self._settings.absence_check_ms is None:
                raise MetadataTopicError(
                    "follow", self._topic, "the topic does not exist", "an agent makes it when it starts"
                )
            self._settled.set()
            self._stop.wait(self._settings.absence_check_ms / 1000)
        return False

    def _hand_over(self, consumer: ConsumerLike, messages: list[MessageLike]) -> None:
        records: list[TopicRecord] = []
        ends: dict[int, int] = {}
        for message in messages:
            error = message.error()
            is_end = error is not None and error.name() == "_PARTITION_EOF"
            if (error is None or is_end) and message.offset() < self._reading.positions.get(message.partition(), 0):
                # librdkafka goes back by itself if the topic was cut off or recreated.
                raise MetadataTopicError("follow", self._topic, f"it went back to offset {message.offset()}")
            if error is None:
                epoch = message.leader_epoch()
                if epoch is not None and self._reading.is_new_epoch(message.partition(), epoch):
                    self._take_in(records, ends)
                    records, ends = [], {}
                    self._reading.reads_epoch(consumer, message.partition(), epoch)
                records.append(TopicRecord(message.partition(), message.offset(), message.key(), message.value()))
                ends[message.partition()] = message.offset() + 1
            elif is_end:
                ends[message.partition()] = message.offset()
            else:
                self._reading.counters["errors"] += 1
                log.warning("metadata_topic_error", topic=self._topic, error=str(error))
                if error.fatal():
                    raise MetadataTopicError("follow", self._topic, str(error))
        self._take_in(records, ends)

    def _take_in(self, records: list[TopicRecord], ends: Mapping[int, int]) -> None:
        if records:
            self._reading.counters["records"] += len(records)
            self._reading.counters["batches"] += 1
            self._take(records)
        self._reading.moved(ends)
        self._settle()

    def _settle(self) -> None:
        if self._reading.is_caught_up:
            self._settled.set()

    @property
    def _batch_wait_s(self) -> float:
        # Whoever waits until it is ready should not wait for the last batch to fill as well.
        wait_ms = self._settings.batch_wait_ms
        return (wait_ms if self._reading.is_caught_up else min(wait_ms, _EAGER_WAIT_MS)) / 1000

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000


def _consumer_config(
    client_config: KafkaClientConfig, topic: str, settings: FollowSettings, rack: str | None
) -> dict[str, ConfluentValue | logging.Logger]:
    overrides: dict[str, ConfluentValue] = {"client_rack": rack} if rack else {}
    return {
        **client_config.for_confluent(
            # librdkafka requires a group, although nothing is ever committed to it.
            group_id=f"remote-wal-follower-{topic}",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            auto_offset_reset="earliest",
            fetch_wait_max_ms=settings.fetch_wait_ms,
            fetch_min_bytes=settings.fetch_min_bytes,
            queued_max_messages_kbytes=16 * 1024,
            **overrides,
        ),
    }

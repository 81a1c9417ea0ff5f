"""A data source of Spark: `spark.read.format("remote_wal")` and `readStream`, with the columns of its Kafka source.

The driver plans: which offsets, in which parts of which objects. Each task reads some of these by range, and yields
Arrow batches. A stream's checkpoint holds offsets, as with Kafka, and what is stored at an offset never changes once it
is replicated. So each record is read exactly once, if the stream takes only what is `settledMs` old: a replica that
lacks it by then is out of sync (`replica.lag.time.max.ms`).

The classes are pickled by the name `remote_wal`, which is installed where tasks run and brings our packages along.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from agent.settings.setting_types import AgentSettingsError
from kafka_log.broker_files.java_properties import ConfigProviderError
from kafka_log.broker_files.leader_epoch_checkpoint import UNKNOWN_EPOCH
from kafka_log.errors import BrokerPropertiesError, LogDirectoryError, MalformedFileError
from kafka_log.record_batch import CorruptBatchError
from kafka_log.topic_partition import topic_id_to_text
from metadata_topic.records.offset_ranges import OffsetRange
from plugin.errors import OperationError
from plugin.wall_clock import wall_ms
from recovery.logs.log_plan import Extent
from topic_reader.columns import DecompressedBatch, RecordColumns, decode_columns
from topic_reader.decompression import decompressed
from topic_reader.isolation import stable_end
from topic_reader.options import COLUMNS, EARLIEST, LATEST, Bound, ReaderOptions
from topic_reader.read import visible_batches
from topic_reader.sources import OpenTopics, StoredTopics
from topic_reader.stored_log import DataLossError, RangePlan, StoredBatch, StoredLog, report_loss
from topic_reader.stream_offsets import Json, LogName, ReadTo, StreamOffsets, from_json, to_json

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SPLIT_BYTES = 64 * 1024 * 1024
_COMMITTED_SPLITS = 8
"""So many splits at most has a range that is read with read_committed, each with a list of all objects behind it."""
_ARROW_BYTES = 4 * 1024 * 1024
_ARROW_ROWS = 16_384
_LONGEST_TRANSACTION_MS = 900_000
"""Kafka's default of `transaction.max.timeout.ms`. A stream's first look goes back so far for open transactions."""


_EXPECTED = (
    OperationError, ValueError, OSError, AgentSettingsError, BrokerPropertiesError, ConfigProviderError,
    CorruptBatchError, LogDirectoryError, MalformedFileError,
)  # fmt: skip
"""What options, the store or the stored logs are to blame for: each says so in one sentence."""


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """Let Spark's Python process, which ends now, pass on an expected error without its traceback."""
    try:
        yield
    except _EXPECTED:
        os.environ["SPARK_HIDE_TRACEBACK"] = "true"
        raise


class RemoteWalDataSource(DataSource):
    """Spark's data source `remote_wal`. Register it: `spark.dataSource.register(remote_wal.RemoteWalDataSource)`."""

    __module__ = "remote_wal"

    @classmethod
    def name(cls) -> str:
        return "remote_wal"

    @_in_one_sentence()
    def schema(self) -> str:
        return ", ".join(f"{name} {COLUMNS[name]}" for name in ReaderOptions.parse(self.options).columns)

    @_in_one_sentence()
    def reader(self, schema: "StructType") -> DataSourceReader:
        options = ReaderOptions.parse(self.options, without_effect=["settledMs"], is_batch=True)
        return (_FilteringReader if options.pushes_filters else _BatchReader)(options, schema)

    @_in_one_sentence()
    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        without_effect = ["endingOffsets", "endingTimestamp", "pushFilters"]
        return _StreamReader(ReaderOptions.parse(self.options, without_effect=without_effect), schema)


class _Reader:
    """What batch and stream share: made by the driver, and copied to the tasks."""

    _is_end_stable = False
    """Whether ranges to read with read_committed end where no transaction is open."""
    _is_begun = False
    """Whether it goes on where a stream has come to, whatever partitions there were when that began."""

    def __init__(self, options: ReaderOptions, schema: "StructType") -> None:
        """Raises UnknownClusterError for an unknown topic."""
        self._schema = schema
        self._options = options
        self._fails = options.fails_on_data_loss
        self._topics = StoredTopics.find(options.source, options.topics)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the records of one split, in a task."""
        if partition is None:  # Spark has one task without a split for what has none
            return
        topic, number, start, end, topic_id, *planned = partition.value
        with _in_one_sentence(), self._topics.opened() as topics:
            batches = visible_batches(
                topics.log(topic, number, topic_id=topic_id),
                start,
                end,
                (planned[0], planned[1]),
                is_committed=self._options.is_committed,
                fail_on_data_loss=self._fails,
                is_end_stable=self._is_end_stable,
            )
            yield from _arrow_batches(batches, (start, end), self._topics.topics[topic].name, number, self._schema)

    def _logs(self, topics: OpenTopics) -> Iterator[LogName]:
        for topic, view in self._topics.topics.items():
            numbers = topics.checked_partitions(topic, self._options.assigned.get(topic, ()))
            for bound in () if self._is_begun else (self._options.starting, self._options.ending):
                topics.checked_partitions(topic, bound.partitions_of(topic))
                bound.check_complete(topic, numbers)
            for number in numbers:
                yield LogName(topic, topic_id_to_text(view.topic_id), number)

    def _offset(self, log: StoredLog, name: LogName, bound: Bound, default: int, latest: int | None = None) -> int:
        """Return the offset of a bound. `latest`: where the log ends for the reader, if not with what is stored."""
        if bound.timestamp_ms is not None:
            return log.offset_at(bound.timestamp_ms, is_start=bound is self._options.starting)
        begin, end = log.bounds()
        offset = bound.offset_of(name.topic, name.partition, default)
        return begin if offset == EARLIEST else offset if offset != LATEST else end if latest is None else latest

    def _splits(self, log: StoredLog, name: LogName, start: int, end: int) -> list[InputPartition]:
        """Cut a range into splits.

        With read_committed each is told of all that is behind it, for the markers there, so there are few. A
        transaction may be open if nobody found out: what may hold the first such one's records stays one split.
        """
        if start >= end:
            return []
        extents, lost = log.plan(start, end, fail_on_data_loss=self._fails)
        split_bytes, tail, behind = _SPLIT_BYTES, 0, RangePlan((), ())
        if self._options.is_committed:
            behind = log.plan(end, log.bounds()[1], fail_on_data_loss=False)
            split_bytes = max(split_bytes, sum(one.run.size_bytes for one in extents) // _COMMITTED_SPLITS)
            tail = 0 if self._is_end_stable else _young(extents)
        groups = list(_grouped(extents[: len(extents) - tail], split_bytes))
        groups += [extents[len(extents) - tail :]] if tail else []
        splits, done = [], 0
        for number, group in enumerate(groups):
            done += len(group)
            first = start if number == 0 else group[0].first_offset
            last = end if number == len(groups) - 1 else groups[number + 1][0].first_offset
            rest = RangePlan((), ())
            if self._options.is_committed:
                rest = RangePlan((*extents[done:], *behind.extents), (*lost, *behind.lost))
            within = RangePlan(group, lost)
            splits.append(InputPartition((name.topic, name.partition, first, last, name.topic_id, within, rest)))
        return splits


class _BatchReader(_Reader, DataSourceReader):
    __module__ = "remote_wal"

    @_in_one_sentence()
    def partitions(self) -> Sequence[InputPartition]:
        splits: list[InputPartition] = []
        with self._topics.opened() as topics:
            topics.check_complete(fail_on_data_loss=self._fails)
            for name in self._logs(topics):
                log = topics.log(name.topic, name.partition)
                start = self._offset(log, name, self._options.starting, EARLIEST)
                end = self._offset(log, name, self._options.ending, LATEST)
                log.check_range(start, end, fail_on_data_loss=self._fails)
                splits += self._splits(log, name, *self._narrowed(name.partition, start, end))
        return splits

    def _narrowed(self, _partition: int, start: int, end: int) -> tuple[int, int]:
        return start, end


class _FilteringReader(_BatchReader):
    """Reads less if filters are about partitions and offsets; needs PySpark 4.1, which applies them as well.

    It is a class of its own because that PySpark refuses readers with `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    __module__ = "remote_wal"
    _wanted: frozenset[int] | None = None
    _from_offset, _to_offset = 0, 2**63 - 1

    def pushFilters(self, filters: Iterable[object]) -> Iterator[object]:
        for one in filters:
            column, kind = getattr(one, "attribute", ()), type(one).__name__
            value = getattr(one, "value", None)
            if column == ("partition",) and kind in ("EqualTo", "In"):
                wanted = frozenset(value if isinstance(value, tuple | list) else (value,))
                self._wanted = wanted if self._wanted is None else self._wanted & wanted
            elif column == ("offset",) and isinstance(value, int):
                if kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
                    self._from_offset = max(self._from_offset, value + (kind == "GreaterThan"))
                if kind in ("EqualTo", "LessThan", "LessThanOrEqual"):
                    self._to_offset = min(self._to_offset, value + (kind != "LessThan"))
            yield one

    def _narrowed(self, partition: int, start: int, end: int) -> tuple[int, int]:
        if self._wanted is not None and partition not in self._wanted:
            return end, end
        return max(start, self._from_offset), min(end, self._to_offset)


class _StreamReader(_Reader, DataSourceStreamReader):
    """Says where a stream starts, and up to where it may read.

    Spark first asks for the end, writes it to the checkpoint as the first batch's, and only then asks for the start. So
    both come from one look. After a restart Spark tells the newest end of the checkpoint: `partitions(end, end)`. With
    the trigger `availableNow` it asks for a new end before that. Such an end may lie where the options let a first
    batch start, or before what was read. When Spark tells what was read, it has written the end to its checkpoint, so
    all that is left is to refuse the batch.

    Each look finds the topics anew: one that was made again, or has more partitions, is read from its beginning,
    whatever the options say: they are about the logs of the first batch. What a log does not have any more is reported
    before the batch is read.
    """

    __module__ = "remote_wal"
    _is_end_stable = True

    def __init__(self, options: ReaderOptions, schema: "StructType") -> None:
        super().__init__(options, schema)
        self._start: StreamOffsets = {}
        """Where the first look of a stream that is not begun says that it starts."""
        self._latest: StreamOffsets = {}
        """Ends that Spark was given, in this run or the one before."""
        self._resumed: StreamOffsets = {}
        """The newest end of the checkpoint, if Spark told it."""
        self._is_readable = True
        """Whether all that may hold records could be read in the last look."""
        self._open: tuple[ExitStack, OpenTopics] | None = None

    @_in_one_sentence()
    def initialOffset(self) -> Json:
        """Return where the stream starts, never behind the first batch's end, which may be of the run before."""
        if not self._is_begun:
            self._look()
        if not self._resumed:
            return to_json(self._start)
        return to_json({name: min(self._first_start(name, end), end) for name, end in self._resumed.items()})

    @_in_one_sentence()
    def latestOffset(self) -> Json:
        self._topics = StoredTopics.find(self._options.source, self._options.topics)
        self._opened().topics = self._topics
        self._opened().look()
        self._is_readable = self._opened().check_readable(fail_on_data_loss=self._fails)
        self._look()
        return to_json(self._latest)

    @_in_one_sentence()
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begun, ends = from_json(start), from_json(end)
        if start == end:
            self._resumed, self._is_begun = ends, True
            self._latest = self._latest or ends
            return []
        splits: list[InputPartition] = []
        for name, read_to in ends.items():
            log = self._log(name)
            splits += self._splits(log, name, self._first(log, name, begun, read_to), read_to.offset)
        return splits

    def commit(self, end: Json) -> None:
        """Do nothing: the checkpoint is Spark's."""

    def stop(self) -> None:
        if self._open is not None:
            self._open[0].close()

    def _first(self, log: StoredLog, name: LogName, begun: StreamOffsets, end: ReadTo) -> int:
        """Return where a batch begins that the stream has read up to `begun`. Raises DataLossError."""
        stored_end = log.bounds()[1]
        if (read_to := begun.get(name)) is None:
            first = log.bounds()[0]
            if end.leader_epoch == UNKNOWN_EPOCH and end.offset > stored_end:
                what = (
                    f"it ends at {stored_end}, and the batch at {end.offset}, where the options let a first batch start"
                )
                hint = "start the stream without availableNow, which asks for the end before it tells what was read"
                raise DataLossError("read", log.name, what, hint)
            before = {one.topic_id for one in begun if one.topic == name.topic} - {name.topic_id}
            if before:
                why = f"are of a topic that was made again: the stream has read the one with the id {min(before)}"
                report_loss(log.name, [(first, end.offset)], why, fail_on_data_loss=self._fails)
            elif first:
                report_loss(log.name, [(0, first)], fail_on_data_loss=self._fails)
            return first
        if (replaced := log.replaced_from(read_to)) is not None:
            why = "are others than those that the stream has read: an election replaced them"
            report_loss(log.name, [(replaced, read_to.offset)], why, fail_on_data_loss=self._fails)
            return replaced
        if read_to.offset > end.offset:
            why = "are not in the log any more, which is shorter than what the stream has read"
            if stored_end >= read_to.offset:
                why = "would be read twice: availableNow had the batch's end found before it told what was read"
            report_loss(log.name, [(end.offset, read_to.offset)], why, fail_on_data_loss=self._fails)
        return read_to.offset

    def _look(self) -> None:
        """Find up to where the stream may read, and where it starts if it is not begun."""
        settled_ms = wall_ms() - self._options.settled_ms
        found = dict.fromkeys(self._logs(self._opened()))
        ids = {(name.topic, name.topic_id) for name in found}
        ends: dict[LogName, ReadTo] = {}
        # A partition may be known only by its objects, and have none any more.
        for name in found | {one: None for one in self._latest if one[:2] in ids}:
            log = self._log(name, settled_ms)
            before = self._latest.get(name)
            end = log.read_to(self._end(log, name, before))
            ends[name] = before if before is not None and before.offset == end.offset else end
        if not self._is_begun:
            self._start = {name: self._first_start(name, end, settled_ms) for name, end in ends.items()}
            # An offset or a time may name a start that is not stored yet, or in an open transaction.
            ends = {name: max(end, self._start[name]) for name, end in ends.items()}
        self._latest, self._is_begun = ends, True

    def _first_start(self, name: LogName, latest: ReadTo, settled_ms: int | None = None) -> ReadTo:
        """Return where the options say that the stream starts in a log of its first batch."""
        log = self._log(name, settled_ms)
        return log.read_to(self._offset(log, name, self._options.starting, LATEST, latest.offset))

    def _end(self, log: StoredLog, name: LogName, before: ReadTo | None) -> int:
        """Return up to where the stream may read: less than before only if the log is known to be shorter."""
        begin, end = log.bounds()
        if before is not None and end < before.offset:
            if before.leader_epoch == UNKNOWN_EPOCH or not self._is_readable:
                return before.offset  # the options name a start that is not stored yet, or objects cannot be read now
            begin, stored_end = self._log(name).bounds()  # with what is not settled
            return min(stored_end, before.offset) if begin < stored_end else before.offset
        if self._options.is_committed:
            if before is not None:
                begin = before.offset
            elif not self._is_begun:
                begin = self._first_look(log, begin, end)
            return stable_end(log.pieces(begin, end, fail_on_data_loss=False), end)
        return end

    def _first_look(self, log: StoredLog, begin: int, end: int) -> int:
        """Return from where to look for open transactions, if it is not known up to where there are none."""
        extents = log.plan(begin, end, fail_on_data_loss=False).extents
        return extents[-young].first_offset if (young := _young(extents)) else end

    def _log(self, name: LogName, settled_ms: int | None = None) -> StoredLog:
        return self._opened().log(name.topic, name.partition, settled_ms, name.topic_id)

    def _opened(self) -> OpenTopics:
        if self._open is None:
            stack = ExitStack()
            self._open = stack, stack.enter_context(self._topics.opened())
        return self._open[1]


def _arrow_batches(
    batches: Iterable[StoredBatch], wanted: OffsetRange, topic: str, partition: int, schema: "StructType"
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted records, some megabytes at a time. Raises CorruptBatchError, MalformedMessageError."""
    waiting: list[DecompressedBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        waiting.append(DecompressedBatch(batch.header, decompressed(batch.header, batch.data)))
        rows += batch.header.record_count
        size_bytes += len(waiting[-1].body)
        if size_bytes >= _ARROW_BYTES or rows >= _ARROW_ROWS:
            yield from _arrow_batch(decode_columns(waiting, wanted), topic, partition, schema)
            waiting, rows, size_bytes = [], 0, 0
    yield from _arrow_batch(decode_columns(waiting, wanted), topic, partition, schema)


def _arrow_batch(records: RecordColumns, topic: str, partition: int, schema: "StructType") -> Iterator[pa.RecordBatch]:
    """Yield one, or none if there are no records."""
    if not (count := len(records.offsets)):
        return
    columns: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: records.keys,
        "value": lambda: records.values,
        "topic": lambda: pa.repeat(topic, count),
        "partition": lambda: pa.repeat(partition, count),
        "offset": lambda: records.offsets,
        "timestamp": lambda: records.timestamps_ms.cast(pa.timestamp("ms", "UTC")),
        "timestampType": lambda: records.timestamp_types,
        "headers": lambda: records.headers,
    }
    types = to_arrow_schema(schema)
    yield pa.RecordBatch.from_arrays([columns[one.name]().cast(one.type) for one in types], schema=types)


def _young(extents: Sequence[Extent]) -> int:
    """Return how many extents at the end may hold records of open transactions."""
    from_ms = max((one.run.stored_in.written_ms for one in extents), default=0) - _LONGEST_TRANSACTION_MS
    first = next((at for at, one in enumerate(extents) if one.run.stored_in.written_ms >= from_ms), len(extents))
    return len(extents) - first


def _grouped(extents: Iterable[Extent], split_bytes: int) -> Iterator[Sequence[Extent]]:
    """Group neighbours up to the size of a split."""
    group: list[Extent] = []
    size_bytes = 0
    for extent in extents:
        if group and size_bytes + extent.run.size_bytes > split_bytes:
            yield group
            group, size_bytes = [], 0
        group.append(extent)
        size_bytes += extent.run.size_bytes
    if group:
        yield group

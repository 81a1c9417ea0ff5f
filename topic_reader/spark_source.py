"""A data source of Spark: `spark.read.format("remote_wal")` and `readStream`, with the columns of its Kafka source.

The driver plans: which offsets, in which parts of which objects. Each task reads some of these by range, and yields
Arrow batches. A stream's checkpoint holds offsets, as with Kafka, and what is stored at an offset never changes once it
is replicated. So each record is read exactly once, if the stream takes only what is `settledMs` old: a replica that
lacks it by then is out of sync (`replica.lag.time.max.ms`).

The classes are pickled by the name `remote_wal`, which is installed where tasks run and brings the rooms along.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from metadata_topic.records.offset_ranges import OffsetRange
from plugin.wall_clock import wall_ms
from recovery.logs.log_plan import Extent
from topic_reader.columns import DecompressedBatch, RecordColumns, decode_columns
from topic_reader.decompression import decompressed
from topic_reader.isolation import stable_end
from topic_reader.read import visible_batches
from topic_reader.sources import OpenTopics, Source, StoredTopics
from topic_reader.stored_log import StoredBatch, StoredLog, report_loss

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "LONG",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
}
"""Spark's types of the Kafka source's columns."""
HEADERS: Final = "headers"
_HEADERS_TYPE: Final = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
EARLIEST, LATEST = -2, -1
"""Kafka's numbers for them in options."""

_SPLIT_BYTES = 64 * 1024 * 1024
_ARROW_BYTES = 4 * 1024 * 1024
_ARROW_ROWS = 16_384
_SETTLED_MS = "30000"
"""Kafka's default of `replica.lag.time.max.ms`."""
_LONGEST_TRANSACTION_MS = 900_000
"""Kafka's default of `transaction.max.timeout.ms`. A stream's first look goes back so far for open transactions."""

Offsets = dict[str, dict[str, int]]
"""By topic and partition, as in the Kafka source's options and checkpoints."""


class RemoteWalDataSource(DataSource):
    """Register it: `spark.dataSource.register(remote_wal.RemoteWalDataSource)`."""

    __module__ = "remote_wal"

    @classmethod
    def name(cls) -> str:
        return "remote_wal"

    def schema(self) -> str:
        known = {**COLUMNS, HEADERS: _HEADERS_TYPE}
        default = [*COLUMNS, HEADERS] if _is_true(self.options, "includeHeaders") else [*COLUMNS]
        names = _names(self.options.get("columns", "")) or default
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"columns: there is no {', '.join(unknown)}")
        return ", ".join(f"{name} {known[name]}" for name in names)

    def reader(self, schema: "StructType") -> DataSourceReader:
        kind = _FilteringReader if _is_true(self.options, "pushFilters") else _BatchReader
        return kind(self.options, schema)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        return _StreamReader(self.options, schema)


class _Reader:
    """What batch and stream share: made by the driver, and copied to the tasks."""

    _is_end_stable = False
    """Whether ranges to read with read_committed end where no transaction is open."""

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        """Raises ValueError for a wrong option, UnknownClusterError for an unknown topic."""
        self._schema = schema
        self._assigned: dict[str, list[int]] = json.loads(options.get("assign", "{}"))
        names = list(self._assigned) or _names(options.get("subscribe", ""))
        if not names or "brokerConfig" not in options:
            raise ValueError("the options brokerConfig, and subscribe or assign, are needed")
        source = Source(
            options["brokerConfig"],
            options.get("kafka.bootstrap.servers"),
            options.get("commandConfig"),
            options.get("clusterMetadata"),
            options.get("clusterId"),
            _is_true(options, "fromObjects"),
        )
        self._topics = StoredTopics.find(source, names)
        self._is_committed = options.get("kafka.isolation.level", "read_uncommitted") == "read_committed"
        self._fails = options.get("failOnDataLoss", "true").lower() == "true"
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one split, in a task."""
        topic, number, start, end, within, behind = partition.value
        with self._topics.opened() as topics:
            batches = visible_batches(
                topics.log(topic, number),
                start,
                end,
                (within, behind),
                is_committed=self._is_committed,
                fail_on_data_loss=self._fails,
                is_end_stable=self._is_end_stable,
            )
            yield from _arrow_batches(batches, (start, end), self._topics.topics[topic].name, number, self._schema)

    def _partitions(self, topics: OpenTopics) -> Iterator[tuple[str, int]]:
        for topic in self._topics.topics:
            for number in self._assigned.get(topic) or topics.partitions(topic):
                yield topic, number

    def _bound(
        self, log: StoredLog, topic: str, partition: int, prefix: str, default: int, latest: int | None = None
    ) -> int:
        """Return the offset that the options with this prefix, `starting` or `ending`, name.

        `latest`: where the log ends for the reader, if not where what is stored ends.
        """
        begin, end = log.bounds()
        end = end if latest is None else latest
        if time_ms := self._options.get(f"{prefix}Timestamp"):
            return log.offset_at(int(time_ms))
        text = self._options.get(f"{prefix}Offsets", "")
        words = {"": default, "earliest": EARLIEST, "latest": LATEST}
        offset = words[text] if text in words else json.loads(text).get(topic, {}).get(str(partition), default)
        return begin if offset == EARLIEST else end if offset == LATEST else int(offset)

    def _splits(self, log: StoredLog, topic: str, partition: int, start: int, end: int) -> list[InputPartition]:
        """Cut a range into splits; with read_committed it stays one, as a transaction may span all of it."""
        if start >= end:
            return []
        within = log.extents(start, end, fail_on_data_loss=self._fails)
        if self._is_committed:
            behind = log.extents(end, log.bounds()[1], fail_on_data_loss=False)
            return [InputPartition((topic, partition, start, end, within, behind))]
        splits = []
        for number, group in enumerate(groups := list(_grouped(within))):
            first = start if number == 0 else group[0].first_offset
            last = end if number == len(groups) - 1 else group[-1].last_offset + 1
            splits.append(InputPartition((topic, partition, first, last, group, ())))
        return splits


class _BatchReader(_Reader, DataSourceReader):
    __module__ = "remote_wal"

    def partitions(self) -> Sequence[InputPartition]:
        splits: list[InputPartition] = []
        with self._topics.opened() as topics:
            for topic, number in self._partitions(topics):
                log = topics.log(topic, number)
                start = self._bound(log, topic, number, "starting", EARLIEST)
                end = self._bound(log, topic, number, "ending", LATEST)
                splits += self._splits(log, topic, number, *self._narrowed(number, start, end))
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
    the trigger `availableNow` it asks for a new end before that.
    """

    __module__ = "remote_wal"
    _is_end_stable = True

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        super().__init__(options, schema)
        self._settled_ms = int(options.get("settledMs", _SETTLED_MS))
        self._start: Offsets | None = None
        self._latest: Offsets = {}
        """Ends that Spark was given, in this run or the one before."""
        self._resumed: Offsets = {}
        """The newest end of the checkpoint, if Spark told it."""
        self._open: tuple[ExitStack, OpenTopics] | None = None

    def initialOffset(self) -> Offsets:
        """Return where the stream starts, never behind the first batch's end, which may be of the run before."""
        start = self._look() if self._start is None else self._start
        return {
            topic: {
                number: min(offset, self._resumed.get(topic, {}).get(number, offset))
                for number, offset in offsets.items()
            }
            for topic, offsets in start.items()
        }

    def latestOffset(self) -> Offsets:
        self._opened().look()
        self._look()
        return self._latest

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        if start == end:
            self._resumed = end
            self._latest = self._latest or end
        splits: list[InputPartition] = []
        for topic, ends in end.items():
            for number, last in ends.items():
                log = self._opened().log(topic, int(number))
                first = start.get(topic, {}).get(number)
                first = log.bounds()[0] if first is None else first
                if first > last:
                    report_loss(log.name, [(last, first)], fail_on_data_loss=self._fails)
                splits += self._splits(log, topic, int(number), first, last)
        return splits

    def commit(self, end: Offsets) -> None:
        """Do nothing: the checkpoint is Spark's."""

    def stop(self) -> None:
        if self._open is not None:
            self._open[0].close()

    def _look(self) -> Offsets:
        """Find up to where the stream may read, and the first time where it starts, which is returned."""
        settled_ms = wall_ms() - self._settled_ms
        start: Offsets = {}
        ends: Offsets = {}
        for topic, number in self._partitions(self._opened()):
            log = self._opened().log(topic, number, settled_ms)
            before = self._latest.get(topic, {}).get(str(number))
            end = self._end(log, before)
            if self._start is None:
                first = self._bound(log, topic, number, "starting", LATEST, end)
                start.setdefault(topic, {})[str(number)] = first
                # An offset or a time may name a start that is not stored yet, or in an open transaction.
                end = max(end, first) if before is None else end
            ends.setdefault(topic, {})[str(number)] = end
        self._latest = ends
        self._start = start if self._start is None else self._start
        return self._start

    def _end(self, log: StoredLog, before: int | None) -> int:
        """Return up to where the stream may read, never less than before."""
        begin, end = log.bounds()
        if self._is_committed:
            first = self._first_look(log, begin, end) if before is None else before
            end = stable_end(log.batches(first, end, fail_on_data_loss=False), end)
        return end if before is None else max(end, before)

    def _first_look(self, log: StoredLog, begin: int, end: int) -> int:
        """Return from where to look for open transactions, if it is not known up to where there are none."""
        extents = log.extents(begin, end, fail_on_data_loss=False)
        newest_ms = max((one.run.stored_in.written_ms for one in extents), default=0)
        young = (one for one in extents if one.run.stored_in.written_ms >= newest_ms - _LONGEST_TRANSACTION_MS)
        return next((one.first_offset for one in young), end)

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
        HEADERS: lambda: records.headers,
    }
    types = to_arrow_schema(schema)
    yield pa.RecordBatch.from_arrays([columns[one.name]().cast(one.type) for one in types], schema=types)


def _grouped(extents: Iterable[Extent]) -> Iterator[list[Extent]]:
    """Group neighbours up to the size of a split."""
    group: list[Extent] = []
    size_bytes = 0
    for extent in extents:
        if group and size_bytes + extent.run.size_bytes > _SPLIT_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(extent)
        size_bytes += extent.run.size_bytes
    if group:
        yield group


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"

"""What Spark is told of stored topics, without a session."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from kafka_log.topic_partition import TopicIdPartition
from tests.kafka_log.batches import batch
from tests.recovery.ruins import ORDERS, Ruins
from tests.topic_reader.test_read import COMMITTED, transactions
from tests.topic_reader.written import BASE_MS, TRANSACTIONAL, Written, marker, written_batch
from topic_reader import spark_source
from topic_reader.isolation import UndecidedTransactionError


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(ORDERS.topic_id, number)


def options(ruins: Ruins) -> dict[str, str]:
    return {
        "brokerConfig": str(ruins.directory / "server.properties"),
        "clusterMetadata": str(ruins.directory / "controller"),
        "subscribe": "orders",
    }


@pytest.fixture
def ruins(tmp_path: Path) -> Ruins:
    ruins = Ruins(tmp_path)
    ruins.write()
    return ruins


def planned(ruins: Ruins, **more: str) -> list[tuple[int, int, int]]:
    """Partition, start and end of each split."""
    reader = made(ruins, **more).reader(StructType())
    return [split.value[1:4] for split in reader.partitions()]


def made(ruins: Ruins, **more: str) -> spark_source.RemoteWalDataSource:
    given = CaseInsensitiveDict()
    given.update({**options(ruins), **more})
    return spark_source.RemoteWalDataSource(given)


def test_a_log_is_split_at_objects_and_a_transactional_one_is_not(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_source, "_SPLIT_BYTES", 1)
    for number in range(3):
        ruins.upload(number, *((partition(each), 0, 5 * number, batch(5 * number, 5)) for each in (0, 1)))
    assert planned(ruins) == [(0, 0, 5), (0, 5, 10), (0, 10, 15)], "the cluster has one partition"
    assert planned(ruins, assign='{"orders": [1]}') == [(1, 0, 5), (1, 5, 10), (1, 10, 15)]
    assert planned(ruins, startingOffsets='{"orders": {"0": 7}}') == [(0, 7, 10), (0, 10, 15)]
    assert planned(ruins, startingOffsets="latest") == []
    assert planned(ruins, **{"kafka.isolation.level": "read_committed"}) == [(0, 0, 15)]


@dataclass(frozen=True)
class GreaterThan:
    """As PySpark 4.1's own."""

    attribute: tuple[str, ...]
    value: object


class LessThanOrEqual(GreaterThan): ...


class In(GreaterThan): ...


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([GreaterThan(("offset",), 6), LessThanOrEqual(("offset",), 8)], [(0, 7, 9)]),
        ([In(("partition",), (1, 2))], []),
        ([In(("partition",), (0,)), GreaterThan(("key",), 6)], [(0, 0, 10)]),
    ],
)
def test_filters_of_sparks_narrow_what_is_read_and_stay_sparks(
    ruins: Ruins, filters: Iterable[GreaterThan], left: list[tuple[int, int, int]]
) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 10)))
    reader = made(ruins, pushFilters="true").reader(StructType())
    assert list(reader.pushFilters(filters)) == filters
    assert [split.value[1:4] for split in reader.partitions()] == left


def test_a_stream_with_read_committed_ends_at_the_last_stable_offset(ruins: Ruins) -> None:
    for number, raw in enumerate(transactions()):
        ruins.upload(number, (ORDERS, 0, int.from_bytes(raw[:8], "big"), raw))
    source = made(ruins, **{"kafka.isolation.level": "read_committed"})
    reader = source.streamReader(StructType())
    assert reader.latestOffset() == {"orders": {"0": 13}}
    schema = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
    reader = made(ruins, **{"kafka.isolation.level": "read_committed"}).streamReader(schema)
    splits = reader.partitions({"orders": {"0": 0}}, {"orders": {"0": 13}})
    assert [number for split in splits for rows in reader.read(split) for number in rows["offset"].to_pylist()] == (
        COMMITTED
    )
    reader.stop()


READ_COMMITTED = {"kafka.isolation.level": "read_committed"}
OFFSET = StructType([StructField("offset", LongType())])


def stream(ruins: Ruins, **more: str) -> DataSourceStreamReader:
    return made(ruins, **more).streamReader(OFFSET)


def streamed(reader: DataSourceStreamReader, start: spark_source.Offsets, end: spark_source.Offsets) -> list[int]:
    """The offsets that tasks read."""
    splits = reader.partitions(start, end)
    return [number for split in splits for rows in reader.read(split) for number in rows["offset"].to_pylist()]


def begin_transaction(ruins: Ruins) -> None:
    """Producer 7 begins at 0, and others write."""
    raw = written_batch(0, [Written()] * 5, attributes=TRANSACTIONAL, producer_id=7)
    ruins.upload(0, (ORDERS, 0, 0, raw))
    ruins.upload(1000, (ORDERS, 0, 5, batch(5, 5)))


def write_after_the_longest_transaction(ruins: Ruins) -> None:
    ruins.upload(1_000_000, (ORDERS, 0, 10, batch(10, 5)))


def commit_transaction(ruins: Ruins) -> None:
    ruins.upload(1_100_000, (ORDERS, 0, 15, marker(15, 7, commits=True)))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_waits_for_an_open_transaction_however_long_it_lasts(ruins: Ruins, restarts: bool) -> None:
    begin_transaction(ruins)
    reader = stream(ruins, **READ_COMMITTED)
    first = reader.latestOffset()
    write_after_the_longest_transaction(ruins)
    if restarts:
        reader.stop()
        reader = stream(ruins, **READ_COMMITTED)
        assert reader.partitions(first, first) == [], "so Spark tells where the last batch ended"
    second = reader.latestOffset()
    assert (first, second) == ({"orders": {"0": 0}}, {"orders": {"0": 0}})
    commit_transaction(ruins)
    assert streamed(reader, second, reader.latestOffset()) == list(range(15))
    reader.stop()


def test_a_stream_fails_at_a_transaction_without_a_marker_and_continues_when_it_has_one(ruins: Ruins) -> None:
    begin_transaction(ruins)
    write_after_the_longest_transaction(ruins)
    start = {"orders": {"0": 0}}
    reader = stream(ruins, **READ_COMMITTED)
    end = reader.latestOffset()
    assert end == {"orders": {"0": 15}}, "the first look does not go back to where the transaction began"
    with pytest.raises(UndecidedTransactionError, match="orders-0: the transaction at offset 0"):
        streamed(reader, start, end)
    reader.stop()
    commit_transaction(ruins)
    reader = stream(ruins, **READ_COMMITTED)
    assert reader.partitions(end, end) == []
    assert streamed(reader, start, end) == list(range(15))
    reader.stop()


@pytest.mark.parametrize("isolation", [{}, READ_COMMITTED])
@pytest.mark.parametrize("starting", [{}, {"startingTimestamp": str(BASE_MS + 10**9)}])
def test_a_stream_that_starts_at_the_end_starts_at_its_first_batchs_end(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch, isolation: dict[str, str], starting: dict[str, str]
) -> None:
    for number in range(60):
        ruins.upload(1000 * number, (ORDERS, 0, 5 * number, batch(5 * number, 5)))
    reader = stream(ruins, **isolation, **starting)
    # Spark asks for the end, writes it to its checkpoint, and asks for the start after that.
    monkeypatch.setattr(spark_source, "wall_ms", lambda: BASE_MS + 59_900)
    end = reader.latestOffset()
    monkeypatch.setattr(spark_source, "wall_ms", lambda: BASE_MS + 60_100)
    start = reader.initialOffset()
    assert start == end == {"orders": {"0": 150}}
    assert streamed(reader, start, end) == []
    assert streamed(reader, end, reader.latestOffset()) == [150, 151, 152, 153, 154]
    reader.stop()


def test_a_stream_that_starts_at_the_end_starts_before_an_open_transaction(ruins: Ruins) -> None:
    begin_transaction(ruins)
    reader = stream(ruins, **READ_COMMITTED)
    end = reader.latestOffset()
    assert (reader.initialOffset(), end) == ({"orders": {"0": 0}}, {"orders": {"0": 0}})
    commit_transaction(ruins)
    ruins.upload(1_000_000, (ORDERS, 0, 10, batch(10, 5)))
    assert streamed(reader, end, reader.latestOffset()) == list(range(15))
    reader.stop()


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_stream_that_restarts_in_its_first_batch_starts_no_later_than_that_ends(
    ruins: Ruins, is_available_now: bool
) -> None:
    ruins.upload(0, (ORDERS, 0, 0, batch(0, 5)))
    reader = stream(ruins)
    end = reader.latestOffset()
    reader.stop()
    ruins.upload(1000, (ORDERS, 0, 5, batch(5, 5)))
    reader = stream(ruins)
    if is_available_now:  # then Spark asks for the end before it tells where the first batch ended
        assert reader.latestOffset() == {"orders": {"0": 10}}
    assert reader.partitions(end, end) == []
    start = reader.initialOffset()
    assert start == end == {"orders": {"0": 5}}
    assert streamed(reader, start, end) == []
    assert streamed(reader, end, reader.latestOffset()) == [5, 6, 7, 8, 9]
    reader.stop()


def test_a_stream_waits_for_an_offset_that_is_not_stored_yet(ruins: Ruins) -> None:
    ruins.upload(0, (ORDERS, 0, 0, batch(0, 5)))
    for isolation in ({}, READ_COMMITTED):
        reader = stream(ruins, startingOffsets='{"orders": {"0": 8}}', **isolation)
        end = reader.latestOffset()
        assert reader.initialOffset() == end == reader.latestOffset() == {"orders": {"0": 8}}
        reader.stop()
    ruins.upload(1000, (ORDERS, 0, 5, batch(5, 5)))
    reader = stream(ruins, startingOffsets='{"orders": {"0": 8}}')
    end = reader.latestOffset()
    assert streamed(reader, reader.initialOffset(), end) == [8, 9]
    reader.stop()


def test_a_stream_takes_only_what_is_settled(ruins: Ruins, monkeypatch: pytest.MonkeyPatch) -> None:
    ruins.upload(1000, (ORDERS, 0, 0, batch(0, 5)))
    ruins.upload(9000, (ORDERS, 0, 5, batch(5, 5)))
    monkeypatch.setattr(spark_source, "wall_ms", lambda: BASE_MS + 10_000)
    ends = [made(ruins, settledMs=text).streamReader(StructType()).latestOffset() for text in ("5000", "500")]
    assert ends == [{"orders": {"0": 5}}, {"orders": {"0": 10}}]


def test_wrong_options_are_refused(ruins: Ruins) -> None:
    with pytest.raises(ValueError, match="columns: there is no values"):
        made(ruins, columns="key,values").schema()
    with pytest.raises(ValueError, match="brokerConfig"):
        spark_source.RemoteWalDataSource({"subscribe": "orders"}).reader(StructType())

"""What Spark is told of stored topics, without a session."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from kafka_log.topic_partition import TopicIdPartition
from tests.kafka_log.batches import batch
from tests.recovery.ruins import ORDERS, Ruins
from tests.topic_reader.test_read import COMMITTED, transactions
from tests.topic_reader.written import BASE_MS
from topic_reader import spark_source


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

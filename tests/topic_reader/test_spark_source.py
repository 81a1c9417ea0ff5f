"""What Spark is told of stored topics, without a session."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_to_text
from metadata_topic.records.states import FINISHED
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from plugin.remote_wal_storage_manager import blobs_of
from plugin.store_loop import ask, ask_each
from recovery.errors import RecoveryError, UnknownClusterError
from tests.kafka_log.batches import batch
from tests.kafka_log.kraft_records import DIRECTORY, metadata_batch, partition_record, topic_record
from tests.recovery.ruins import CLUSTER, ORDERS, PAYMENTS, Ruins
from tests.recovery.test_topic_rebuild import TopicInMemory
from tests.topic_reader.test_read import COMMITTED, transactions
from tests.topic_reader.written import BASE_MS, TRANSACTIONAL, Written, marker, written_batch
from topic_reader import spark_source
from topic_reader.options import _PARSERS
from topic_reader.read import UndecidedTransactionError, read
from topic_reader.sources import Source, StoredTopics
from topic_reader.stored_log import DataLossError
from topic_reader.stream_offsets import Json, LogName, ReadTo, to_json

READ_COMMITTED = {"kafka.isolation.level": "read_committed"}
ORDERS_ID = topic_id_to_text(ORDERS.topic_id)
AGAIN = TopicIdPartition(TopicId(b"orders-again".ljust(16)), 0)


def at(offset: int, epoch: int | None = None, of: TopicIdPartition = ORDERS) -> Json:
    """A checkpoint; records up to it are of leader epoch 0."""
    read_to = ReadTo(offset, epoch if epoch is not None else 0 if offset else -1)
    return to_json({LogName("orders", topic_id_to_text(of.topic_id), of.partition): read_to})


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
    if "assign" in more:
        del given["subscribe"]
    return spark_source.RemoteWalDataSource(given)


def test_a_log_is_split_at_objects_but_not_where_transactions_may_be_open(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_source, "_SPLIT_BYTES", 1)
    for number in range(3):
        ruins.upload(number, *((partition(each), 0, 5 * number, batch(5 * number, 5)) for each in (0, 1)))
    both = [(each, first, first + 5) for each in (0, 1) for first in (0, 5, 10)]
    assert planned(ruins) == both, "what is stored is read, even if a copy of the cluster's metadata is older"
    assert planned(ruins, assign='{"orders": [1]}') == both[3:]
    zero = {"assign": '{"orders": [0]}'}
    assert planned(ruins, **zero, startingOffsets='{"orders": {"0": 7}}') == [(0, 7, 10), (0, 10, 15)]
    assert planned(ruins, **zero, **READ_COMMITTED) == [(0, 0, 15)]
    monkeypatch.setattr(spark_source, "_LONGEST_TRANSACTION_MS", -1)
    assert planned(ruins, **zero, **READ_COMMITTED) == both[:3]


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


def test_a_stream_with_read_committed_ends_at_the_last_stable_offset_and_splits_what_is_below(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_source, "_SPLIT_BYTES", 1)
    for number, raw in enumerate(transactions()):
        ruins.upload(number, (ORDERS, 0, int.from_bytes(raw[:8], "big"), raw))
    source = made(ruins, **{"kafka.isolation.level": "read_committed"})
    reader = source.streamReader(StructType())
    assert reader.latestOffset() == at(13)
    schema = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
    reader = made(ruins, **{"kafka.isolation.level": "read_committed"}).streamReader(schema)
    splits = reader.partitions(at(0), at(13))
    assert len(splits) == 8, "one for each object would be more"
    assert [number for split in splits for rows in reader.read(split) for number in rows["offset"].to_pylist()] == (
        COMMITTED
    )
    reader.stop()


OFFSET = StructType([StructField("offset", LongType())])


def stream(ruins: Ruins, **more: str) -> DataSourceStreamReader:
    return made(ruins, **more).streamReader(OFFSET)


def streamed(reader: DataSourceStreamReader, start: Json, end: Json) -> list[int]:
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
    assert (first, second) == (at(0), at(0))
    commit_transaction(ruins)
    assert streamed(reader, second, reader.latestOffset()) == list(range(15))
    reader.stop()


def test_a_stream_fails_at_a_transaction_without_a_marker_and_continues_when_it_has_one(ruins: Ruins) -> None:
    begin_transaction(ruins)
    write_after_the_longest_transaction(ruins)
    start = at(0)
    reader = stream(ruins, **READ_COMMITTED)
    end = reader.latestOffset()
    assert end == at(15), "the first look does not go back to where the transaction began"
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
    assert start == end == at(150)
    assert streamed(reader, start, end) == []
    assert streamed(reader, end, reader.latestOffset()) == [150, 151, 152, 153, 154]
    reader.stop()


def test_a_stream_that_starts_at_the_end_starts_before_an_open_transaction(ruins: Ruins) -> None:
    begin_transaction(ruins)
    reader = stream(ruins, **READ_COMMITTED)
    end = reader.latestOffset()
    assert (reader.initialOffset(), end) == (at(0), at(0))
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
        assert reader.latestOffset() == at(10)
    assert reader.partitions(end, end) == []
    start = reader.initialOffset()
    assert start == end == at(5)
    assert streamed(reader, start, end) == []
    assert streamed(reader, end, reader.latestOffset()) == [5, 6, 7, 8, 9]
    reader.stop()


def test_a_stream_waits_for_an_offset_that_is_not_stored_yet(ruins: Ruins) -> None:
    ruins.upload(0, (ORDERS, 0, 0, batch(0, 5)))
    for isolation in ({}, READ_COMMITTED):
        reader = stream(ruins, startingOffsets='{"orders": {"0": 8}}', **isolation)
        end = reader.latestOffset()
        assert reader.initialOffset() == end == reader.latestOffset() == at(8, -1)
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
    assert ends == [at(5), at(10)]


def write_cluster_metadata(ruins: Ruins, *partitions: TopicIdPartition) -> None:
    """A newer copy of the controllers' log, in which these are the topic's."""
    log = ruins.directory / "controller" / "__cluster_metadata-0" / f"{0:020}.log"
    records = [partition_record(each.topic_id, each.partition, (1,), (DIRECTORY,)) for each in partitions]
    log.write_bytes(metadata_batch(0, topic_record("orders", partitions[0].topic_id), *records))


def resumed(ruins: Ruins, checkpoint: Json, **more: str) -> tuple[DataSourceStreamReader, Json]:
    """A stream that starts anew, and its next end."""
    reader = stream(ruins, **more)
    assert reader.partitions(checkpoint, checkpoint) == []
    return reader, reader.latestOffset()


@pytest.mark.parametrize("count", [30, 130])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_that_was_made_again_is_a_loss_and_then_read_from_its_beginning(
    ruins: Ruins, count: int, restarts: bool
) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 100)))
    reader = stream(ruins)
    before = reader.latestOffset()
    write_cluster_metadata(ruins, AGAIN)
    ruins.upload(2, (AGAIN, 0, 0, batch(0, count)))
    reader, now = resumed(ruins, before) if restarts else (reader, reader.latestOffset())
    with pytest.raises(DataLossError, match=f"the stream has read the one with the id {ORDERS_ID}"):
        reader.partitions(before, now)
    reader, now = resumed(ruins, before, failOnDataLoss="false")
    assert streamed(reader, before, now) == list(range(count))
    assert resumed(ruins, now)[1] == now
    # A batch that the first topic had is what it was.
    assert streamed(reader, at(90), before) == list(range(90, 100))


@pytest.mark.parametrize(
    "starting",
    [
        {},
        {"startingOffsets": "earliest"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": {"0": 100}}'},
        {"startingTimestamp": str(BASE_MS + 10**9)},
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_where_a_stream_started_says_nothing_of_a_log_that_it_finds_later(
    ruins: Ruins, starting: dict[str, str], restarts: bool
) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 150)))
    more = {"failOnDataLoss": "false", **starting}
    reader = stream(ruins, **more)
    before = reader.latestOffset()
    write_cluster_metadata(ruins, AGAIN)
    read = []
    for number in range(2):
        ruins.upload(2 + number, (AGAIN, 0, 60 * number, batch(60 * number, 60)))
        reader, now = resumed(ruins, before, **more) if restarts else (reader, reader.latestOffset())
        read += streamed(reader, before, now)
        before = now
    assert read == list(range(120))


@pytest.mark.parametrize("starting", ['{"orders": {"0": 100}}', "latest", "earliest"])
def test_no_record_of_a_topic_that_was_made_again_is_skipped_where_spark_asks_for_the_end_first(
    ruins: Ruins, starting: str
) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 150)))
    more = {"failOnDataLoss": "false", "startingOffsets": starting}
    before = stream(ruins, **more).latestOffset()
    write_cluster_metadata(ruins, AGAIN)
    ruins.upload(2, (AGAIN, 0, 0, batch(0, 60)))
    reader = stream(ruins, **more)
    now = reader.latestOffset()
    if starting.startswith("{"):
        with pytest.raises(DataLossError, match="it ends at 60, and the batch at 100"):
            resumed(ruins, before, **more)[0].partitions(before, now)
        ruins.upload(3, (AGAIN, 0, 60, batch(60, 60)))
    assert streamed(resumed(ruins, before, **more)[0], before, now) == list(range(100 if starting[0] == "{" else 60))


def test_a_batch_that_ends_before_what_was_read_is_refused_as_what_it_is(ruins: Ruins) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 50)))
    reader, _ = resumed(ruins, at(50))
    with pytest.raises(DataLossError, match="offsets 30 to 49 would be read twice"):
        reader.partitions(at(50), at(30))
    reader, _ = resumed(ruins, at(50), failOnDataLoss="false")
    assert streamed(reader, at(50), at(30)) == []


@pytest.mark.parametrize(("starting", "first"), [("latest", 150), ('{"orders": {"0": 100}}', 100), ("earliest", 0)])
def test_the_first_batch_of_a_topic_that_was_made_again_is_what_it_was(ruins: Ruins, starting: str, first: int) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 150)))
    end = stream(ruins, startingOffsets=starting).latestOffset()
    write_cluster_metadata(ruins, AGAIN)
    reader = stream(ruins, startingOffsets=starting)
    assert reader.partitions(end, end) == []
    assert streamed(reader, reader.initialOffset(), end) == list(range(first, 150))


def test_a_log_that_is_shorter_or_was_replaced_is_a_loss(ruins: Ruins) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 50)))
    for checkpoint, epoch, first in ((at(100), 0, None), (at(50), 1, 30)):
        if first is not None:
            ruins.upload(2, (ORDERS, epoch, first, batch(first, 40, leader_epoch=epoch)))
        reader, now = resumed(ruins, checkpoint)
        with pytest.raises(DataLossError, match=r"offsets 50 to 99 are not|offsets 30 to 49 are others"):
            reader.partitions(checkpoint, now)
        reader, now = resumed(ruins, checkpoint, failOnDataLoss="false")
        assert streamed(reader, checkpoint, now) == ([] if first is None else list(range(first, 70)))
    # What is only not settled any more, or was deleted since, is none.
    for more in ({"settledMs": str(10**15)}, {}):
        checkpoint = at(70, 1)
        assert resumed(ruins, checkpoint, **more)[1] == checkpoint
        for path in ruins.store.rglob("*.rwal"):
            path.unlink()


def test_what_cannot_be_read_now_is_a_loss_and_moves_no_end_back(ruins: Ruins) -> None:
    first = ruins.upload(0, (ORDERS, 0, 0, batch(0, 10)))
    last = ruins.upload(1, (ORDERS, 0, 10, batch(10, 10)))
    whole = {file: file.read_bytes() for file in (first, last)}
    for file, content in whole.items():
        file.write_bytes(b"x" * len(content))
        with pytest.raises(DataLossError, match="1 buckets or objects cannot be read"):
            stream(ruins, startingOffsets="earliest").latestOffset()
        reader, now = resumed(ruins, at(20), failOnDataLoss="false")
        assert now == at(20)
        reader.stop()
        file.write_bytes(content)
    assert resumed(ruins, at(20))[1] == at(20)


def test_new_partitions_are_read_with_the_next_trigger(ruins: Ruins) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 50)))
    reader = stream(ruins)
    before = reader.latestOffset()
    write_cluster_metadata(ruins, ORDERS, partition(1))
    ruins.upload(2, (ORDERS, 0, 50, batch(50, 10)), (partition(1), 0, 0, batch(0, 40)), (partition(2), 0, 7, batch(7)))
    now = reader.latestOffset()
    with pytest.raises(DataLossError, match="orders-2: offsets 0 to 6"):
        reader.partitions(before, now)
    reader, _ = resumed(ruins, before, failOnDataLoss="false")
    assert [each.value[1:4] for each in reader.partitions(before, now)] == [(0, 50, 60), (1, 0, 40), (2, 7, 8)]
    reader.stop()


def test_a_checkpoint_of_another_format_is_refused(ruins: Ruins) -> None:
    for checkpoint in ({"orders": {"0": 100}}, {**at(100), "format": 2}):
        with pytest.raises(ValueError, match=r"checkpoint is of another format.*new checkpointLocation"):
            stream(ruins).partitions(checkpoint, checkpoint)


@pytest.mark.parametrize("gone", range(len(transactions())))
@pytest.mark.parametrize("fails", [True, False])
def test_whichever_object_is_lost_a_batch_reads_what_the_reader_without_spark_reads(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch, gone: int, fails: bool
) -> None:
    monkeypatch.setattr(spark_source, "_SPLIT_BYTES", 1)
    raws = transactions()
    starts = [int.from_bytes(raw[:8], "big") for raw in raws]
    files = [
        ruins.upload(at, (ORDERS, 0, start, raw)) for at, (start, raw) in enumerate(zip(starts, raws, strict=True))
    ]
    save_snapshot(ruins)
    files[gone].unlink()

    def outcome(reading: Callable[..., list[int]], end: int) -> list[int] | None:
        try:
            return reading(ruins, end, fails=fails)
        except DataLossError:
            return None

    for end in (4, 12, 15, 16):
        assert outcome(read_by_spark, end) == outcome(read_without_spark, end), end


def save_snapshot(ruins: Ruins) -> None:
    """A snapshot that knows all objects."""
    leader = TopicInMemory()
    with StoredTopics.find(without_brokers(ruins), ["orders"]).stores.opened() as (storage, _):
        for stored in ask_each(storage.list_log_segments()):
            leader.publish(replace(ask(storage.fetch_segment_metadata(stored)), state=FINISHED))
        SnapshotKeeper(blobs_of(storage, "put", "-"), CLUSTER, 1, 5).save(leader.store.image(), BASE_MS)


def without_brokers(ruins: Ruins) -> Source:
    return Source(ruins.directory / "server.properties", cluster_metadata=ruins.directory / "controller")


def read_by_spark(ruins: Ruins, end: int, *, fails: bool) -> list[int]:
    more = {"assign": '{"orders": [0]}', "endingOffsets": f'{{"orders": {{"0": {end}}}}}', **READ_COMMITTED}
    source = made(ruins, **more, failOnDataLoss=str(fails).lower())
    reader = source.reader(OFFSET)
    return [at for split in reader.partitions() for rows in reader.read(split) for at in rows["offset"].to_pylist()]


def read_without_spark(ruins: Ruins, end: int, *, fails: bool) -> list[int]:
    where = without_brokers(ruins)
    found = read("orders", 0, where, end=end, isolation_level="read_committed", fail_on_data_loss=fails)
    return [record.offset for record in found]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_transaction_whose_marker_may_be_lost_does_not_hold_a_stream_up(ruins: Ruins, fails: str) -> None:
    raw = written_batch(0, [Written()] * 2, attributes=TRANSACTIONAL, producer_id=7)
    ruins.upload(1, (ORDERS, 0, 0, raw))
    ruins.upload(2, (ORDERS, 0, 5, batch(5, 1)))
    reader = stream(ruins, **READ_COMMITTED, failOnDataLoss=fails)
    end = reader.latestOffset()
    assert end == at(6)
    if fails == "true":
        with pytest.raises(DataLossError, match="offsets 2 to 4"):
            reader.partitions(at(0), end)
    else:
        assert streamed(reader, at(0), end) == [5]
    reader.stop()


VALUES = {
    "assign": '{"orders": [0]}', "columns": "key", "endingOffsets": "latest", "startingOffsets": "earliest",
    "kafka.isolation.level": "read_committed", "subscribe": "orders", "kafka.bootstrap.servers": "b:9092",
}  # fmt: skip
FREE_TEXT = {"brokerConfig", "clusterMetadata", "commandConfig", "clusterId", "kafka.bootstrap.servers", "subscribe"}
"""Whether these exist is known only where they are read."""


@pytest.mark.parametrize("name", _PARSERS)
def test_an_option_with_a_misspelt_name_or_value_is_refused_and_says_what_is_meant(ruins: Ruins, name: str) -> None:
    value = VALUES.get(name, "true")
    for misspelt in (name[:-1], name[0] + name[2:], f"{name}s", name.removeprefix("kafka.")[:-1]):
        with pytest.raises(ValueError, match=f"(?i)there is no option {misspelt} .is {name} meant"):
            made(ruins, **{misspelt: value}).schema()
    for wrong in () if name in FREE_TEXT else ("", f"{value}s", value.upper()[:-1], "[", '{"orders": 0}'):
        with pytest.raises(ValueError, match=f"{name}: "):
            made(ruins, **{name: wrong}).reader(StructType())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"isolation.level": "read_committed"}, "is kafka.isolation.level meant"),
        ({"columns": "key,values"}, "there is no values .is value meant"),
        ({"startingOffsets": '{"order": {"0": 3}}'}, "order is not read .is orders meant"),
        ({"startingOffsets": '{"orders": {"7": 3}}'}, "no partition 7"),
        ({"startingOffsets": "latest"}, "startingOffsets: .*is endingOffsets meant"),
        ({"startingOffsets": '{"orders": {"0": -1, "1": 0}}'}, "startingOffsets: .*is endingOffsets meant"),
        ({"endingOffsets": "earliest"}, "endingOffsets: .*is startingOffsets meant"),
        ({"endingOffsets": '{"orders": {"0": -2, "1": 5}}'}, "endingOffsets: .*is startingOffsets meant"),
        ({"startingOffsets": '{"orders": {"0": 3}}'}, "startingOffsets: partition 1 of orders is missing"),
        ({"endingOffsets": '{"orders": {"1": 3}}'}, "endingOffsets: partition 0 of orders is missing"),
        ({"startingOffsets": '{"orders": {"0": 0, "1_0": 3}}'}, "'1_0' is no partition"),
        (
            {"startingOffsets": '{"orders": {"0": 7, "1": 0}}', "endingOffsets": '{"orders": {"0": 5, "1": 0}}'},
            "ends before",
        ),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "endingTimestamp is before startingTimestamp"),
        ({"startingOffsets": '{"orders": {"0": 1000, "1": 0}}'}, "offsets 10 to 999 are in no readable object"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "give one of"),
        ({"assign": '{"orders": [3]}'}, "no partition 3"),
        ({"subscribe": "order"}, "no topic of this name is known .is orders meant"),
        ({"commandConfig": "client.properties"}, "bootstrap servers"),
        ({"kafka.bootstrap.servers": "b:9092"}, "either a living cluster is asked, or a copy of the controllers' log"),
        ({"clusterId": "another"}, f"is of cluster {CLUSTER}, not another"),
        ({"columns": "key", "includeHeaders": "true"}, "includeHeaders has no effect"),
        ({"settledMs": "1"}, "no effect"),
        ({"assign": '{"orders": [0, 0]}'}, "has a partition twice"),
        ({"assign": '{"orders": [0], "orders": [1]}'}, "orders stands twice"),
        ({"startingOffsets": '{"orders": {"0": 1, "0": 2}}'}, "0 stands twice"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(ruins: Ruins, more: dict[str, str], said: str) -> None:
    ruins.upload(1, *((partition(each), 0, 0, batch(0, 10)) for each in (0, 1)))
    with pytest.raises((ValueError, RecoveryError), match=said):
        planned(ruins, **more)


def test_a_store_without_anything_of_the_cluster_is_not_taken_for_an_empty_topic(ruins: Ruins) -> None:
    with pytest.raises(UnknownClusterError, match="the store has no records of it"):
        planned(ruins)


def test_a_topic_of_which_nothing_is_stored_is_no_empty_one_unless_losses_may_be(ruins: Ruins) -> None:
    ruins.upload(1, (PAYMENTS, 0, 0, batch(0, 10)))
    with pytest.raises(DataLossError, match=r"orders: all its records went inline .* topics enable"):
        planned(ruins)
    reader = made(ruins, failOnDataLoss="false").reader(StructType())
    assert reader.partitions() == []
    assert [*reader.read(None)] == [], "what Spark does where there are no splits"


def test_a_stream_starts_at_offsets_of_all_partitions_that_there_are(ruins: Ruins) -> None:
    ruins.upload(1, *((partition(each), 0, 0, batch(0, 10)) for each in (0, 1)))
    with pytest.raises(ValueError, match="startingOffsets: partition 1 of orders is missing"):
        stream(ruins, startingOffsets='{"orders": {"0": 8}}').latestOffset()
    reader = stream(ruins, startingOffsets='{"orders": {"0": 8, "1": -1}}')
    end = reader.latestOffset()
    reader.stop()
    resumed = stream(ruins, startingOffsets='{"orders": {"0": 8}}')  # the other one was not there when it began
    assert resumed.partitions(end, end) == []
    assert resumed.latestOffset() == end
    resumed.stop()


def test_a_stream_refuses_options_that_end_it(ruins: Ruins) -> None:
    with pytest.raises(ValueError, match="endingOffsets has no effect"):
        stream(ruins, endingOffsets="latest")

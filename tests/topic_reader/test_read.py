"""Topics are read from a store in a directory, where nothing else is left than the controllers' log."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import remote_wal
from kafka_log.plain_records import PlainRecord
from kafka_log.record_batch import CorruptBatchError, RecordBatchHeader
from kafka_log.topic_partition import topic_id_to_text
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.store.snapshots.archive_snapshot import with_archive
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from plugin.errors import RemoteStorageConfigError
from plugin.remote_wal_storage_manager import blobs_of
from recovery.cluster_view import ClusterView
from recovery.errors import UnknownClusterError
from recovery.metadata.inventory import from_metadata
from tests.kafka_log.batches import batch
from tests.recovery.ruins import CLUSTER, ORDERS, PAYMENTS, Ruins
from tests.recovery.stored_objects import records
from tests.recovery.test_topic_rebuild import TopicInMemory
from tests.topic_reader.written import BASE_MS, CONTROL, TRANSACTIONAL, Written, marker, written_batch
from topic_reader import decompression, isolation, sources
from topic_reader.read import IsolationLevel, Position
from topic_reader.sources import StoredTopics
from topic_reader.stored_log import DataLossError, StoredBatch

CODECS = ("none", "gzip", "snappy", "xerial", "lz4", "zstd")

some_bytes = st.none() | st.binary(max_size=300)
written = st.builds(
    Written,
    some_bytes,
    some_bytes,
    st.integers(0, 2**41),
    st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3).map(tuple),
)


@given(st.lists(written, min_size=1, max_size=20), st.sampled_from(CODECS), st.none() | st.integers(1, 2**41))
def test_what_a_producer_wrote_is_decoded_whatever_its_codec(
    sent: list[Written], codec: str, appended_ms: int | None
) -> None:
    raw = written_batch(7, sent, codec=codec, appended_ms=appended_ms)
    found = StoredBatch(RecordBatchHeader.parse(raw), memoryview(raw)).records()
    assert list(found) == [
        PlainRecord(
            7 + number,
            one.key,
            one.value,
            one.timestamp_ms if appended_ms is None else appended_ms,
            int(appended_ms is not None),
            tuple(one.headers),
        )
        for number, one in enumerate(sent)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_bytes_are_an_error_of_one_kind(codec: str) -> None:
    raw = written_batch(7, [Written(value=bytes(500))] * 20, codec=codec)
    cut = raw[:61] + raw[61 : len(raw) // 2]
    with pytest.raises((CorruptBatchError, ValueError)):
        list(StoredBatch(RecordBatchHeader.parse(raw), memoryview(cut)).records())


@pytest.fixture
def ruins(tmp_path: Path) -> Ruins:
    ruins = Ruins(tmp_path)
    ruins.write()
    return ruins


def source(ruins: Ruins) -> remote_wal.Source:
    return remote_wal.Source(ruins.directory / "server.properties", cluster_metadata=ruins.directory / "controller")


def offsets(
    ruins: Ruins,
    topic: str = "orders",
    partition: int = 0,
    *,
    start: Position = None,
    end: Position = None,
    isolation_level: IsolationLevel = "read_uncommitted",
    fail_on_data_loss: bool = True,
) -> list[int]:
    found = remote_wal.read(
        topic,
        partition,
        source(ruins),
        start=start,
        end=end,
        isolation_level=isolation_level,
        fail_on_data_loss=fail_on_data_loss,
    )
    return [record.offset for record in found]


def test_a_file_or_a_store_that_is_not_there_is_told_by_its_option_and_path(ruins: Ruins) -> None:
    missing = ruins.directory / "sever.properties"
    for named, told in (
        (replace(source(ruins), broker_config=missing), "read broker_config: .*option brokerConfig"),
        (remote_wal.Source(source(ruins).broker_config, "nobody:1", missing), "read command_config: .*commandConfig"),
    ):
        with pytest.raises(UnknownClusterError, match=told) as refused:
            list(remote_wal.read("orders", 0, named))
        assert f"No such file or directory: '{missing}'" in str(refused.value)
    file = ruins.directory / "server.properties"
    file.write_text(file.read_text() + f"\nrsm.wal.config.directory={ruins.directory}/sotre\n")
    with pytest.raises(RemoteStorageConfigError, match=f"there is no directory {ruins.directory}/sotre "):
        list(remote_wal.read("orders", 0, source(ruins)))
    assert not (ruins.directory / "sotre").exists()


def test_a_log_is_read_over_objects_copies_and_elections(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))
    ruins.upload(2, records(ORDERS, 0, 3, 9))  # of a leader that lost what is behind 6
    ruins.upload(3, records(ORDERS, 1, 7, 12))
    assert offsets(ruins) == list(range(13))
    assert offsets(ruins, start=6, end=11) == list(range(6, 11))
    assert offsets(ruins, "payments", 2) == [0, 1, 2]
    raw = b"".join(batch.data for batch in remote_wal.read_batches("orders", 0, source(ruins)))
    assert raw == records(ORDERS, 0, 0, 6)[3] + records(ORDERS, 1, 7, 12)[3]


def test_a_batch_is_cut_to_the_offsets_that_are_asked_for(ruins: Ruins) -> None:
    ruins.upload(1, (ORDERS, 0, 0, batch(0, 10) + batch(10, 10)))
    assert offsets(ruins, start=3, end=12) == list(range(3, 12))


def test_missing_offsets_are_an_error_that_names_them_or_left_out(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    ruins.upload(2, records(ORDERS, 0, 8, 9))
    with pytest.raises(DataLossError, match="orders-0: offsets 5 to 7 are in no readable object"):
        offsets(ruins)
    assert offsets(ruins, fail_on_data_loss=False) == [0, 1, 2, 3, 4, 8, 9]
    assert offsets(ruins, end=5) == [0, 1, 2, 3, 4], "nothing is missing where it was asked for"
    assert offsets(ruins, start=8) == [8, 9]
    with pytest.raises(DataLossError, match="offsets 10 to 11"):
        offsets(ruins, start=8, end=12)


def test_a_damaged_object_is_read_from_another_one_or_missing(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    damaged = ruins.upload(2, records(ORDERS, 0, 5, 9))
    damaged.write_bytes(damaged.read_bytes().replace(b"payload", b"PAYLOAD"))
    with pytest.raises(DataLossError, match="offsets 5 to 9"):
        offsets(ruins)
    assert offsets(ruins, fail_on_data_loss=False) == [0, 1, 2, 3, 4]
    ruins.upload(3, records(ORDERS, 0, 4, 7))
    ruins.upload(4, records(ORDERS, 0, 7, 9))
    assert offsets(ruins) == list(range(10))


def test_an_object_that_is_deleted_before_it_is_read_is_looked_for_elsewhere(ruins: Ruins) -> None:
    paths = [ruins.upload(number, records(ORDERS, 0, 5 * number, 5 * number + 4)) for number in range(3)]
    with StoredTopics.find(source(ruins), ["orders"]).opened() as topics:
        log = topics.log("orders", 0)
        planned = log.plan(0, 15)
        paths[1].unlink()
        with pytest.raises(DataLossError, match="offsets 5 to 9"):
            list(log.batches(0, 15, planned))
        ruins.upload(9, records(ORDERS, 0, 3, 11))  # as an archive object that came meanwhile
        assert [batch.header.base_offset for batch in log.batches(0, 15, planned)] == list(range(15))


def test_a_snapshot_tells_what_objects_do_not(ruins: Ruins) -> None:
    leader = TopicInMemory()
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    ruins.upload(2, records(ORDERS, 0, 8, 9))
    compacted = DeclaredGap(ORDERS, 5, 8, 0, GapReason.COMPACTED)
    begin = DeclaredGap(ORDERS, 0, 2, 0, GapReason.LOG_START)
    inline = DeclaredGap(ORDERS, 13, 15, 0, GapReason.NOT_WANTED)
    leader.publish(RemoteWalGapDeclaration(1, 5, 1, (compacted, begin, inline), BASE_MS))
    topics = StoredTopics.find(source(ruins), ["orders"])
    with topics.stores.opened() as (storage, _):
        image = with_archive(leader.store.image(), leader.archive)
        SnapshotKeeper(blobs_of(storage, "put", "-"), CLUSTER, 1, 5).save(image, BASE_MS)
    ruins.upload(3, records(ORDERS, 0, 10, 12))  # younger than the snapshot
    assert offsets(ruins) == [2, 3, 4, 8, 9, 10, 11, 12]
    ruins.upload(4, records(ORDERS, 0, 15, 16))
    with pytest.raises(
        DataLossError, match=r"offsets 13 to 14 went inline and were never stored; .*--wal-retention-ms"
    ):
        offsets(ruins)


@pytest.mark.parametrize("is_other_older", [False, True])
@pytest.mark.parametrize("from_objects", [False, True])
def test_a_snapshot_that_cannot_be_read_and_may_tell_more_is_a_loss(
    ruins: Ruins, from_objects: bool, is_other_older: bool
) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    where = remote_wal.Source(
        ruins.directory / "server.properties",
        cluster_metadata=ruins.directory / "controller",
        from_objects=from_objects,
    )
    with StoredTopics.find(where, ["orders"]).stores.opened() as (storage, _):
        image = TopicInMemory().store.image()
        for broker in (2, 1) if is_other_older else (1,):
            SnapshotKeeper(blobs_of(storage, "put", "-"), CLUSTER, broker, 5).save(image, BASE_MS)
    read = partial(remote_wal.read, "orders", 0, where)
    assert [one.offset for one in read()] == [0, 1, 2, 3, 4]
    assert json.loads(ruins.run("recover", "--dry-run", "--json").stdout)["metadata_doubts"] == []
    for part in ruins.directory.rglob("metadata-snapshots/1/*/*-of-*"):
        part.write_bytes(b"?")
    with pytest.raises(DataLossError, match=r"snapshots that may tell more cannot be read \(metadata-snapshots/1/"):
        list(read())
    assert [one.offset for one in read(fail_on_data_loss=False)] == [0, 1, 2, 3, 4]
    recovered = json.loads(ruins.run("recover", "--dry-run", "--json").stdout)
    assert (recovered["complete"], len(recovered["metadata_doubts"])) == (False, 1)


def test_a_topic_is_known_by_its_id_where_no_controllers_log_is_left(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    where = remote_wal.Source(ruins.directory / "server.properties", cluster_id=CLUSTER, from_objects=True)
    found = remote_wal.read(topic_id_to_text(ORDERS.topic_id), 0, where)
    assert [record.offset for record in found] == [0, 1, 2, 3, 4]
    with pytest.raises(UnknownClusterError, match="give the topic's id"):
        list(remote_wal.read("orders", 0, where))


def test_a_living_cluster_must_be_the_one_that_is_named(ruins: Ruins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ask_cluster", lambda *_: (CLUSTER, ClusterView({})))
    where = remote_wal.Source(ruins.directory / "server.properties", "b:9092", cluster_id="another")
    with pytest.raises(UnknownClusterError, match=f"b:9092: is cluster {CLUSTER}, not another"):
        list(remote_wal.read("orders", 0, where))


def test_a_range_is_named_by_times(ruins: Ruins) -> None:
    for number in range(10):
        sent = [Written(timestamp_ms=BASE_MS + 1000 * (5 * number + each)) for each in range(5)]
        ruins.upload(number, (ORDERS, 0, 5 * number, written_batch(5 * number, sent, codec="lz4")))
    begin = datetime.fromtimestamp(BASE_MS / 1000, UTC)

    def after(seconds: float) -> datetime:
        return begin + timedelta(seconds=seconds)

    assert offsets(ruins, start=after(12.5), end=after(20)) == list(range(13, 20))
    assert offsets(ruins, start=after(-5), end=after(1)) == [0]
    assert offsets(ruins, start=after(100)) == []
    assert offsets(ruins, start=after(49), end=after(1000)) == [49]
    with pytest.raises(ValueError, match="-1 is no offset"):
        offsets(ruins, start=-1)
    with pytest.raises(ValueError, match="no time zone"):
        offsets(ruins, start=datetime(2026, 1, 1))


def test_a_start_by_time_does_not_hide_that_older_records_may_be_as_young(ruins: Ruins) -> None:
    for number in (0, 1, 3):
        sent = [Written(timestamp_ms=BASE_MS + 1000 * (5 * number + each)) for each in range(5)]
        ruins.upload(number, (ORDERS, 0, 5 * number, written_batch(5 * number, sent)))
    begin = datetime.fromtimestamp(BASE_MS / 1000 + 12, UTC)
    with pytest.raises(DataLossError, match="offsets 10 to 14"):
        offsets(ruins, start=begin)
    assert offsets(ruins, start=begin, fail_on_data_loss=False) == [15, 16, 17, 18, 19]
    assert offsets(ruins, start=begin + timedelta(seconds=4)) == [16, 17, 18, 19]


def test_an_object_that_may_hold_records_and_cannot_be_read_is_a_loss(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    path = ruins.upload(2, records(ORDERS, 0, 5, 9))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataLossError, match="1 buckets or objects cannot be read and may hold records"):
        offsets(ruins)
    assert offsets(ruins, fail_on_data_loss=False) == [0, 1, 2, 3, 4]


def test_metadata_that_may_lack_what_elections_cut_off_is_a_loss(ruins: Ruins, monkeypatch: pytest.MonkeyPatch) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    doubtful = partial(replace, doubts=("it is new",))
    monkeypatch.setattr("topic_reader.sources.from_metadata", lambda *of, **by: doubtful(from_metadata(*of, **by)))
    with pytest.raises(DataLossError, match="it is new; remote-wal metadata rebuild"):
        offsets(ruins)
    assert offsets(ruins, fail_on_data_loss=False) == [0, 1, 2, 3, 4]


def transactions() -> list[bytes]:
    """Producer 1 commits 0 to 3, 2 aborts 4 to 7, in between are others' records, and 3 has not ended."""

    def part(offset: int, producer_id: int) -> bytes:
        return written_batch(offset, [Written()] * 2, attributes=TRANSACTIONAL, producer_id=producer_id)

    return [
        part(0, 1), part(2, 2), batch(4, 2), part(6, 1), marker(8, 2, commits=False), marker(9, 1, commits=True),
        part(10, 2), marker(12, 2, commits=True), part(13, 3), batch(15, 1),
    ]  # fmt: skip


COMMITTED = [0, 1, 4, 5, 6, 7, 10, 11]


@pytest.mark.parametrize("memory_bytes", [isolation.MEMORY_BYTES, 1])
def test_aborted_and_open_transactions_are_left_out_if_wanted(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    monkeypatch.setattr(isolation, "MEMORY_BYTES", memory_bytes)
    for number, raw in enumerate(transactions()):
        first = RecordBatchHeader.parse(raw).base_offset
        ruins.upload(number, (ORDERS, 0, first, raw))
    assert offsets(ruins) == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 13, 14, 15]
    assert offsets(ruins, isolation_level="read_committed") == COMMITTED
    # The marker behind the range decides, and it is looked for there.
    assert offsets(ruins, end=3, isolation_level="read_committed") == [0, 1]
    assert offsets(ruins, start=5, end=9, isolation_level="read_committed") == [5, 6, 7]


@pytest.mark.parametrize("memory_bytes", [isolation.MEMORY_BYTES, 1])
@pytest.mark.parametrize("end", [4, None])
def test_a_marker_that_is_in_no_object_decides_for_nobody(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch, end: int | None, memory_bytes: int
) -> None:
    """Producer 7 aborts 0 and 1, and commits 6 and 7; the object with the abort is missing."""
    monkeypatch.setattr(isolation, "MEMORY_BYTES", memory_bytes)

    def part(offset: int) -> bytes:
        return written_batch(offset, [Written()] * 2, attributes=TRANSACTIONAL, producer_id=7)

    raws = {0: part(0), 2: batch(2, 2), 5: batch(5), 6: part(6), 8: marker(8, 7, commits=True), 9: batch(9, 2)}
    for first, raw in raws.items():
        ruins.upload(first, (ORDERS, 0, first, raw))
    told = "offsets 4 to 4 are" + ("" if end is None else ".* there the transaction at offset 0 may have ended")
    with pytest.raises(DataLossError, match=told):
        offsets(ruins, end=end, isolation_level="read_committed")
    assert offsets(ruins, end=3, isolation_level="read_uncommitted") == [0, 1, 2]
    assert offsets(ruins, start=2, end=4, isolation_level="read_committed") == [2, 3], "no transaction is open there"
    left = [2, 3] if end == 4 else [2, 3, 5, 6, 7, 9, 10]
    assert offsets(ruins, end=end, isolation_level="read_committed", fail_on_data_loss=False) == left


def test_a_marker_that_compaction_may_have_removed_is_told_of_if_none_comes_later(ruins: Ruins) -> None:
    """Offset 1 may have been producer 7's marker, or none. Producer 8's transaction is open."""

    def part(offset: int, producer_id: int) -> bytes:
        return written_batch(offset, [Written()], attributes=TRANSACTIONAL, producer_id=producer_id)

    raws = [part(0, 7), batch(2), part(3, 8), batch(4)]
    ruins.upload(1, (ORDERS, 0, 0, b"".join(raws)))
    read = partial(offsets, ruins, isolation_level="read_committed")
    with pytest.raises(DataLossError, match=r"offsets 1 to 1 are .* there the transaction at offset 0 may have ended"):
        read()
    assert read(fail_on_data_loss=False) == [2]
    assert isolation.stable_end(batches(raws), 5) == 3
    ruins.upload(2, (ORDERS, 0, 5, marker(5, 7, commits=True)))
    assert read() == [0, 2]


@pytest.mark.parametrize("version", [b"\x00\x00", b"\x00\x01"])
def test_markers_of_a_newer_version_decide_as_for_kafkas_clients(ruins: Ruins, version: bytes) -> None:
    raw = written_batch(0, [Written()], attributes=TRANSACTIONAL, producer_id=7)
    key = Written(version + b"\x00\x01", bytes(6))
    end = written_batch(1, [key], attributes=TRANSACTIONAL | CONTROL, producer_id=7)
    ruins.upload(1, (ORDERS, 0, 0, raw + end))
    assert offsets(ruins, isolation_level="read_committed") == [0]


def test_words_and_ranges_that_cannot_be_meant_are_errors(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    with pytest.raises(ValueError, match="'READ_COMMITTED' is none of read_uncommitted, read_committed"):
        offsets(ruins, isolation_level=cast(IsolationLevel, "READ_COMMITTED"))
    with pytest.raises(UnknownClusterError, match="it has no partition 7"):
        offsets(ruins, partition=7)
    with pytest.raises(ValueError, match="from 3 to 2 ends before it starts"):
        offsets(ruins, start=3, end=2)
    with pytest.raises(DataLossError, match="offsets 5 to 9 are"):
        offsets(ruins, start=10)
    assert offsets(ruins, start=5) == []


def test_a_header_key_that_is_not_utf_8_is_read_as_by_javas_clients(ruins: Ruins) -> None:
    raw = written_batch(0, [Written(headers=(("k\udcff", b"1"),)), Written(headers=(("k", None),))])
    ruins.upload(1, (ORDERS, 0, 0, raw))
    found = [record.headers for record in remote_wal.read("orders", 0, source(ruins))]
    assert found == [(("k\ufffd", b"1"),), (("k", None),)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_decompresses_to_more_than_the_bound_is_refused(
    monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    monkeypatch.setattr(decompression, "MAX_BYTES", 2_000_000)

    def read(size: int) -> int:
        raw = written_batch(7, [Written(value=bytes(size))], codec=codec)
        return sum(
            len(one.value or b"") for one in StoredBatch(RecordBatchHeader.parse(raw), memoryview(raw)).records()
        )

    assert read(1_900_000) == 1_900_000
    if codec != "none":
        with pytest.raises(CorruptBatchError, match="longer than 2,000,000 bytes"):
            read(64_000_000 if codec != "xerial" else 2_100_000)


def batches(raws: list[bytes]) -> Iterator[StoredBatch]:
    return (StoredBatch(RecordBatchHeader.parse(raw), memoryview(raw)) for raw in raws)


def test_the_last_stable_offset_is_where_the_first_open_transaction_begins() -> None:
    assert isolation.stable_end(batches(transactions()), 16) == 13
    assert isolation.stable_end(batches(transactions()[:8]), 13) == 13
    assert isolation.stable_end(batches(transactions()[:5]), 9) == 0

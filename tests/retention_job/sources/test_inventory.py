"""An S3 Inventory is read as `ObjectKeyFactory` reads keys."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.object_keys import ObjectKeyFactory
from plugin.loading import StorageSpec
from plugin.segment_metadata import CombinedSegmentId
from retention_job.errors import SourceError
from retention_job.settings import InventoryFile, StoreListing
from retention_job.sources.inventory import S3Inventory, list_archive, list_store

LOCAL = "plugin.local_directory.LocalWalStorageManager"
NOWHERE = StorageSpec("plugin.s3.S3WalStorageManager", None, {"endpoint.url": "http://127.0.0.1:1"})
KEYS = ObjectKeyFactory.of("team(1)/kafka", "cluster.1")
SEGMENT = CombinedSegmentId(3, 0xABCDEF012345, 0xFFFFFFFFFFFF)
ARCHIVED = ArchiveObjectId(
    TopicIdPartition(TopicId(bytes(range(16))), 7), 100, 2**61, CombinedSegmentId(2**31 - 1, 5, 2**48 - 1)
)
STRANGERS = (
    "team(1)/kafka/cluster.1/03/000000000abc/000000000011.rwal",
    "team(1)/kafka/cluster.1/3/000000000ABC/000000000011.rwal",
    "team(1)/kafka/cluster.1/2147483648/000000000abc/000000000011.rwal",
    "team(1)/kafka/cluster.1/3/000000000abc/000000000011.rwal\n",
    "team(1)/kafka/cluster.1/3/probe-1",
    "team(1)/kafka/cluster-1/3/000000000abc/000000000011.rwal",
    "other/3/000000000abc/000000000011.rwal",
)


def objects_of(spark: SparkSession, source: InventoryFile) -> list[Row]:
    inventory = S3Inventory.find(spark, source)
    return list(inventory.objects(list(inventory.files())).collect())


def test_keys_of_an_inventory_tell_what_they_name(spark: SparkSession, tmp_path: Path) -> None:
    keys = [KEYS.key_of(SEGMENT), KEYS.archive_key_of(ARCHIVED), *STRANGERS]
    rows = [(key, 10 + number, 1_700_000_000 + number) for number, key in enumerate(keys)]
    raw = spark.createDataFrame(rows, "key STRING, size LONG, at LONG").selectExpr(
        "key", "size", "timestamp_seconds(at) AS last_modified_date"
    )
    raw.write.parquet(str(tmp_path / "inventory"))
    source = InventoryFile(str(tmp_path / "inventory"), "cluster.1", "team(1)/kafka")
    found = {row.key: row for row in objects_of(spark, source)}
    assert set(found) == {key for key in keys if KEYS.parse(key) or KEYS.parse_archive(key)} == set(keys[:2])
    segment, archived = found[keys[0]], found[keys[1]]
    assert (segment.broker_id, segment.incarnation, segment.sequence) == SEGMENT
    assert (segment.size_bytes, segment.last_modified_ms) == (10, 1_700_000_000_000)
    assert segment.archive_topic_id is None
    assert (archived.broker_id, archived.incarnation, archived.sequence) == ARCHIVED.writer_id
    assert (bytes(archived.archive_topic_id), archived.archive_partition) == ARCHIVED.topic_id_partition
    assert (archived.archive_first_offset, archived.archive_last_offset) == (100, 2**61)


def test_a_csv_inventorys_keys_are_decoded(spark: SparkSession, tmp_path: Path) -> None:
    key = KEYS.key_of(SEGMENT)
    quoted = key.replace("(", "%28").replace(")", "%29")
    (tmp_path / "inventory.csv").write_text(f'"bucket","{quoted}","77","2026-01-02T03:04:05.000Z","EXPRESS_ONEZONE"\n')
    columns = ("Bucket", "Key", "Size", "LastModifiedDate", "StorageClass")
    source = InventoryFile(str(tmp_path / "inventory.csv"), "cluster.1", "team(1)/kafka", "csv", columns)
    [found] = objects_of(spark, source)
    assert (found.key, found.size_bytes) == (key, 77)
    assert found.last_modified_ms == 1_767_323_045_000


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_inventory_of_all_versions_has_only_what_is_there_now(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    deleted, replaced = (KEYS.key_of(CombinedSegmentId(3, 1, number)) for number in (1, 2))
    versions = [
        (deleted, True, True, None),
        (deleted, False, False, 1),
        (replaced, True, False, 2),
        (replaced, False, False, 3),
    ]
    columns = ("key", "is_latest", "is_delete_marker", "size", "last_modified_date")
    raw = spark.createDataFrame(
        [(*one, "2026-01-02T03:04:05.000Z") for one in versions],
        "key STRING, is_latest BOOLEAN, is_delete_marker BOOLEAN, size LONG, last_modified_date STRING",
    )
    raw.write.format(form).save(str(tmp_path / "inventory"))
    source = InventoryFile(str(tmp_path / "inventory"), "cluster.1", "team(1)/kafka", form, columns)
    assert [(one.key, one.size_bytes) for one in objects_of(spark, source)] == [(replaced, 2)]


def write_manifest(directory: Path, **told: object) -> str:
    day = directory / "2026-11-22T01-00Z"
    day.mkdir(parents=True)
    about = {
        "creationTimestamp": "1763773200000",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, Size, LastModifiedDate",
    }
    (day / "manifest.json").write_text(json.dumps(about | told))
    return f"{day}/manifest.json"


def test_a_manifest_names_one_days_files_their_format_and_columns(spark: SparkSession, tmp_path: Path) -> None:
    other = CombinedSegmentId(4, 1, 1)
    data = tmp_path / "wal" / "daily" / "data"
    data.mkdir(parents=True)
    for name, segment in (("today", SEGMENT), ("yesterday", other)):
        key = KEYS.key_of(segment).replace("(", "%28").replace(")", "%29")
        (data / f"{name}.csv").write_text(f'"wal","{key}","77","2026-01-02T03:04:05.000Z"\n')
    files = [
        {"key": "inventories/wal/daily/data/today.csv", "size": 77, "MD5checksum": "f11166069f1990abeb9c97ace9cdfabc"}
    ]
    source = InventoryFile(write_manifest(tmp_path / "wal" / "daily", files=files), "cluster.1", "team(1)/kafka")
    [found] = objects_of(spark, source)
    assert (found.broker_id, found.incarnation, found.sequence) == SEGMENT
    assert S3Inventory.find(spark, source).made_ms == 1_763_773_200_000
    none = InventoryFile(write_manifest(tmp_path / "empty" / "daily", files=[]), "cluster.1")
    assert objects_of(spark, none) == []


@pytest.mark.parametrize(("told", "named"), [({}, "files"), ({"files": [], "fileFormat": "ORC"}, "orc")])
def test_a_manifest_that_cannot_be_used_is_one_clear_line(
    spark: SparkSession, tmp_path: Path, told: dict[str, object], named: str
) -> None:
    with pytest.raises(SourceError, match=named) as raised:
        objects_of(spark, InventoryFile(write_manifest(tmp_path, **told), "cluster.1"))
    assert "\n" not in str(raised.value)
    with pytest.raises(SourceError, match="no such file"):
        objects_of(spark, InventoryFile(f"{tmp_path}/nowhere/manifest.json", "cluster.1"))


def test_an_inventory_that_is_not_there_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is that an inventory") as raised:
        objects_of(spark, InventoryFile(str(tmp_path / "nothing"), "cluster.1"))
    assert "\n" not in str(raised.value)


def test_a_store_that_cannot_be_used_is_one_clear_line(spark: SparkSession) -> None:
    nowhere = StoreListing(NOWHERE, "cluster.1")
    with pytest.raises(SourceError, match="list store") as raised:
        list_store(spark, nowhere, {1})
    assert "\n" not in str(raised.value)


def test_the_archives_listing_tells_its_objects_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    for number, key in enumerate((KEYS.archive_key_of(ARCHIVED), KEYS.key_of(SEGMENT), *STRANGERS[-1:])):
        file = tmp_path / key
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * (number + 5))
    settings = {"directory": str(tmp_path), "prefix": "team(1)/kafka"}
    [found] = list_archive(spark, StoreListing(StorageSpec(LOCAL, None, settings), "cluster.1")).collect()
    assert (found.key, found.size_bytes) == (KEYS.archive_key_of(ARCHIVED), 5)
    assert (found.broker_id, found.incarnation, found.sequence) == ARCHIVED.writer_id
    assert (bytes(found.archive_topic_id), found.archive_partition) == ARCHIVED.topic_id_partition
    assert (found.archive_first_offset, found.archive_last_offset) == (100, 2**61)


def test_an_archive_that_cannot_be_used_is_one_clear_line(spark: SparkSession) -> None:
    nowhere = StoreListing(NOWHERE, "cluster.1")
    with pytest.raises(SourceError, match="list archive") as raised:
        list_archive(spark, nowhere)
    assert "\n" not in str(raised.value)


def test_the_listing_tells_of_all_buckets_or_says_which_one_did_not_answer(spark: SparkSession, tmp_path: Path) -> None:
    segments = [CombinedSegmentId(3, 1, sequence) for sequence in range(2)]
    for number, named in enumerate(segments):
        file = tmp_path / f"az{number}" / KEYS.key_of(named)
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * (number + 5))
    buckets = {f"az{number}": str(tmp_path / f"az{number}") for number in range(2)}
    listing = StoreListing(StorageSpec(LOCAL, None, {"prefix": "team(1)/kafka"}, buckets=buckets), "cluster.1")
    found = list_store(spark, listing, {3}).collect()
    assert {(row.broker_id, row.incarnation, row.sequence) for row in found} == set(segments)
    (tmp_path / "no-directory").write_bytes(b"")
    partly = {**buckets, "az9": f"{tmp_path}/no-directory"}
    away = replace(listing, spec=replace(listing.spec, buckets=partly))
    with pytest.raises(SourceError, match="no-directory"):
        list_store(spark, away, {3})

"""A listing tells of a store's objects, of all buckets, or says in one line why it cannot."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.object_keys import ObjectKeyFactory
from plugin.loading import StorageSpec
from plugin.segment_metadata import CombinedSegmentId
from retention_job.errors import SourceError
from retention_job.settings import StoreListing
from retention_job.sources.listing import list_archive, list_store

LOCAL = "plugin.local_directory.LocalWalStorageManager"
NOWHERE = StorageSpec("plugin.s3.S3WalStorageManager", None, {"endpoint.url": "http://127.0.0.1:1"})
KEYS = ObjectKeyFactory.of("team(1)/kafka", "cluster.1")
SEGMENT = CombinedSegmentId(3, 0xABCDEF012345, 0xFFFFFFFFFFFF)
ARCHIVED = ArchiveObjectId(
    TopicIdPartition(TopicId(bytes(range(16))), 7), 100, 2**61, CombinedSegmentId(2**31 - 1, 5, 2**48 - 1)
)
STRANGER = "other/3/000000000abc/000000000011.rwal"


def test_a_store_that_cannot_be_used_is_one_clear_line(spark: SparkSession) -> None:
    nowhere = StoreListing(NOWHERE, "cluster.1")
    with pytest.raises(SourceError, match="list store") as raised:
        list_store(spark, nowhere, {1})
    assert "\n" not in str(raised.value)


def test_the_archives_listing_tells_its_objects_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    for number, key in enumerate((KEYS.archive_key_of(ARCHIVED), KEYS.key_of(SEGMENT), STRANGER)):
        file = tmp_path / key
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * (number + 5))
    settings = {"directory": str(tmp_path), "prefix": "team(1)/kafka"}
    [found] = list_archive(spark, StoreListing(StorageSpec(LOCAL, None, settings), "cluster.1")).collect()
    assert found.stored_bytes == 5
    assert (found.broker_id, found.incarnation, found.sequence) == ARCHIVED.writer_id
    assert (bytes(found.topic_id), found.partition) == ARCHIVED.topic_id_partition
    assert (found.first_offset, found.last_offset) == (100, 2**61)


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

"""Which entries the archive releases."""

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from rlm.archive.archived_topics import ArchiveTier
from tests.rlm.archive_rig import ORDERS, OTHER


def entry(epoch: int, first: int, last: int) -> RemoteLogSegmentMetadataEntry:
    return RemoteLogSegmentMetadataEntry(ORDERS, epoch, first, last, 112, 200, 1)


def test_an_entry_is_released_when_all_of_it_that_is_the_logs_is_archived() -> None:
    archive = ArchiveStore()
    named = ArchiveObjectId(ORDERS, 0, 19, CombinedSegmentId(1, 1, 0))
    archive.apply(ArchiveObjectCommitted(named, 1, (entry(0, 0, 9), entry(2, 10, 19)), 400, 1))
    chain = LeaderEpochs([(0, 0), (2, 10)])
    led = ArchiveTier(archive, lambda topic_id: topic_id == ORDERS.topic_id, lambda _: chain)
    elsewhere = ArchiveTier(archive, lambda _: True, lambda _: None)
    dead_tail, behind, dead = entry(0, 5, 12), entry(2, 15, 20), entry(0, 10, 12)
    assert [led.holds(asked) for asked in (entry(0, 0, 9), entry(2, 10, 12), dead_tail, behind, dead)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert [elsewhere.holds(asked) for asked in (entry(0, 0, 9), dead_tail)] == [True, False]
    assert (led.waits_for(ORDERS.topic_id), led.waits_for(OTHER.topic_id)) == (True, False)

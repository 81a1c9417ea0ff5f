"""How far a log counts as published, whichever upload ends first, and whenever the topic acknowledges."""

from collections.abc import Callable
from pathlib import Path

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.uploads.published_offsets import PublishedOffsets
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment
from tests.kafka_log.batches import batch

LOG, OTHER = (TopicIdPartition(TopicId(bytes([number]) * 16), 0) for number in (1, 2))


class Rig:
    """The write path, as the listener sees it."""

    def __init__(self) -> None:
        self.uploaded: dict[TopicIdPartition, int] = {LOG: 100}
        self.waiting: list[tuple[int, Callable[[], object]]] = []
        self.told: list[tuple[str, TopicIdPartition]] = []
        self.offsets = PublishedOffsets(self.uploaded.get, self.when_published, self)
        self.offsets.assigned(
            [
                Assignment(LOG, "t", Path("t-0"), LinkPolicy.COST, 20, is_durable=True),
                Assignment(OTHER, "o", Path("o-0"), LinkPolicy.COST, 20),
            ]
        )

    def when_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        self.waiting.append((segment_id.sequence, tell))

    def look(self, log: TopicIdPartition) -> None:
        self.told.append(("look", log))

    def cut(self, log: TopicIdPartition, offset: int) -> None:
        self.told.append((f"cut {offset}", log))

    def released(self, log: TopicIdPartition) -> None:
        self.told.append(("released", log))

    def stored(self, sequence: int, begin: int, end: int, uploaded: int, log: TopicIdPartition = LOG) -> None:
        """An object with these offsets is stored; all below `uploaded` is then."""
        records = batch(begin, end - begin)
        item = MetaQueueItem(log, tuple(scan_batches(records, 0, len(records))), memoryview(records), 0.0, 0.0)
        self.uploaded[log] = uploaded
        segment_id = CombinedSegmentId(1, 1, sequence)
        self.offsets.segment_uploaded(UploadedSegment(segment_id, (item,), (item.metadata_entry(),), 1, 0.0))

    def acknowledge(self, sequence: int) -> None:
        due = [tell for number, tell in self.waiting if number <= sequence]
        self.waiting = [(number, tell) for number, tell in self.waiting if number > sequence]
        for tell in due:
            tell()

    @property
    def published(self) -> int | None:
        return self.offsets.published_offset(LOG)


def test_what_is_stored_counts_once_it_is_acknowledged() -> None:
    rig = Rig()
    assert rig.published == 100
    rig.stored(5, 100, 200, 200)
    assert rig.published == 100
    rig.acknowledge(5)
    assert rig.published == 200
    assert rig.told == [("look", LOG)]


def test_an_object_that_ends_before_an_older_one_counts_with_it() -> None:
    rig = Rig()
    rig.stored(6, 200, 300, 100)
    assert rig.published == 100
    rig.stored(5, 100, 200, 300)
    rig.acknowledge(5)
    assert rig.published == 100
    rig.acknowledge(6)
    assert rig.published == 300


def test_a_cut_log_goes_back() -> None:
    rig = Rig()
    rig.stored(5, 100, 200, 200)
    rig.stored(6, 200, 300, 300)
    rig.acknowledge(5)
    rig.uploaded[LOG] = 150
    rig.offsets.partition_truncated(LOG, 150)
    assert rig.published == 150
    rig.acknowledge(6)
    assert rig.published == 150
    assert ("cut 150", LOG) in rig.told


def test_a_log_that_is_not_led_any_more_is_not_known() -> None:
    rig = Rig()
    rig.stored(5, 100, 200, 200)
    del rig.uploaded[LOG]
    rig.offsets.partition_released(LOG)
    rig.acknowledge(5)
    assert rig.published is None
    assert rig.told == [("released", LOG)]


def test_of_other_topics_nobody_is_told() -> None:
    rig = Rig()
    rig.stored(5, 0, 100, 100, OTHER)
    assert not rig.waiting


def test_what_is_behind_an_object_that_could_not_be_published_does_not_count() -> None:
    rig = Rig()
    rig.stored(0, 100, 110, uploaded=110)
    rig.stored(1, 110, 120, uploaded=120)
    rig.stored(2, 120, 130, uploaded=130)
    lost = rig.waiting.pop(1)  # its record was refused for good, so it is never acknowledged
    assert lost[0] == 1
    rig.acknowledge(2)
    assert rig.published == 110

"""Requests for tails: answered once, by whoever leads, when all is stored."""

from pathlib import Path

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.settings_records import TailRequest, TailStored, TopicPartitionName
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.uploads.segment_queue import UploadedSegment
from rlm.write_path.uploads.tail_uploads import TailUploads

T0: TopicPartitionName = ("t", 0)
KEY = TopicIdPartition(TopicId(b"t" * 16), 0)
LED = [Assignment(KEY, "t", Path("/log/t-0"), LinkPolicy.COST, 20)]
DEADLINE_MS = 10_000


class Uploads:
    def __init__(self) -> None:
        self.hurried: set[TopicIdPartition] = set()
        self.offset: int | None = 5

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None:
        (self.hurried.add if hurried else self.hurried.discard)(partition)

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None:
        return self.offset


class Rig:
    def __init__(self) -> None:
        self.uploads, self.now_ms = Uploads(), 1_000
        self.answers: list[tuple[TopicPartitionName, TailStored]] = []
        self.tails = TailUploads(7, self.uploads, lambda *answer: self.answers.append(answer), lambda: self.now_ms)

    def ask(self, up_to: int, request_id: str = "r1") -> None:
        self.tails.requested({T0: TailRequest(request_id, up_to, DEADLINE_MS)})

    def store(self, offset: int) -> None:
        self.uploads.offset = offset
        self.tails.segment_uploaded(_segment())


def _segment() -> UploadedSegment:
    item = type("Item", (), {"topic_id_partition": KEY})()
    return UploadedSegment(CombinedSegmentId(7, 1, 0), (item,), (), 0, 0.0)


def test_what_is_stored_already_is_answered_at_once() -> None:
    rig = Rig()
    rig.tails.assigned(LED)
    rig.ask(5)
    assert rig.answers == [(T0, TailStored("r1", 7, 5))]
    assert rig.uploads.hurried == set()


def test_uploads_are_hurried_until_all_is_stored_and_answered_once() -> None:
    rig = Rig()
    rig.tails.assigned(LED)
    rig.ask(9)
    assert rig.uploads.hurried == {KEY}
    rig.store(8)
    assert rig.answers == []
    rig.store(11)
    rig.ask(9)
    rig.store(12)
    assert rig.answers == [(T0, TailStored("r1", 7, 11))]
    assert rig.uploads.hurried == set()


def test_a_second_request_is_answered_anew() -> None:
    rig = Rig()
    rig.tails.assigned(LED)
    rig.ask(5)
    rig.ask(5, "r2")
    assert [answer.request_id for _, answer in rig.answers] == ["r1", "r2"]


def test_leadership_that_comes_later_is_answered_then() -> None:
    rig = Rig()
    rig.ask(5)
    assert rig.answers == []
    rig.tails.assigned(LED)
    assert [answer.broker_id for _, answer in rig.answers] == [7]


def test_whoever_does_not_lead_does_not_answer() -> None:
    rig = Rig()
    rig.tails.assigned(LED)
    rig.tails.assigned([])
    rig.ask(5)
    rig.store(9)
    assert rig.answers == []


def test_after_its_deadline_or_when_withdrawn_nothing_is_hurried_any_more() -> None:
    rig = Rig()
    rig.tails.assigned(LED)
    rig.ask(9)
    rig.tails.requested({})
    assert rig.uploads.hurried == set()
    rig.ask(9)
    rig.now_ms = DEADLINE_MS
    rig.tails.assigned(LED)
    assert rig.uploads.hurried == set()
    rig.store(9)
    assert rig.answers == []


def test_a_log_of_which_nothing_was_left_to_upload_is_answered_without_an_upload() -> None:
    rig = Rig()
    rig.uploads.offset = -1
    rig.tails.assigned(LED)
    rig.ask(9)
    rig.uploads.offset = 8
    rig.tails.hurried_log_settled(KEY)
    assert rig.answers == []
    rig.uploads.offset = 9
    rig.tails.hurried_log_settled(KEY)
    assert rig.answers == [(T0, TailStored("r1", 7, 9))]

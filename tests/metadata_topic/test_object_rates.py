"""How many objects each agent makes, of late."""

from metadata_topic.records.records import PublishedSegment
from metadata_topic.topic.consumer import ObjectRates
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState

STARTED, FINISHED = RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def made(broker_id: int, state: RemoteLogSegmentState = FINISHED, *, is_rebuilt: bool = False) -> PublishedSegment:
    return PublishedSegment(CombinedSegmentId(broker_id, 1, 1), state, 0, 0, b"", b"", is_rebuilt)


def test_the_last_whole_window_is_told_and_objects_are_counted_once() -> None:
    clock = Clock()
    rates = ObjectRates(clock, window_s=5.0)
    for record in (made(1), made(1, STARTED), made(2), made(1), made(2, is_rebuilt=True)):
        rates.read(record)
    assert rates.per_second() == {}
    clock.now_s += 5
    assert rates.per_second() == {1: 0.4, 2: 0.2}
    rates.read(made(3))
    clock.now_s += 10
    assert rates.per_second() == {3: 0.1}
    clock.now_s += 5
    assert rates.per_second() == {}

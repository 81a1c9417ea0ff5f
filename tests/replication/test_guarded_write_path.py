"""Relays are answered whether the write path is there, or fails, or not."""

from typing import cast

from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.leader.guarded_write_path import GuardedWritePath
from replication.leader.link_index import StoredLogs
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.core.led_views import LedPartitions

PARTITION = TopicIdPartition(TopicId(b"l" * 16), 0)


class Led:
    """A write path that links all, or fails in whatever it is asked."""

    def __init__(self) -> None:
        self.defect: Exception | None = None

    def mode_of(self, _partition: TopicIdPartition) -> LinkMode:
        if self.defect is not None:
            raise self.defect
        return LinkMode.LINK

    def stored_log(self, _partition: TopicIdPartition) -> None:
        if self.defect is not None:
            raise self.defect


def test_a_call_that_meets_a_defect_is_answered_as_if_nothing_was_led_and_the_defect_is_told() -> None:
    led, told = Led(), list[Exception]()
    guarded = GuardedWritePath()
    assert guarded.mode_of(PARTITION) is LinkMode.OFF
    guarded.arrived(cast(LedPartitions, led), cast(StoredLogs, led), told.append)
    assert guarded.mode_of(PARTITION) is LinkMode.LINK
    assert told == []
    led.defect = KeyError("planted")
    assert guarded.mode_of(PARTITION) is LinkMode.OFF
    assert guarded.stored_log(PARTITION) is None
    assert told == [led.defect, led.defect]


def test_after_it_has_left_nothing_is_asked_of_it() -> None:
    led, told = Led(), list[Exception]()
    guarded = GuardedWritePath()
    guarded.arrived(cast(LedPartitions, led), cast(StoredLogs, led), told.append)
    guarded.left()
    led.defect = KeyError("planted")
    assert guarded.mode_of(PARTITION) is LinkMode.OFF
    assert told == []

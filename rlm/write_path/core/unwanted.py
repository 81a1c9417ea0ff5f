"""Leaves records that nobody wants stored out of objects, and declares them. Sans-IO.

If links do not pay, bytes go inline; they are stored only if something else wants them (`Assignment.is_kept`, a hurried
upload). `LeftOut` has what was left out of one log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import NO_END
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.core.actions import Action, CountLeftOut, DeclareNotWanted, TellLeftOut
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.pacing import Pacing
from rlm.write_path.reading.log_task import TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem, RemoteSegmentQueue


class Unwanted:
    """Filters what was read before it is queued, and the queue before an upload. Times are monotonic seconds."""

    def __init__(self, led: Mapping[TopicIdPartition, LedPartition], queue: RemoteSegmentQueue, pacing: Pacing) -> None:
        self._led = led
        self._queue = queue
        self._pacing = pacing

    def left_out_of(self, led: LedPartition, outcome: TaskOutcome, now_s: float) -> TaskOutcome:
        """Return what was read, without what nobody wants stored."""
        if not outcome.items:
            return outcome
        wanted_from = self._wanted_from(led, now_s)
        if not wanted_from:
            led.left_out.kept()
            return outcome
        kept = []
        for item in outcome.items:
            wanted = item.beyond(wanted_from)
            begin = item.first_offset
            end = item.last_offset + 1 if wanted is None else wanted.first_offset
            if begin < end:
                led.left_out.add(begin, end)
                self._pacing.commit.looked(now_s)
            if wanted is not None:
                led.left_out.kept()
                kept.append(wanted)
        return replace(outcome, items=tuple(kept))

    def let_go(self, now_s: float) -> Sequence[Action]:
        """Remove from the queue, before an upload, what links do not pay for and nobody else wants."""
        self._pacing.judge(now_s)
        taken = self._queue.take_out(lambda item: self._is_unwanted(item, now_s))
        if not taken:
            return ()
        for item in taken:
            led = self._led[item.topic_id_partition]
            if (part := led.unstored_part(item)) is not None:
                led.item_left_out(part)
        self._pacing.commit.looked(now_s)
        return CountLeftOut(sum(len(item.records) for item in taken)), TellLeftOut()

    def declared(self, led: LedPartition, now_s: float, *, is_last: bool = False) -> Sequence[Action]:
        """Declare what was left out, when it is time."""
        if not (is_last or led.left_out.is_due(now_s)):
            return ()
        ranges = led.left_out.take(now_s)
        return (DeclareNotWanted(led.assignment, ranges),) if ranges else ()

    def last_declared(self, now_s: float) -> Sequence[Action]:
        """Declare everything that was left out, when nothing is read any more."""
        return [action for led in self._led.values() for action in self.declared(led, now_s, is_last=True)]

    def _wanted_from(self, led: LedPartition, now_s: float) -> int:
        """Return the offset from which on the log is stored; NO_END: nothing of it, because nobody wants it."""
        if led.assignment.is_kept or led.assignment.topic_id_partition in self._pacing.hurried:
            return 0
        return led.held_by_followers if self._pacing.mode_of(led, 0, now_s) is LinkMode.LINK else NO_END

    def _is_unwanted(self, item: MetaQueueItem, now_s: float) -> bool:
        led = self._led.get(item.topic_id_partition)
        return led is not None and self._wanted_from(led, now_s) > item.last_offset

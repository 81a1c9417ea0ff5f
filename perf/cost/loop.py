"""Drives the write path's core on virtual time, with a store whose requests take a fixed time."""

from collections.abc import Sequence
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from perf.cost.counts import Counts, MetadataVolume
from perf.cost.followers import CostFollowers
from perf.cost.timeline import StoreTimes, Timeline
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.commit.group_commit import Gather, UploadNow, Wait
from rlm.write_path.core.actions import Action, DeclareNotWanted, TellLeftOut, TellStored, Upload
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.uploads.segment_queue import UploadedSegment

PUT_S: Final = 0.010
_LOOK_S: Final = 0.002
"""The interval at which `AppendWatcher.pause` looks for appends while it gathers."""


class CostLoop:
    """Reads, uploads and notifies the followers' side, as the core decides."""

    def __init__(self, core: WritePathCore, timeline: Timeline, counts: Counts, times: StoreTimes) -> None:
        """Make the loop; `followers` must be set before it runs."""
        self._times = times
        self._core = core
        self._time = timeline
        self._counts = counts
        self.followers: CostFollowers
        self.metadata = MetadataVolume()
        self._untold: dict[TopicIdPartition, None] = {}
        """Partitions with appends while it gathers."""
        self._gathers = False
        self._turn = 0
        """The number of turns, so that a timer of an earlier turn does nothing."""
        self._uploads = 0
        self._sequence = 0

    def append_seen(self, partition: TopicIdPartition) -> None:
        """Note an append."""
        if self._gathers:
            self._untold[partition] = None
        elif self._core.pacing.append_seen(partition, self._time.now_s):
            self.go_on()

    def go_on(self) -> None:
        """Continue, because something has changed."""
        if self._gathers:
            return
        self._turn += 1
        turn, pacing = self._turn, self._core.pacing
        while True:
            match pacing.next_step(self._time.now_s):
                case UploadNow():
                    self._read()
                    self.do(self._core.unwanted.drop_queued(self._time.now_s))
                    self._start(pacing.next_upload(self._time.now_s))
                case Gather(delay_s, quiet_s):
                    self._gathers = True
                    round_is_over = not self._uploads and not self.followers.are_pending()
                    self._look(self._time.now_s + delay_s, quiet_s, self._time.now_s, round_is_over)
                    return
                case Wait(delay_s):
                    if delay_s is not None:
                        self._time.at(self._time.now_s + delay_s, lambda: self.go_on() if turn == self._turn else None)
                    return

    def _look(self, until_s: float, quiet_s: float, seen_s: float, round_is_over: bool) -> None:
        """Look for appends, while gathering."""
        pacing = self._core.pacing
        if self._untold:
            seen_s = self._time.now_s
            self._take()
            if pacing.round_is_gathered():
                self._gathered()
                return
        elif self._time.now_s - seen_s >= quiet_s and round_is_over:
            self._gathered()
            return
        if self._time.now_s >= until_s or self._time.now_s - seen_s >= quiet_s:
            self._gathers = False
            self.go_on()
            return
        next_s = self._time.now_s + min(quiet_s / 2, max(until_s - self._time.now_s, 1e-4), max(_LOOK_S, quiet_s / 2))
        self._time.at(next_s, lambda: self._look(until_s, quiet_s, seen_s, round_is_over))

    def _gathered(self) -> None:
        self._gathers = False
        self._read()
        if self._core.pacing.gathered_pays(self._time.now_s):
            self._start(self._core.pacing.next_upload(self._time.now_s))
        self.go_on()

    def _take(self) -> None:
        pacing = self._core.pacing
        for partition in self._untold:
            pacing.append_seen(partition, self._time.now_s)
            self._tell_unread(self._core.led[partition])
        self._untold.clear()

    def _tell_unread(self, led: LedPartition) -> None:
        self._core.pacing.commit.appended(led.assignment.topic_id_partition, led.task.unread_bytes())

    def _read(self) -> None:
        reads = self._core.pacing.reads(self._time.now_s)
        if reads is None:
            return
        left = reads.budget_bytes
        for read in reads.reads:
            outcome = read.led.task.run(left, read.seen_s, self._time.now_s) if left > 0 else None
            left -= outcome.read_bytes if outcome is not None else 0
            self.do(self._core.read_done(read, outcome, self._time.now_s))
            if outcome is None:
                self._tell_unread(read.led)

    def _start(self, upload: Upload | None) -> None:
        if upload is not None:
            self._uploads += 1
            took_s = self._times.took_s(PUT_S, self._time.now_s)
            self._time.at(self._time.now_s + took_s, lambda: self._stored(upload))

    def _stored(self, upload: Upload) -> None:
        self._uploads -= 1
        sequence = self._sequence
        self._sequence += 1
        items = tuple(upload.items)
        entries = tuple(item.metadata_entry() for item in items)
        size = sum(len(item.records) for item in items)
        self._counts.put(size)
        segment_id = CombinedSegmentId(1, 1, sequence)
        self.metadata.object(segment_id, items, self._time.now_s)
        stored = UploadedSegment(segment_id, items, entries, size, self._time.now_s)
        actions = self._core.upload_stored(upload, stored, self._time.now_s)
        self._take()
        pacing = self._core.pacing
        pacing.stored(upload, sum(led.task.unread_bytes() for led in pacing.appended()), self._time.now_s)
        self.do(actions)
        self.go_on()

    def do(self, actions: Sequence[Action]) -> None:
        """Carry out the actions."""
        for action in actions:
            match action:
                case TellStored(segment):
                    self.followers.stored(segment)
                case TellLeftOut():
                    self.followers.look_again()
                case DeclareNotWanted(assignment, ranges):
                    self.metadata.not_wanted(assignment.topic_id_partition, ranges, self._time.now_s)

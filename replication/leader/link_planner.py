"""Decides about one Fetch response: send links, wait for links, or send the bytes unchanged.

Sans-IO: the leader proxy hands in the response and the time, and asks again whenever an upload finished, a mode changed
or the time of the last answer came. Rules:

- A batch is linked only if the index holds one with the same header prefix, so it equals the leader's.
- A response is sent with what is ready. If a partition's newest batches are not stored yet, only its stored ones are
  sent, or none this time: the follower asks again from there, as it does after a cut-off batch.
- Batches that were uploaded before the index began, or that it has forgotten, are looked up in `ReadAhead`.
- A partition waits for its links at most `wait_max_s`, over as many responses as it takes; then its bytes go inline.
- Bytes that go inline never wait for the links of others: a response is sent without these. Where bytes went inline
  lately, more may come, so a response that has only waiting ones is soon sent empty: the follower asks again.
- A batch without a digest is linked only if no digests are required. If one is met, nothing on its connection waits.
- In partitions where inline is cheaper, links are used only when they save enough (a follower that catches up, the
  first consumer of a partition that no other zone follows). No upload is waited for there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kafka_log.batch_digests import run_digest
from kafka_log.crc32c import Buffer, crc32c
from kafka_log.record_batch import HEADER_PREFIX_BYTES, BatchSpan, CorruptBatchError, scan_batches
from kafka_log.topic_partition import TopicIdPartition
from plugin.inline_reason import InlineReason
from replication.leader.link_index import LinkIndex, StoredBatch
from replication.leader.read_ahead import ReadAhead
from replication.wire.fetch_frame import CONSUMER_REPLICA_ID, FetchResponseView, RecordsField
from replication.wire.link import MAX_ITEMS, Cut, InlineBytes, LinkedResponse, Part, SegmentLink
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.core.led_views import LedPartitions


@dataclass(slots=True)
class PlannedField:
    """A records field being planned. `stored` is the run of its first batches that are in object storage."""

    records: RecordsField
    partition: TopicIdPartition
    batches: list[BatchSpan]
    mode: LinkMode
    stored: list[StoredBatch] = field(default_factory=list)
    gave_up: bool = False
    """It has waited as long as it may, so its bytes go inline in this response."""

    @property
    def linked_bytes(self) -> int:
        """The bytes that links would replace."""
        return self.batches[len(self.stored) - 1].end - self.batches[0].start if self.stored else 0


@dataclass(frozen=True, slots=True)
class SendLinked:
    """A decision: send this linked response instead of the frame."""

    response: LinkedResponse
    linked: tuple[tuple[TopicIdPartition, int, int], ...]
    """(partition, next offset after the linked batches, bytes)."""
    inline: tuple[tuple[TopicIdPartition, int], ...]
    """(partition, bytes) that stay in the response."""
    left_out: tuple[tuple[TopicIdPartition, int], ...] = ()
    """(partition, bytes) that are only in the original: the follower asks for them again."""


def with_links(
    frame: Buffer, fields: Sequence[PlannedField], waiting: set[TopicIdPartition], digests: bool = False
) -> SendLinked:
    """Return the response with links in place of stored batches.

    Partitions in `waiting`, which have no stored batch yet, get an empty records field. `digests`: links carry a
    digest.

    A link names a run of adjacent batches in one object. Its CRC32C is taken over the bytes that the leader's broker
    returned for them; its SHA-256 comes from the batches as they were read from the leader's own log, when they were
    stored or found again.
    """
    cuts: list[Cut] = []
    skeleton: list[Buffer] = []
    linked: list[tuple[TopicIdPartition, int, int]] = []
    inline: list[tuple[TopicIdPartition, int]] = []
    left_out: list[tuple[TopicIdPartition, int]] = []
    frame = memoryview(frame)
    position = skeleton_bytes = 0
    for planned in fields:
        records = planned.records
        if not planned.stored and planned.partition not in waiting:
            inline.append((planned.partition, records.records_end - records.records_start))
            continue
        parts = _links(frame, planned, digests)
        if planned.stored:
            last = planned.batches[len(planned.stored) - 1]
            linked.append((planned.partition, last.last_offset + 1, planned.linked_bytes))
            rest = frame[last.end : planned.batches[-1].end]  # the reader ignores a batch that is cut off
            if planned.mode is LinkMode.INLINE and len(rest):
                parts.append(InlineBytes(rest))
                inline.append((planned.partition, len(rest)))
        skeleton.append(frame[position : records.length_start])
        skeleton_bytes += records.length_start - position
        position = records.records_end
        cut = Cut(skeleton_bytes, tuple(parts))
        cuts.append(cut)
        if left := records.records_end - records.records_start - cut.length:
            left_out.append((planned.partition, left))
    skeleton.append(frame[position:])
    response = LinkedResponse(len(frame), tuple(cuts), tuple(skeleton))
    return SendLinked(response, tuple(linked), tuple(inline), tuple(left_out))


def _links(frame: memoryview, planned: PlannedField, digests: bool) -> list[Part]:
    """Return one link for each run of batches that are adjacent in one object."""
    links: list[Part] = []
    stored, first = planned.stored, 0
    for index in range(1, len(stored) + 1):
        if index < len(stored) and _adjoin(stored[index - 1], stored[index]):
            continue
        run = frame[planned.batches[first].start : planned.batches[index - 1].end]
        begin = stored[first]
        sha256 = run_digest([batch.sha256 for batch in stored[first:index]]) if digests else b""
        links.append(
            SegmentLink(begin.object_id, begin.start_position, len(run), crc32c(run), begin.custom_metadata, sha256)
        )
        first = index
    return links


def _adjoin(left: StoredBatch, right: StoredBatch) -> bool:
    return left.object_id == right.object_id and left.end_position == right.start_position


@dataclass(frozen=True, slots=True)
class WaitForUploads:
    """A decision: nothing can be linked yet; decide again after an upload, or at this (monotonic) time at the
    latest."""

    until_s: float
    partitions: tuple[TopicIdPartition, ...]
    """The partitions whose uploads are awaited."""


Verdict = WaitForUploads | SendLinked | None
"""None: send the frame unchanged."""


@dataclass(frozen=True, slots=True)
class PlannerLimits:
    """How long a partition waits for links, how much they must save where inline is cheaper, and what may be linked."""

    wait_max_s: float
    break_even_bytes: int
    digests: bool = False
    """Whether the follower's agent refuses links without a SHA-256."""


_INLINE_LATELY_S: Final = 1.0
_BESIDE_INLINE_S: Final = 0.02
"""Seconds that a response waits at most for links, if bytes went inline to the follower within the last second. The
broker reads what waits again each time."""


class LinkPlanner:
    """Plans the responses of one connection, one at a time, and remembers since when partitions wait."""

    def __init__(
        self, index: LinkIndex, led: LedPartitions, limits: PlannerLimits, older: ReadAhead | None = None
    ) -> None:
        self._index = index
        self._older = older
        self._led = led
        self._limits = limits
        self._waiting_since: dict[TopicIdPartition, float] = {}
        self._frame: Buffer = b""
        self._begun_s: float | None = None
        self._fields: list[PlannedField] = []
        self._size_bytes = 0
        self._met_what_is_not_taken = False
        self._has_inline = False
        """Whether the response has records beside those that are planned."""
        self._inline_s = -math.inf
        """When bytes last went inline."""

    def begin(self, frame: Buffer, view: FetchResponseView, follower_id: int) -> None:
        """Start planning a response. Partitions that this agent does not handle are left unchanged.

        `follower_id` is the reading broker's, or CONSUMER_REPLICA_ID if that is unknown.
        """
        self._frame = frame
        self._begun_s = None
        self._fields = []
        self._has_inline = False
        # One object combines the partitions, so their sum decides whether a link pays.
        self._size_bytes = sum(records.records_end - records.records_start for records in view.fields)
        for records in view.fields:
            if records.records_end == records.records_start or records.topic_id is None or records.error_code:
                continue
            partition = TopicIdPartition(records.topic_id, records.partition)
            try:
                batches = scan_batches(frame, records.records_start, records.records_end)
            except CorruptBatchError:  # an old message format, or a damaged batch: the follower's broker decides
                self._has_inline = True
                continue
            if not batches:
                continue
            mode = self._led.mode_of(partition)
            if mode is LinkMode.OFF:
                self._has_inline = True
            else:
                self._fields.append(PlannedField(records, partition, batches, mode))
                size = batches[-1].end - batches[0].start
                if follower_id != CONSUMER_REPLICA_ID:
                    self._led.fetched(follower_id, partition, batches[0].base_offset, size)

    @property
    def has_records(self) -> bool:
        """Whether the current response has record batches of partitions led here with the feature on."""
        return bool(self._fields)

    def decide(self, now_s: float) -> Verdict:
        """Return the decision about the current response, as of now."""
        if not self._fields:
            return None
        if self._begun_s is None:
            self._begun_s = now_s
            if self._has_inline or any(one.mode is LinkMode.INLINE for one in self._fields):
                self._inline_s = now_s
        for planned in self._fields:
            self._find_stored(planned)
        waiting = self._still_waiting(now_s, self._begun_s)
        if not self._links_pay():
            if not waiting or any(planned.gave_up for planned in self._fields):
                for planned in waiting:  # they are sent inline as well
                    del self._waiting_since[planned.partition]
                return None
            if now_s < (until_s := self._held_until_s(waiting, self._begun_s)):
                return WaitForUploads(until_s, tuple(one.partition for one in waiting))
        linked = with_links(self._frame, self._fields, {planned.partition for planned in waiting}, self._limits.digests)
        return linked if linked.response.items <= MAX_ITEMS else None

    def _held_until_s(self, waiting: Sequence[PlannedField], begun_s: float) -> float:
        """Return until when the response may be held back for the links of these fields."""
        if self._has_inline or len(waiting) < len(self._fields):
            return -math.inf
        until_s = min(self._waiting_since[one.partition] for one in waiting) + self._limits.wait_max_s
        return min(until_s, begun_s + _BESIDE_INLINE_S) if begun_s < self._inline_s + _INLINE_LATELY_S else until_s

    def why_inline(self, partition: TopicIdPartition) -> InlineReason:
        """Return the reason for which the partition's bytes go inline in the current response."""
        planned = next((one for one in self._fields if one.partition == partition), None)
        if planned is None or planned.mode is not LinkMode.LINK:
            return self._led.why_inline(partition)
        if planned.gave_up:
            return InlineReason.WAIT_TIMEOUT
        return InlineReason.DEFECT if self._met_what_is_not_taken else InlineReason.NOT_STORED

    def _find_stored(self, planned: PlannedField) -> None:
        """Extend the run of stored batches; it never shrinks while one response is planned."""
        find, frame = self._index.find, self._frame
        for batch in planned.batches[len(planned.stored) :]:
            header_prefix = frame[batch.start : batch.start + HEADER_PREFIX_BYTES]
            stored = find(planned.partition, batch.base_offset)
            if stored is None or stored.header_prefix != header_prefix:
                stored = self._older.find(planned.partition, batch.base_offset) if self._older is not None else None
                if stored is None or stored.header_prefix != header_prefix:
                    return
            if self._limits.digests and not stored.sha256:
                self._met_what_is_not_taken = True
                return
            planned.stored.append(stored)

    def _still_waiting(self, now_s: float, begun_s: float) -> list[PlannedField]:
        """Return the fields without links that still wait: their uploads are worth it and their time is not over."""
        waiting = []
        for planned in self._fields:
            if planned.stored or planned.gave_up or not self._is_worth_waiting(planned):
                self._waiting_since.pop(planned.partition, None)
                continue
            since = self._waiting_since.setdefault(planned.partition, begun_s)
            if now_s < since + self._limits.wait_max_s:  # the same sum that `decide` returns as the time to ask again
                waiting.append(planned)
            else:  # these bytes go inline now; `_led` says whether the next ones wait again
                del self._waiting_since[planned.partition]
                planned.gave_up = True
        return waiting

    def _is_worth_waiting(self, planned: PlannedField) -> bool:
        planned.mode = self._led.mode_of(planned.partition)
        if planned.mode is LinkMode.OFF or self._met_what_is_not_taken:
            return False
        partition, offset = planned.partition, planned.batches[0].base_offset
        if planned.mode is LinkMode.LINK and self._led.upload_expected(partition, offset):
            return True
        may_pay = planned.mode is LinkMode.LINK or self._size_bytes >= self._limits.break_even_bytes
        return may_pay and self._older is not None and self._older.expected(partition, offset)

    def _links_pay(self) -> bool:
        if any(planned.stored and planned.mode is LinkMode.LINK for planned in self._fields):
            return True
        return sum(planned.linked_bytes for planned in self._fields) >= self._limits.break_even_bytes

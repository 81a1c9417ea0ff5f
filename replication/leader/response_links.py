"""Replaces the records of one connection's responses by links, and says how long to wait for them. Sans-IO.

Any failure in here sends the original (`LinkDefects`): replication must continue when links cannot be planned. The
original of a linked response is kept, one at a time, until the reader's agent can no longer ask for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicIdPartition
from plugin.inline_reason import InlineReason
from replication.leader.leader_context import LeaderContext
from replication.leader.link_planner import LinkPlanner, PlannerLimits, SendLinked, WaitForUploads
from replication.leader.read_ahead import ReadAhead
from replication.wire.fetch_frame import FetchResponseView
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import encode_linked_response, records_of
from replication.wire.link_defects import LinkDefects
from replication.wire.memory_budget import MemoryBudget
from replication.wire.packed_message import TopicRecords
from replication.wire.peer_protocol import MessageKind, PeerCapabilities, decode_inline_request, next_number


@dataclass(frozen=True, slots=True)
class ToFollower:
    """A message to be sent to the follower's agent."""

    kind: MessageKind
    body: Sequence[Buffer]
    records: Sequence[TopicRecords] | None = field(default=(), compare=False)
    """Where in the body records are; None: nobody knows."""


class KeptResponse:
    """The original of one connection's last linked response, kept until it is no longer needed. Event loop only.

    It is dropped when other connections need the memory.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._kept: tuple[int, Buffer] | None = None
        self._let_go_of: int | None = None

    def keep(self, number: int, frame: Buffer) -> None:
        """Keep this original under its number, in place of the one before."""
        self.drop()
        self._kept = number, frame
        self._budget.keep(self, len(frame), self._let_go)

    def drop(self) -> None:
        """Forget the original: the follower's agent will not ask for it."""
        if self._kept is not None:
            self._budget.release_kept(self)
            self._kept = None

    def take(self, number: int) -> Buffer:
        """Return the original with this number."""
        if self._kept is None and self._let_go_of == number:
            raise ConnectionResetError("the response was not kept, as memory was short; the follower fetches it again")
        if self._kept is None or self._kept[0] != number:
            raise MalformedFrameError(0, f"no response {number} is kept")
        frame = self._kept[1]
        self.drop()
        return frame

    def _let_go(self) -> None:
        if self._kept is not None:
            self._let_go_of, self._kept = self._kept[0], None


class ResponseLinks:
    """Replaces records by links in the responses of one connection, one response at a time."""

    def __init__(
        self,
        context: LeaderContext,
        defects: LinkDefects,
        capabilities: PeerCapabilities,
        read_ahead: ReadAhead | None,
    ) -> None:
        """`read_ahead` finds what the link index does not hold; None: such batches go inline."""
        self._context = context
        self._defects = defects
        self._is_paused = False
        self._understands_links = PeerCapabilities.LINKS in capabilities
        self._read_ahead = read_ahead
        limits = PlannerLimits(
            context.limits.link_wait_max_s,
            context.limits.break_even_bytes,
            digests=PeerCapabilities.LINK_DIGESTS in capabilities,
        )
        self._planner = LinkPlanner(context.index, context.led, limits, read_ahead)
        self._kept = KeptResponse(context.budget)
        self._linked = 0
        """How many responses of this connection were linked: the number of the last one."""
        self._begun_s = 0.0
        self._is_waiting = False

    def arrived(self) -> None:
        """Drop the kept original, because the last linked response has arrived."""
        self._kept.drop()

    def may_be_sent(self, follower_id: int) -> bool:
        """Whether this follower's responses may be linked now; never in the own zone, where bytes cost nothing."""
        is_able = self._understands_links and not self._is_paused and not self._defects.links_held_off
        return is_able and not self._context.zones.is_own(follower_id)

    def control(self, kind: MessageKind, body: Buffer) -> Buffer | None:
        """Handle a message of the follower's agent. Returns the kept original if the agent requests that.

        Raises MalformedFrameError, ConnectionResetError.
        """
        metrics = self._context.metrics
        if kind is MessageKind.INLINE_REQUEST:
            try:
                frame = self._kept.take(decode_inline_request(body))
            except ConnectionResetError:
                metrics.fault("kept_response_let_go")
                raise
            metrics.fault("inline_requested_by_follower")
            return frame
        if kind not in (MessageKind.LINKS_PAUSED, MessageKind.LINKS_RESUMED):
            raise MalformedFrameError(0, f"{kind.name} from a reader's agent")
        self._is_paused = kind is MessageKind.LINKS_PAUSED
        metrics.fault("links_paused" if self._is_paused else "links_resumed")
        return None

    def begin(self, frame: Buffer, view: FetchResponseView, follower_id: int, received_s: float, now_s: float) -> bool:
        """Start with a response; returns False when it must be sent unchanged. All times are monotonic seconds."""
        self._begun_s, self._is_waiting = now_s, False
        try:
            self._planner.begin(frame, view, follower_id)
        except Exception as error:
            self._defects.record("planning", error)
            return False
        if self._planner.has_records:
            self._context.stage_times.observe("answered", now_s - received_s)
        return True

    def step(self, follower_id: int, now_s: float) -> SendLinked | WaitForUploads | None:
        """Return the response with links, or until when to wait for them at most; None to send it unchanged."""
        if not self.may_be_sent(follower_id):
            return None
        try:
            verdict = self._planner.decide(now_s)
            if isinstance(verdict, WaitForUploads):
                if not self._is_waiting:
                    self._context.led.links_wanted(verdict.partitions)
                self._is_waiting = True
                return verdict
        except Exception as error:
            self._defects.record("planning", error)
            return None
        if self._is_waiting:
            self._context.stage_times.observe("link_wait", now_s - self._begun_s)
            if verdict is None:
                self._context.metrics.fault("link_wait_timeout")
        return verdict

    def why_inline(self, partition: TopicIdPartition, follower_id: int) -> InlineReason:
        """Return the reason for which the partition's bytes go inline in this response."""
        if self._context.zones.is_own(follower_id):
            return InlineReason.OWN_ZONE
        if not self._understands_links:
            return InlineReason.NO_AGENT
        if self._is_paused:  # by its operator perhaps: if links are paused here as well, that is the reason
            here = self._context.led.why_inline(partition)
            return here if here is InlineReason.PAUSED_BY_OPERATOR else InlineReason.PAUSED
        return InlineReason.DEFECT if self._defects.links_held_off else self._planner.why_inline(partition)

    def message(self, sent: SendLinked, view: FetchResponseView, original: Buffer) -> ToFollower | None:
        """Encode a linked response to be sent, and keep its original. Returns None if the original is to be sent
        instead."""
        try:
            body = encode_linked_response(sent.response)
            records = records_of(sent.response, view.fields, body)
            is_old = self._read_ahead is not None and self._read_ahead.sent(sent.response, sent.linked)
        except Exception as error:
            self._defects.record("planning", error)
            return None
        self._linked = next_number(self._linked)
        self._kept.keep(self._linked, original)
        return ToFollower(MessageKind.LINKED_OLD if is_old else MessageKind.LINKED, body, records)

    def truncated(self, partition: TopicIdPartition) -> None:
        """Drop what was read ahead of the follower: it may be from the truncated part of the log."""
        if self._read_ahead is not None:
            self._read_ahead.forget(partition)

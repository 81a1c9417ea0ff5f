"""Links in the place of the records of one connection's responses, and the wait for them.

Whatever goes wrong in here sends the original (`LinkDefects`): that links cannot be planned is no reason not to
replicate.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicIdPartition
from replication.leader.catch_up import Announce, FollowerCatchUp
from replication.leader.leader_context import LeaderContext
from replication.leader.link_planner import LinkPlanner, PassThrough, PlannerLimits, SendLinked, WaitForUploads
from replication.wire.fetch_frame import FetchResponseView
from replication.wire.link import encode_linked_response
from replication.wire.link_defects import LinkDefects
from replication.wire.peer_protocol import MessageKind, PeerCapabilities


@dataclass(frozen=True, slots=True)
class LinkedMessage:
    """What to send in the place of a response, and what of it is linked."""

    kind: MessageKind
    body: list[Buffer]
    sent: SendLinked


class ResponseLinks:
    """Plans the responses of one connection, one at a time. Used from the event loop alone."""

    def __init__(
        self, context: LeaderContext, defects: LinkDefects, capabilities: PeerCapabilities, announce: Announce
    ) -> None:
        """`announce` tells the follower's agent what to read ahead of a broker that is far behind."""
        self._context = context
        self._defects = defects
        self._is_paused = False
        self._capabilities = capabilities
        self._catch_up: FollowerCatchUp | None = None
        if context.catch_up is not None and PeerCapabilities.LINKS in capabilities:
            self._catch_up = FollowerCatchUp(context.catch_up, announce, context.uploads.notify, capabilities)
        limits = PlannerLimits(context.limits.link_wait_max_s, context.limits.break_even_bytes)
        self._planner = LinkPlanner(context.index, context.led, limits, self._catch_up.plan if self._catch_up else None)

    @property
    def are_given(self) -> bool:
        """Whether responses may be linked now."""
        return PeerCapabilities.LINKS in self._capabilities and not self._is_paused and not self._defects.links_rest

    def paused(self, *, paused: bool) -> None:
        """The peer wants none for now, or wants them again."""
        self._is_paused = paused
        self._context.metrics.fault("links_paused" if paused else "links_resumed")
        self._context.uploads.notify()

    async def planned(
        self, frame: Buffer, view: FetchResponseView, received_s: float, follower_id: int, is_gone: Callable[[], bool]
    ) -> SendLinked | None:
        """The response with links, waiting for them while that is worth it; None to send it as it is."""
        with self._defects.survived("planning"):
            self._planner.begin(frame, view, follower_id)
            if self._planner.has_records:
                self._context.stage_times.observe("answered", self._context.clock() - received_s)
            return await self._waited_for(is_gone)
        return None

    async def _waited_for(self, is_gone: Callable[[], bool]) -> SendLinked | None:
        context = self._context
        started_s = context.clock()
        waited = False
        while self.are_given and not is_gone():
            verdict = self._planner.decide(context.clock())
            self._begin_reads()
            if isinstance(verdict, WaitForUploads):
                if not waited:
                    context.led.links_wanted(verdict.partitions)
                waited = True
                await context.uploads.wait(verdict.until_s - context.clock())
                continue
            if waited:
                context.stage_times.observe("link_wait", context.clock() - started_s)
                if isinstance(verdict, PassThrough):
                    context.metrics.fault("link_wait_timeout")
            return verdict if isinstance(verdict, SendLinked) else None
        return None

    def _begin_reads(self) -> None:
        if self._catch_up is not None:
            self._catch_up.begin_reads()

    def message(self, sent: SendLinked) -> LinkedMessage | None:
        """It is about to be sent; None to send the original."""
        with self._defects.survived("planning"):
            body = encode_linked_response(sent.response)
            is_old = self._catch_up is not None and self._catch_up.plan.sent(sent)
            self._begin_reads()
            is_told = is_old and PeerCapabilities.CATCH_UP in self._capabilities
            return LinkedMessage(MessageKind.LINKED_OLD if is_told else MessageKind.LINKED, body, sent)
        return None

    def truncated(self, partition: TopicIdPartition) -> None:
        """What was read ahead of the follower may be of a log that is none any more."""
        if self._catch_up is not None:
            self._catch_up.plan.forget(partition)

    def close(self) -> None:
        """The connection ended."""
        if self._catch_up is not None:
            self._catch_up.close()

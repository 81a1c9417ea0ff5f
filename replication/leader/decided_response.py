"""A response that may wait for uploads, until it is decided how it goes on."""

from collections.abc import Callable
from typing import Protocol

from kafka_log.crc32c import Buffer
from replication.leader.leader_context import LeaderContext
from replication.leader.link_planner import WaitForUploads
from replication.leader.relay_core import ToFollower
from replication.wire.framed_connection import FramedConnection


class ResponseCore(Protocol):
    """As `RelayCore`."""

    def response(self, frame: Buffer, now_s: float) -> ToFollower | WaitForUploads:
        """What to send in its place; or when to `look_again`, before the next response."""

    def look_again(self, now_s: float) -> ToFollower | WaitForUploads:
        """As `response`, of the one that waits."""


async def decided(
    core: ResponseCore,
    frame: Buffer,
    context: LeaderContext,
    peer: FramedConnection,
    begin_reads: Callable[[], None],
    send: Callable[[ToFollower], None] | None = None,
) -> ToFollower:
    """What to send to `peer`. `begin_reads` is called whenever the core may have found what to read.

    `send` does it: what waited for an upload then goes in the very turn of the event loop in which that was announced.
    Raises ConnectionResetError when the peer is gone meanwhile, and what the core raises.
    """
    clock = context.clock
    step = core.response(frame, clock())
    begin_reads()
    if isinstance(step, WaitForUploads):
        return await _waited_for(core, step, context, peer, begin_reads, send)
    if send is not None:
        send(step)
    return step


async def _waited_for(
    core: ResponseCore,
    wait: WaitForUploads,
    context: LeaderContext,
    peer: FramedConnection,
    begin_reads: Callable[[], None],
    send: Callable[[ToFollower], None] | None,
) -> ToFollower:
    clock = context.clock
    found: list[ToFollower] = []

    def look() -> float | None:
        if peer.error is not None:
            raise ConnectionResetError("the reader's agent is gone")
        step = core.look_again(clock())
        begin_reads()
        if isinstance(step, WaitForUploads):
            return step.until_s - clock()
        if send is not None:
            send(step)
        found.append(step)
        return None

    await context.uploads.until(look, wait.until_s - clock())
    return found[0]

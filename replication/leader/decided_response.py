"""Waits with a response until its uploads are stored or its time is over."""

from collections.abc import Callable
from typing import Protocol

from kafka_log.crc32c import Buffer
from replication.leader.leader_context import LeaderContext
from replication.leader.link_planner import WaitForUploads
from replication.leader.relay_core import ToFollower
from replication.wire.framed_connection import FramedConnection


class ResponseCore(Protocol):
    """The part of `RelayCore` that handles responses."""

    def response(self, frame: Buffer, now_s: float) -> ToFollower | WaitForUploads:
        """Return the message to send instead, or until when to wait for `look_again`, before the next response."""

    def look_again(self, now_s: float) -> ToFollower | WaitForUploads:
        """Decide again about the response that waits."""


async def decided(
    core: ResponseCore,
    frame: Buffer,
    context: LeaderContext,
    peer: FramedConnection,
    begin_reads: Callable[[], None],
    send: Callable[[ToFollower], None] | None = None,
) -> ToFollower:
    """Return the message to send to `peer`. `begin_reads` is called whenever the core may have found something to read.

    If `send` is given, it sends the message: a response that waited for an upload then goes out in the same turn of the
    event loop as the announcement. Raises ConnectionResetError when the peer is gone meanwhile, and what the core
    raises.
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

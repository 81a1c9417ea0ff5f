"""Tells a leader's agent when to send links and when to stop."""

import contextlib

from replication.follower.follower_context import FollowerContext
from replication.wire.link_defects import LinkDefects
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import MessageKind


class LinksWanted:
    """The state of one connection."""

    def __init__(
        self, context: FollowerContext, defects: LinkDefects, channel: PeerChannel, *, is_told_ahead: bool
    ) -> None:
        """`is_told_ahead`: objects are announced on this connection, so an announced range probes a store that failed.

        Otherwise the next response does.
        """
        self._context = context
        self._defects = defects
        self._channel = channel
        self._is_told_ahead = is_told_ahead
        self._are_paused = False
        self.newest: bytes | None = None
        """The custom metadata of the leader's newest object; None before the first one."""

    def given(self, custom_metadata: bytes) -> None:
        """Record a link to an object with this custom metadata."""
        if not self._is_told_ahead:
            self.newest = custom_metadata

    def tell(self) -> None:
        """Tell the leader's agent if the answer has changed."""
        tiers, now_s = self._context.hydration.tiers, self._context.clock()
        given_up = tiers.is_given_up(self.newest) if self._is_told_ahead else tiers.rest(self.newest, now_s)
        paused = given_up or self._defects.links_rest
        if paused is not self._are_paused:
            self._are_paused = paused
            with contextlib.suppress(ConnectionError):
                self._channel.send(MessageKind.LINKS_PAUSED if paused else MessageKind.LINKS_RESUMED)

"""Whether a leader's agent is to send links: it is told when that changes."""

import contextlib

from replication.follower.follower_context import FollowerContext
from replication.wire.link_defects import LinkDefects
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import MessageKind


class LinksWanted:
    """Of one connection."""

    def __init__(
        self, context: FollowerContext, defects: LinkDefects, channel: PeerChannel, *, is_told_ahead: bool
    ) -> None:
        """`is_told_ahead`: objects are announced, so that one of them can be the probe of a store that failed; else it
        is the next response that is.
        """
        self._context = context
        self._defects = defects
        self._channel = channel
        self._is_told_ahead = is_told_ahead
        self._are_paused = False
        self.newest: bytes | None = None
        """The custom metadata of the leader's newest object; None before one was told of."""

    def given(self, custom_metadata: bytes) -> None:
        """A link came, to an object of this one."""
        if not self._is_told_ahead:
            self.newest = custom_metadata

    def tell(self) -> None:
        """Look whether that has changed."""
        tiers, now_s = self._context.hydration.tiers, self._context.clock()
        given_up = tiers.is_given_up(self.newest) if self._is_told_ahead else tiers.rest(self.newest, now_s)
        paused = given_up or self._defects.links_rest
        if paused is not self._are_paused:
            self._are_paused = paused
            with contextlib.suppress(ConnectionError):
                self._channel.send(MessageKind.LINKS_PAUSED if paused else MessageKind.LINKS_RESUMED)

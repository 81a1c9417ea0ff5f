"""Passes bytes between two connections, in both directions.

What one end has received is sent by the other in order, or the other is closed. An end is not read while the other has
more than `HIGH_WATER_BYTES` to send, so a slow peer slows down the fast one and fills no memory. If both connections
are plain TCP, the end of one direction is passed on (half-close). TLS ends both directions at once, so there it ends
the relay once what was received has been sent.

No task runs for a direction: the event loop's own calls carry the bytes. `ByteRelay.run` only waits for the end.
"""

import asyncio
from typing import cast

CHUNK_BYTES = 32 * 1024
HIGH_WATER_BYTES = 32 * 1024
_FLUSH_S = 10.0
"""How long a closed end may still send what it has."""


class RelayEnd(asyncio.BufferedProtocol):
    """One of the two connections of a relay. Until it is joined to the other, it keeps one chunk and reads no more."""

    _chunk = memoryview(bytearray(CHUNK_BYTES))
    """Shared by all, as the event loop fills it and calls `buffer_updated` at once. A view: it is filled by slices."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._other: RelayEnd | None = None
        self._early: list[bytes] = []
        self._has_ended = False
        """The peer sends nothing more."""
        self._is_finished = False
        """Nothing more is to be sent to the peer."""
        self.bytes_received = 0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the connection is gone."""

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start with a new connection. The event loop calls this."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive into. The event loop calls this."""
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        """Handle bytes that were received into the buffer. The event loop calls this."""
        self.bytes_received += nbytes
        chunk = bytes(self._chunk[:nbytes])
        if self._other is not None:
            self._other.send(chunk)
        else:
            self._early.append(chunk)
            self.hold(True)

    def eof_received(self) -> bool:
        """Handle that the peer has sent everything. The event loop calls this.

        Returns whether the connection stays open for sending.
        """
        self._has_ended = True
        if self._other is not None:
            self._other.finish()
        if self._is_finished or self._transport is None:
            return False
        return self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other end as well, because this connection ended. The event loop calls this."""
        self._has_ended = self._is_finished = True
        self.lost.set_result(None)
        if self._other is not None:
            self._other.close()

    def pause_writing(self) -> None:
        """Pause the other end's receiving, because the peer does not keep up. The event loop calls this."""
        if self._other is not None:
            self._other.hold(True)

    def resume_writing(self) -> None:
        """Resume the other end's receiving, because the peer keeps up again. The event loop calls this."""
        if self._other is not None:
            self._other.hold(False)

    def hold(self, paused: bool) -> None:
        """Pause or resume receiving; the other end of a pair calls this."""
        transport = self._transport
        # A transport that has reached its end would report it again.
        if transport is not None and not transport.is_closing() and not self._has_ended:
            transport.pause_reading() if paused else transport.resume_reading()

    # The relay's side.

    def join(self, other: "RelayEnd") -> None:
        """Send to `other` all that this end receives, and what it has received already."""
        self._other = other
        for chunk in self._early:
            other.send(chunk)
        self._early.clear()
        self.hold(False)
        if self.lost.done():
            other.close()
        elif self._has_ended:
            other.finish()

    def send(self, chunk: bytes) -> None:
        """Send a chunk, unless the connection is closed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(chunk)

    def finish(self) -> None:
        """Close the sending direction once everything was sent."""
        self._is_finished = True
        if self._transport is None or self._transport.is_closing():
            return
        if self._has_ended or not self._transport.can_write_eof():
            self.close()
        else:
            self._transport.write_eof()

    def close(self) -> None:
        """Close the connection once its data is sent, or after a time limit. Idempotent."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(_FLUSH_S, self._transport.abort)


class ByteRelay:
    """Relays bytes between two connections, in both directions."""

    def __init__(self, client: RelayEnd, broker: RelayEnd) -> None:
        self._ends = client, broker

    async def run(self, idle_s: float) -> bool:
        """Relay until both connections are closed.

        Returns False if both were closed because nothing had passed for `idle_s`; 0: no limit.
        """
        client, broker = self._ends
        client.join(broker)
        broker.join(client)
        ends = client.lost, broker.lost
        passed, was_used = -1, True
        try:
            while not all(end.done() for end in ends):
                if passed == (passed := client.bytes_received + broker.bytes_received):
                    was_used = False
                    self.close()
                await asyncio.wait(ends, timeout=idle_s if idle_s and was_used else None)
        finally:
            self.close()
        return was_used

    def close(self) -> None:
        """Close both ends once their data is sent. Idempotent."""
        for end in self._ends:
            end.close()

"""An agent of the follower's own zone that is played: it has read all that it is asked for, and gives it at once."""

import asyncio

from perf.fan_in.played_leaders import CLUSTER, NEIGHBOUR, PlayedLeaderError
from plugin.local_directory import LocalWalStorageManager
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import Hello, MessageKind, PeerCapabilities
from replication.wire.shared_reads import RangeRequest, encode_answer


class PlayedNeighbour:
    """In the event loop alone."""

    def __init__(self, storage: LocalWalStorageManager) -> None:
        self._storage = storage
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Address:
        """Where the agent finds it."""
        loop = asyncio.get_running_loop()

        def accepted(connection: FramedConnection) -> None:
            self._tasks.add(loop.create_task(self._serve(connection)))

        self._server = await loop.create_server(lambda: FramedConnection(on_connected=accepted), "127.0.0.1", 0)
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def _serve(self, connection: FramedConnection) -> None:
        await connection.read_frame()
        connection.write_frame(Hello(CLUSTER, NEIGHBOUR, 1, PeerCapabilities.RANGES).encode())
        channel = PeerChannel(connection)
        while (message := await channel.receive()) is not None:
            kind, body = message
            if kind is not MessageKind.RANGE_REQUEST:
                raise PlayedLeaderError(f"a neighbour is sent {kind.name}")
            request = RangeRequest.decode(body)
            data = self._storage.fetch_log_segment(request.segment_id, request.start, request.end)
            channel.send(MessageKind.RANGE, encode_answer(request.number, data), data)

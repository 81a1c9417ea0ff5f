"""The leader's side: other agents dial here, and behind it stands the local broker's own listener.

Requests go to the broker as they are, but for what a replica fetch waits for while much is uploaded (`FetchPatience`).
Responses come back untouched, except Fetch responses to a replica on a connection that began with a hello: there
`LinkPlanner` puts links in the place of record bytes that are in object storage.

A connection without a hello is relayed as it is (a follower without an agent), where that is permitted.
"""

import asyncio
import ssl

import structlog

from kafka_log.record_batch import HEADER_PREFIX_BYTES
from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import CombinedSegmentId
from replication.fetch_frame import (
    Buffer,
    MalformedFrameError,
)
from replication.framed_connection import FramedConnection
from replication.leader_relay import LeaderContext, LeaderRelay
from replication.link_index import StoredBatch
from replication.peer_connection import HELLO_TIMEOUT_S, Address, check_certificate, connect_framed
from replication.peer_protocol import (
    Hello,
    PeerRefusedError,
    agree,
    is_hello,
)
from replication.watermarks import WatermarkTimes
from rlm.combine_task import UploadedSegment

log = structlog.get_logger(__name__)


class LeaderProxy:
    """The peer listener. Also an UploadListener: what is stored becomes links and announcements here."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._relays: set[LeaderRelay] = set()
        self._watermarks = WatermarkTimes(context.stage_times)

    async def start(self, listener: Address, tls: ssl.SSLContext | None) -> None:
        """Listen for other agents. Raises OSError naming the address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, listener.host, listener.port, ssl=tls)

    def _accept(self) -> FramedConnection:
        limits = self._context.limits
        return FramedConnection(limits.max_frame_bytes, limits.frame_timeout_s, self._connected)

    def _connected(self, connection: FramedConnection) -> None:
        if len(self._tasks) >= self._context.limits.max_connections:
            self._context.measures.fault("too_many_connections")
            connection.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, peer: FramedConnection) -> None:
        broker = FramedConnection(self._context.limits.max_frame_bytes * 2, self._context.limits.frame_timeout_s)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                first = await peer.read_frame()
            if first is None:
                self._context.measures.connection_ended("peer", peer.error)
                return
            link_version = self._greet(peer, first) if is_hello(first) else None
            await connect_framed(self._context.broker, broker)
            relay = LeaderRelay(self._context, peer, broker, link_version, self._watermarks)
            self._relays.add(relay)
            try:
                await relay.run(None if is_hello(first) else first)
            finally:
                self._relays.discard(relay)
        except (PeerRefusedError, MalformedFrameError) as error:
            self._context.measures.fault("peer_refused")
            log.error("peer_refused", error=str(error))
        except TimeoutError:
            self._context.measures.fault("peer_silent")
        except OSError as error:
            self._context.measures.fault("broker_unreachable")
            log.warning("broker_unreachable", broker=str(self._context.broker), error=str(error))
        finally:
            peer.close()
            broker.close()

    def _greet(self, peer: FramedConnection, first: Buffer) -> int:
        """Answer a hello; the link version to use with this peer, 0 when it may be sent none."""
        hello = Hello.decode(first)
        check_certificate(peer, hello)
        link_version = agree(self._context.hello, hello)
        peer.write_frame(self._context.hello.encode())
        log.info("peer_accepted", follower=hello.broker_id, link_version=link_version)
        return link_version

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context.catch_up is not None:
            self._context.catch_up.close()

    def segment_deletion_started(self, segment_id: CombinedSegmentId) -> None:
        """Give no link to this object any more."""
        self._context.index.drop_object(segment_id)
        if self._context.catch_up is not None:
            self._context.catch_up.drop_object(segment_id)

    @property
    def replication_is_pending(self) -> bool:
        """Whether followers have yet to take something that is stored."""
        return self._watermarks.any_ahead

    # UploadListener.

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """List the batches, announce the segment to those who follow its partitions, and wake who waits."""
        for item, entry in zip(segment.items, segment.entries, strict=True):
            records, start = item.records, entry.start_file_position
            self._context.index.add(
                item.topic_id_partition,
                [
                    (
                        batch.base_offset,
                        StoredBatch(
                            bytes(records[batch.start : batch.start + HEADER_PREFIX_BYTES]),
                            segment.combined_segment_id,
                            start + batch.start,
                            start + batch.end,
                        ),
                    )
                    for batch in item.batches
                ],
            )
            self._watermarks.stored(item.topic_id_partition, item.last_offset + 1, item.seen_s)
        if self._context.catch_up is not None:
            self._context.catch_up.uploaded(segment.combined_segment_id)
        for relay in self._relays:
            relay.announce(segment)
        self._context.uploads.notify()
        self._context.stage_times.observe("announced", self._context.clock() - segment.stored_s)

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """Forget what is dead."""
        self._context.index.drop_from(partition, offset)
        if self._context.catch_up is not None:
            self._context.catch_up.drop_from(partition, offset)
        for relay in self._relays:
            relay.truncated(partition)

    def partition_released(self, partition: TopicIdPartition) -> None:
        """Forget the partition; whoever waits for its links looks again."""
        self._context.index.drop(partition)
        if self._context.catch_up is not None:
            self._context.catch_up.drop(partition)
        self._watermarks.drop(partition)
        for relay in self._relays:
            relay.forget(partition)
        self._context.uploads.notify()

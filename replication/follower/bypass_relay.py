"""Relays one connection of the local broker straight to the leader's broker, unchanged, as stock Kafka does.

Nothing else reports a broker that is refused on this route and therefore does not replicate. So the first Fetch and its
answer are checked.
"""

import structlog

from kafka_log.crc32c import Buffer
from replication.wire.broker_requests import BrokerRequests
from replication.wire.fetch_frame import FETCH_API_KEY, scan_fetch_response, understands_fetch
from replication.wire.frame_inbox import SIZE_PREFIX
from replication.wire.framed_connection import FramedConnection, run_until_one_ends
from replication.wire.kafka_frame import MalformedFrameError, RequestHeader, parse_request_header
from replication.wire.metrics import ReplicationMetrics

log = structlog.get_logger(__name__)

_REFUSALS = {29: "TOPIC_AUTHORIZATION_FAILED", 31: "CLUSTER_AUTHORIZATION_FAILED"}
"""Errors that a broker answers to a replica's Fetch without the right ClusterAction."""


_REQUESTS = 0
"""Index of the requests task: if it ended first, the local broker closed the connection, not the leader's."""


class BypassRelay:
    """Relays until either side ends."""

    def __init__(
        self,
        leader_id: int,
        broker: FramedConnection,
        leader: FramedConnection,
        metrics: ReplicationMetrics,
        requests: BrokerRequests,
    ) -> None:
        """`broker` is the local broker; `leader` is connected and logged in. Only `requests` may pass."""
        self._leader_id = leader_id
        self._broker = broker
        self._leader = leader
        self._metrics = metrics
        self._requests = requests
        self._first_fetch: RequestHeader | None = None
        self._asked = self._answered = self._looked = False

    async def run(self) -> None:
        """Relay until either side ends. Only an unexpected error is raised."""
        try:
            ended = await run_until_one_ends(self._relay_requests(), self._relay_responses())
            if self._asked and not self._answered and _REQUESTS not in ended:
                self._refused("bypass_refused", str(self._leader.error or "closed without an answer"))
        finally:
            self._metrics.connection_ended("broker", self._broker.error)
            self._metrics.connection_ended("bypass", self._leader.error)

    async def _relay_requests(self) -> None:
        while (frame := await self._broker.read_frame()) is not None:
            self._requests.check(frame)
            if not self._looked and self._first_fetch is None:
                self._first_fetch = _fetch_header(frame)
            self._asked = True
            self._leader.write_frame(frame)
            self._metrics.bypass.bytes.labels("sent").inc(SIZE_PREFIX.size + len(frame))
            await self._leader.drain()

    async def _relay_responses(self) -> None:
        while (frame := await self._leader.read_frame()) is not None:
            self._answered = True
            if self._first_fetch is not None:
                self._look(frame, self._first_fetch)
            self._broker.write_frame(frame)
            self._metrics.bypass.bytes.labels("received").inc(SIZE_PREFIX.size + len(frame))
            await self._broker.drain()

    def _look(self, frame: Buffer, request: RequestHeader) -> None:
        """Check whether the broker lets this principal replicate."""
        if int.from_bytes(bytes(frame[:4]), "big", signed=True) != request.correlation_id:
            return
        self._looked, self._first_fetch = True, None
        try:
            view = scan_fetch_response(frame, request.api_version)
        except MalformedFrameError:
            return  # the local broker decides about a malformed frame
        codes = {view.error_code, *(field.error_code for field in view.fields)} & _REFUSALS.keys()
        for code in sorted(codes)[:1]:
            self._refused("bypass_not_authorized", _REFUSALS[code])

    def _refused(self, reason: str, error: str) -> None:
        self._metrics.fault(reason)
        log.error(
            reason,
            leader=self._leader_id,
            error=error,
            hint="the listener in remote.wal.agent.bypass must take this agent, as a principal with ClusterAction",
        )


def _fetch_header(frame: Buffer) -> RequestHeader | None:
    try:
        header = parse_request_header(frame)
    except MalformedFrameError:
        return None
    return header if header.api_key == FETCH_API_KEY and understands_fetch(header.api_version) else None

"""Checks that a peer whose certificate names a broker fetches only as that broker's replica.

A peer that fetches as another broker's replica could make Kafka count records as replicated that are not: the high
watermark would be too high, and one crash could lose acknowledged records. So under TLS each Fetch is read up to its
replica id, however large it is. Large ones are read in steps, so that all other connections get their turn. A Fetch
version that is newer than this agent is counted, and read as the newest that it knows, because Kafka has only added
tagged fields since: if it names another replica, it is refused. A frame that cannot be read that way is passed on: the
broker may be newer, too, and must keep working.
"""

from collections.abc import Generator, Iterator

from kafka_log.crc32c import Buffer
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.fetch_frame import FETCH_API_KEY, MAX_FETCH_VERSION, replica_of
from replication.wire.kafka_frame import MalformedFrameError, parse_request_header
from replication.wire.metrics import ReplicationMetrics

ITEMS_IN_A_STEP = 1024
"""So many items take about two milliseconds."""
_FETCH = "Fetch"


class OwnFetches:
    """The check of one connection."""

    def __init__(self, broker_id: int | None, metrics: ReplicationMetrics) -> None:
        """`broker_id` is None if nothing is proven, so that nothing is checked."""
        self._broker_id = broker_id
        self._metrics = metrics

    def check(self, frame: Buffer) -> Iterator[None]:
        """Check step by step whether this request is the peer's own. Raises RequestRefusedError,
        MalformedFrameError.
        """
        if self._broker_id is None:
            return
        header = parse_request_header(frame)
        if header.api_key != FETCH_API_KEY:
            return
        is_newer = header.api_version > MAX_FETCH_VERSION
        if is_newer:
            self._metrics.fault("fetch_version_unknown")
        try:
            replica_id = yield from _in_steps(replica_of(frame, header.api_version))
        except RequestRefusedError:
            if is_newer:
                return
            raise
        if replica_id >= 0 and replica_id != self._broker_id:
            raise RequestRefusedError(_FETCH, f"a Fetch of replica {replica_id} from broker {self._broker_id}'s agent")


def _in_steps(walk: Generator[None, None, int]) -> Generator[None, None, int]:
    looked = 0
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return int(end.value)
        except MalformedFrameError as error:
            raise RequestRefusedError(_FETCH, f"a Fetch that does not say of which replica: {error}") from error
        looked += 1
        if looked % ITEMS_IN_A_STEP == 0:
            yield

"""A peer whose certificate names its broker fetches as this broker's replica, and as no other.

Who could fetch as another broker's replica would have Kafka take records for replicated that are not: a high watermark
that is ahead, and acknowledged records that one crash loses. So under TLS each Fetch is read up to who asks, however
large it is; large ones in steps, between which all other connections have their turn. A version of Fetch that is newer
than this agent is counted and read as the newest that it knows, as Kafka adds tagged fields since that one: who names
another replica in it is refused. What cannot be read so is passed on: the broker may be newer, too, and must go on.
"""

from collections.abc import Generator, Iterator

from kafka_log.crc32c import Buffer
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.fetch_frame import FETCH_API_KEY, MAX_FETCH_VERSION, replica_of
from replication.wire.kafka_frame import MalformedFrameError, parse_request_header
from replication.wire.metrics import ReplicationMetrics

ITEMS_IN_A_STEP = 1024
"""Some two milliseconds."""
_FETCH = "Fetch"


class OwnFetches:
    """Of one connection."""

    def __init__(self, broker_id: int | None, metrics: ReplicationMetrics) -> None:
        """None: nothing is proven, so nothing is asked for."""
        self._broker_id = broker_id
        self._metrics = metrics

    def check(self, frame: Buffer) -> Iterator[None]:
        """Whether this request is the peer's own, step by step. Raises RequestRefusedError, MalformedFrameError."""
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

"""Asks for the brokers' zones (`broker.rack`), as seldom as they change. Blocks; for a thread of its own."""

from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from kafka_cluster.answers import DescribedBroker
from kafka_cluster.errors import KafkaClusterError

log = structlog.get_logger(__name__)

_LOOK_S = 30.0
"""A broker's zone changes only with its restart."""
_UNKNOWN_S = 5.0
"""Used while a follower's zone was never seen, maybe because that broker is away."""


class BrokerRacks:
    """The zones of the living brokers. One caller at a time."""

    def __init__(self, brokers: Callable[[], Iterable[DescribedBroker]], clock: Callable[[], float]) -> None:
        """`brokers` as `KafkaCluster.brokers`; `clock` gives monotonic seconds."""
        self._brokers = brokers
        self._clock = clock
        self._seen: set[int] = set()
        self._asked_s = -_LOOK_S

    def look(self, wanted: Collection[int]) -> Mapping[int, str | None]:
        """Return the living brokers' zones by broker id, if it is time to ask; empty if it is not, or without an
        answer.

        `wanted` are the brokers whose zones matter.
        """
        since_s = self._clock() - self._asked_s
        if since_s < (_LOOK_S if self._seen.issuperset(wanted) else _UNKNOWN_S):
            return {}
        self._asked_s = self._clock()
        try:
            racks = {broker.broker_id: broker.rack for broker in self._brokers()}
        except KafkaClusterError as error:
            log.warning("zones_unknown", error=str(error), consequence="followers keep the zones that they had")
            return {}
        self._seen.update(racks)
        return racks

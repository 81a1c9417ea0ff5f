"""Asks the cluster what forbids answering consumers in a broker's place: quotas, and compacted topics.

While anything is unknown, it is forbidden. Use it in the event loop; the questions block in a thread.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import ClientQuota
from kafka_log.topic_partition import TopicId
from plugin.errors import defect_site
from plugin.hot_path.deadline import wait_at_most

log = structlog.get_logger(__name__)

ASK_S: Final = 5.0
"""The interval of questions while somebody wants to know."""
KNOWN_S: Final = 15.0
_SOON_S: Final = 0.2
_WANTED_S: Final = 60.0
_CONSUMERS_KEYS: Final = frozenset({"consumer_byte_rate", "request_percentage"})


@dataclass(frozen=True, slots=True)
class ServeRestrictions:
    """The cluster's quotas of consumers and its compacted topics."""

    quotas: Collection[ClientQuota]
    kept_whole: Collection[TopicId]
    """Topics that are not compacted."""


def limited_clients(quotas: Iterable[ClientQuota]) -> frozenset[str] | None:
    """Return the client ids that consumers' quotas name; None if a quota may apply to any client.

    A gateway does not know a client's user, so a quota of a user may apply to any client.
    """
    found: set[str] = set()
    for quota in quotas:
        if not quota.keys & _CONSUMERS_KEYS:
            continue
        client_id = quota.entity.get("client-id")
        if client_id is None or quota.entity.keys() != {"client-id"}:
            return None
        found.add(client_id)
    return frozenset(found)


class ClusterServePermission:
    """Decides by the cluster's quotas and topics whether the gateway may respond in a broker's place.

    Implements `ServePermission` of `gateway.serve.serving`. All times are monotonic seconds.
    """

    def __init__(self, ask: Callable[[Collection[TopicId]], ServeRestrictions], clock: Callable[[], float]) -> None:
        """`ask` asks the cluster, blocking, and raises KafkaClusterError. After any error it is called again."""
        self._ask = ask
        self._clock = clock
        self._wanted_s: dict[TopicId, float] = {}
        self._asked_about: frozenset[TopicId] = frozenset()
        self._kept_whole: frozenset[TopicId] = frozenset()
        self._limited: frozenset[str] | None = None
        self._known_until_s = float("-inf")
        self._wake = asyncio.Event()
        self._told = ""

    def has_quota(self, client_id: str, now_s: float) -> bool:
        """Whether a quota of consumers may apply to this client; True also while that is unknown."""
        return now_s >= self._known_until_s or self._limited is None or client_id in self._limited

    def is_kept_whole(self, topic_id: TopicId, now_s: float) -> bool:
        """Whether the topic is known not to be compacted."""
        self._wanted_s[topic_id] = now_s
        if topic_id not in self._asked_about or now_s >= self._known_until_s:
            self._wake.set()
        return topic_id in self._kept_whole and now_s < self._known_until_s

    async def run(self) -> None:
        """Ask the cluster until cancelled, while any consumer needs it."""
        while True:
            await wait_at_most(self._wake, ASK_S)
            self._wake.clear()
            now_s = self._clock()
            self._wanted_s = {one: at_s for one, at_s in self._wanted_s.items() if now_s - at_s < _WANTED_S}
            if self._wanted_s:
                has_responded = await self._look(frozenset(self._wanted_s), now_s)
                await asyncio.sleep(_SOON_S if has_responded else ASK_S)

    async def _look(self, topics: frozenset[TopicId], now_s: float) -> bool:
        """Ask the cluster about quotas and these topics. Returns whether it answered."""
        try:
            answer = await asyncio.to_thread(self._ask, topics)
            limited = limited_clients(answer.quotas)
        except Exception as error:  # whatever the error is, the answer is not known
            reason = str(error) if isinstance(error, KafkaClusterError) else defect_site(error)
            if self._told != reason:
                self._told = reason
                log.warning("quotas_not_known", reason=reason, consequence="brokers answer all consumers")
            return False
        self._told, self._asked_about = "", topics
        self._limited, self._kept_whole = limited, frozenset(answer.kept_whole)
        self._known_until_s = now_s + KNOWN_S
        return True

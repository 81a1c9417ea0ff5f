"""Who leads logs, and where these end, as far as consumers may read."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kafka_cluster.answers import UNKNOWN_TOPIC_OR_PARTITION
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import LATEST, KafkaCluster
from kafka_cluster.errors import KafkaClusterError


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where one partition's log ends, and who leads it."""

    leader_id: int
    """-1: none."""
    end_offset: int | None
    """Exclusive: the high watermark. None: nobody gives it now."""


class LogEnds:
    """Looks up leaders and ends of logs, by one client, made at the first call. Blocks. `look` is thread-safe."""

    def __init__(self, client: KafkaClientConfig, client_id: str, timeout_s: float = 5.0) -> None:
        self._cluster = KafkaCluster(client, client_id, timeout_s)

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition, -1 where there is none. Raises KafkaClusterError.

        Empty if there is no such topic.
        """
        listed = self._cluster.listing(topic).topics[topic]
        if listed.error_code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
            raise self._cluster.refused(f"list topic {topic}", listed.error_code)
        return {one.partition: one.leader_id for one in listed.partitions}

    def look(self, partitions: Mapping[str, Collection[int] | None]) -> dict[tuple[str, int], LogEnd]:
        """Return leader and end of the existing partitions, by topic and partition. Raises KafkaClusterError.

        None in place of a topic's partitions asks for all of them.
        """
        led: dict[tuple[str, int], int] = {}
        for topic, wanted in partitions.items():
            leaders = self.leaders(topic)
            led |= {(topic, one): leader for one, leader in leaders.items() if wanted is None or one in wanted}
        asked = self._cluster.offsets([where for where, leader in led.items() if leader >= 0], LATEST)
        ends = {where: end for where, end in asked.each() if not isinstance(end, KafkaClusterError)}
        return {where: LogEnd(leader, ends.get(where)) for where, leader in led.items()}

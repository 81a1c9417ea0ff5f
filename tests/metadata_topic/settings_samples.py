"""For every kind of value of the settings topic: a name, and two values."""

from collections.abc import Mapping
from typing import Any, Final

from kafka_log.topic_partition import TopicId
from metadata_topic.settings.settings_records import Balancer, LeaseValue, Pause, TailRequest, TailStored
from metadata_topic.settings.settings_table import (
    AGENTS,
    BALANCER,
    KINDS,
    LEASES,
    PATTERNS,
    PAUSES,
    RESTORED,
    TAIL_REQUESTS,
    TAILS_STORED,
    TOPICS,
    Kind,
    Place,
)
from metadata_topic.settings.topic_settings import AgentRegistration, LinkPolicy, TopicSettings
from metadata_topic.topic.topic_follower import TopicRecord

ORDERS_ID = TopicId(bytes(range(240, 256)))
DURABLE = TopicSettings(True, LinkPolicy.ALWAYS, 40, True, -2, durable=True, topic_id=ORDERS_ID)
AGENT = AgentRegistration(
    3, 77, "127.0.0.1:1", "1.0", 1_700_000_000_000, False, {"/data": "an-id"}, -2,
    gateway=("clients", "durable"), bypass_address="10.0.0.1:19096", zone="az-1",
)  # fmt: skip
PAUSE = Pause("anna@ops-1", 1_700_000_000_000, "store is slow")
BY_KIND: Final[Mapping[Kind[Any, Any], tuple[Any, Any, Any]]] = {
    TOPICS: ("orders", DURABLE, TopicSettings(enable=True)),
    PATTERNS: ("pay.*", TopicSettings(True, durable=True, origin="pattern pay.*"),
               TopicSettings(True, origin="pattern pay.*")),
    AGENTS: (3, AGENT, AgentRegistration(3, 78, "", "1.1", 0, is_gone=True)),
    PAUSES: ("zone:az-1", PAUSE, Pause("ben", 0)),
    LEASES: (3, (LeaseValue(1, "a"), LeaseValue(2, "b")), (LeaseValue(2, "b"),)),
    TAIL_REQUESTS: (("orders", 4), TailRequest("r", 10, 20), TailRequest("s", 11, 21)),
    TAILS_STORED: (("orders", 4), TailStored("r", 3, 10), TailStored("s", 4, 11)),
    BALANCER: ("cluster", Balancer("a", 1), Balancer("b", 7, (0.1, 0.2, 0.3), 50)),
    RESTORED: ("0f" * 16, 70, 80),
}  # fmt: skip
assert BY_KIND.keys() == set(KINDS), "each kind has values to test with"


def record(offset: int, kind: Kind[Any, Any], name: Any, value: Any, restored: Place | None = None) -> TopicRecord:
    """Return a record of the settings topic; without a value a tombstone."""
    return TopicRecord(0, offset, kind.key(name), None if value is None else kind.encode(value, restored))

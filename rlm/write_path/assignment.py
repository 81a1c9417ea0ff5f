"""Which partitions an agent is told to take care of."""

import math
from dataclasses import dataclass
from pathlib import Path

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition to take care of, as leadership, topic settings and log directories say together."""

    topic_id_partition: TopicIdPartition
    topic: str
    directory: Path
    link_policy: LinkPolicy
    latency_bound_ms: int
    archive: bool = False
    """Whether its records are to be merged into archive objects."""
    remote_followers: frozenset[int] | None = None
    """The brokers in other zones that follow it, or whose agents read it for consumers, by id; None: not known."""
    is_kept: bool = True
    """Whether its records are to be stored whether or not links pay: nothing else keeps them, or the archive or a
    recovery wants them."""
    object_life_s: float = 0.0
    """For how long they are stored where that is for links alone."""
    is_only_replica: bool = False
    """Whether no other broker has the log."""
    is_durable: bool = False
    """Whether producers wait until their records are stored: each is uploaded at once, and none is passed over."""
    upload_wait_max_s: float = math.inf
    """For how long what was appended may wait for more to share an object, where links by cost are used; the agent's
    bound holds beside."""

"""A partition that an agent uploads, with what its topic's settings and the cluster say about it."""

import math
from dataclasses import dataclass
from pathlib import Path

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition that this agent uploads: it is led here, its topic is enabled, and its log directory is known."""

    topic_id_partition: TopicIdPartition
    topic: str
    directory: Path
    link_policy: LinkPolicy
    latency_bound_ms: int
    """By how much links may hold records back at producers."""
    archive: bool = False
    """Whether its records are merged into archive objects."""
    remote_followers: frozenset[int] | None = None
    """Ids of the brokers in other zones that follow it, or whose agents read it for consumers; None if unknown."""
    is_kept: bool = True
    """Whether its records must be stored even if links do not pay, because nothing else keeps them, or because the
    archive or a recovery needs them."""
    object_life_s: float = 0.0
    """How long records are stored if that is only for links."""
    is_only_replica: bool = False
    """Whether no other broker has the log."""
    is_durable: bool = False
    """Whether producers wait until their records are stored: each is uploaded at once, and none is passed over."""
    is_bounded: bool = False
    """Whether the topic sets the bound itself: then upload and read must keep it, too."""
    upload_wait_max_s: float = math.inf
    """How long an append may wait for more to share an object if links are used by cost; the agent's limit applies as
    well."""

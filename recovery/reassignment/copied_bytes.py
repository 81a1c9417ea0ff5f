"""Estimates which part of a copied log can go by links, and which crosses zones inline. Sans-IO.

Objects hold what was uploaded within the WAL's retention, a log what was written within the local retention. The rate
of writing is unknown, so a steady rate is assumed. An archive has the rest.
"""

from dataclasses import dataclass

from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import NO_LIMIT, AgentsRetention


@dataclass(frozen=True, slots=True)
class TopicStorage:
    """The settings that decide about a topic's logs."""

    settings: TopicSettings | None
    """None if unknown or missing: nothing is linked."""
    local_retention_ms: int | None
    """None if unknown."""

    def inline_bytes(self, log_bytes: int, replicas: int, agents: AgentsRetention) -> int:
        """Return about how many bytes of such a log, with so many replicas meanwhile, are in no object any more."""
        if self.settings is None or not self.settings.enable or self.local_retention_ms is None:
            return log_bytes
        if self.settings.archive:
            return 0
        local_ms = self.local_retention_ms
        kept_ms = agents.shortest_of(self.settings, replicas, local_ms).retention_ms
        if kept_ms == local_ms:
            return 0
        if local_ms == NO_LIMIT:
            return log_bytes
        return round(log_bytes * (1 - kept_ms / local_ms))

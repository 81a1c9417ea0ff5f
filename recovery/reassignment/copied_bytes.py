"""What of a log that is copied to a new replica can go by links, and what crosses zone borders inline. Sans-IO.

Objects hold what was uploaded within the WAL's retention, a log what was written within the local retention. How fast
it was written is not known, so a steady rate is taken. An archive has the rest.
"""

from dataclasses import dataclass

from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import NO_LIMIT, AgentsRetention


@dataclass(frozen=True, slots=True)
class TopicStorage:
    """What decides about a topic's logs."""

    settings: TopicSettings | None
    """None where they are not known, or there are none: nothing is linked."""
    local_retention_ms: int | None
    """None where it is not known."""

    def inline_bytes(self, log_bytes: int, replicas: int, agents: AgentsRetention) -> int:
        """Of a log of so many bytes, with so many replicas meanwhile: about what is in no object any more."""
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

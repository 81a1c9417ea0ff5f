"""The topic settings that decide how a log is cut into segments and loses its head: the topic's, broker's or Kafka's.

Source: Kafka's `TopicConfig`, `ServerLogConfigs` and `ServerTopicConfigSynonyms`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metadata_topic.settings.wal_retention import is_tiered

_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
DEFAULT_SEGMENT_BYTES: Final = 1024**3
DEFAULT_SEGMENT_MS: Final = 168 * _HOUR_MS
DEFAULT_RETENTION_MS: Final = 168 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class LogSettings:
    """One topic's settings that matter for writing its log."""

    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    segment_ms: int = DEFAULT_SEGMENT_MS
    is_compacted: bool = False
    is_tiered: bool = False
    """Whether KIP-405 copies its segments, so that the log begins on the tier."""
    retention_ms: int | None = DEFAULT_RETENTION_MS
    """None: for ever."""
    stored_ms: int | None = None
    """How long its records are kept in combined segments; None: as in the log, as far as is known."""

    def horizon_ms(self, now_ms: int, *, is_start_known: bool = False) -> int | None:
        """Return the time before which stored records are not restored; None: all are.

        If the log's start is known, it shows what retention removed, and the time of upload does not matter.
        """
        kept_ms = [ms for ms in (None if is_start_known else self.retention_ms, self.stored_ms) if ms is not None]
        return now_ms - min(kept_ms) if kept_ms else None


def log_settings(topic: Mapping[str, str | None], broker: Mapping[str, str]) -> LogSettings:
    """Return a topic's settings. `topic` has the topic's own, or all effective ones; `broker` is server.properties.

    Raises ValueError when a value is no number.
    """
    told = topic.get("cleanup.policy"), broker.get("log.cleanup.policy")
    cleanup = next((policy for policy in told if policy is not None), "delete")  # an empty one deletes nothing
    retention_ms = _first_ms(
        topic.get("retention.ms"),
        (
            (broker.get("log.retention.ms"), 1),
            (broker.get("log.retention.minutes"), _MINUTE_MS),
            (broker.get("log.retention.hours"), _HOUR_MS),
        ),
        DEFAULT_RETENTION_MS,
    )
    is_deleted_by_age = "delete" in cleanup and retention_ms >= 0
    return LogSettings(
        segment_bytes=int(topic.get("segment.bytes") or broker.get("log.segment.bytes") or DEFAULT_SEGMENT_BYTES),
        segment_ms=_first_ms(
            topic.get("segment.ms"),
            ((broker.get("log.roll.ms"), 1), (broker.get("log.roll.hours"), _HOUR_MS)),
            DEFAULT_SEGMENT_MS,
        ),
        is_compacted="compact" in cleanup,
        is_tiered=is_tiered(topic),
        retention_ms=retention_ms if is_deleted_by_age else None,
    )


def _first_ms(topic_ms: str | None, broker: tuple[tuple[str | None, int], ...], default: int) -> int:
    """Return the first value that is set, in milliseconds; negative stays negative."""
    for text, unit_ms in ((topic_ms, 1), *broker):
        if text:
            return int(text) * unit_ms
    return default

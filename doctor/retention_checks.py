"""Reports how long the WAL keeps objects, and which topics could be recovered."""

from collections.abc import Mapping
from typing import Final

from doctor.facts import EnabledTopic, Facts, UnknownFactError, known
from doctor.findings import Level, Verdict, some_of
from metadata_topic.settings.wal_retention import NO_LIMIT

_UNITS_MS: Final = ((3_600_000, "h"), (60_000, "min"), (1000, "s"))


def wal_retention(facts: Facts) -> Verdict:
    """Report how long objects are kept, and what a recovery would lack of topics that Kafka keeps longer."""
    topics = known(facts.topics)
    unknown = sorted(name for name, topic in topics.items() if topic.kept is None)
    if unknown:
        raise UnknownFactError(f"the retention of {some_of(unknown)} is not known")
    short = {name: topic for name, topic in sorted(topics.items()) if _is_short(topic)}
    if growing := sorted(name for name, topic in topics.items() if topic.grows):
        return Verdict(
            Level.WARNING,
            f"objects of {some_of(growing)} are never deleted: the topic is compacted and not deleted by age, and "
            "objects hold what was written before compaction",
            "set remote.wal.retention.ms to a time in ms, add delete to cleanup.policy, or set -1 if that is meant",
        )
    if not short:
        return Verdict(Level.OK, f"{len(topics)} topics keep their objects for as long as local retention")
    found = [
        f"objects of {some_of(names)} are kept for {duration(kept_ms)}, with a replica out of sync for "
        f"{duration(lagging_ms)}: recover gives back no more than that"
        for (kept_ms, lagging_ms), names in _by_retention(short).items()
    ]
    longer = sorted(set(topics) - set(short))
    if longer:
        found.append(f"{some_of(longer)}: all of local retention, and what shares objects with them stays as long")
    return Verdict(
        Level.INFORMATION,
        "; ".join(found),
        "for all of local retention: remote-wal topics set --wal-retention-ms -2 TOPIC",
    )


def _is_short(topic: EnabledTopic) -> bool:
    """Whether brokers keep longer than objects; the archive has all of a log."""
    return topic.kept is not None and not topic.is_archived and topic.kept.retention_ms != topic.local_retention_ms


def _by_retention(topics: Mapping[str, EnabledTopic]) -> dict[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    for name, topic in topics.items():
        if topic.kept is not None:
            found.setdefault((topic.kept.retention_ms, topic.kept.lagging_ms), []).append(name)
    return found


def duration(ms: int) -> str:
    """Format a duration in the largest unit, up to hours, of which it is a whole number."""
    if ms == NO_LIMIT:
        return "of all time"
    return next((f"{ms // unit} {name}" for unit, name in _UNITS_MS if ms and ms % unit == 0), f"{ms} ms")

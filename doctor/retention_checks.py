"""Reports how long the WAL keeps objects, the monthly cost, and which topics could be recovered."""

from collections.abc import Mapping
from typing import Final

from doctor.facts import EnabledTopic, Facts, UnknownFactError, known
from doctor.findings import Level, Verdict, some_of
from metadata_topic.settings.wal_retention import NO_LIMIT
from plugin.prices import BYTES_PER_GB, DEFAULT_PRICES_FILE, PriceTable

_UNITS_MS: Final = ((3_600_000, "h"), (60_000, "min"), (1000, "s"))


def wal_retention(facts: Facts) -> Verdict:
    """Report how long objects are kept, what that costs, and what a recovery would lack of topics that Kafka keeps
    longer."""
    topics = known(facts.topics)
    unknown = sorted(name for name, topic in topics.items() if topic.kept is None)
    if unknown:
        raise UnknownFactError(f"the retention of {some_of(unknown)} is not known")
    short = {name: topic for name, topic in sorted(topics.items()) if _is_short(topic)}
    cost = _cost(facts, topics)
    if growing := sorted(name for name, topic in topics.items() if topic.grows):
        return Verdict(
            Level.WARNING,
            f"objects of {some_of(growing)} are never deleted: the topic is compacted and not deleted by age, and "
            f"objects hold what was written before compaction{cost}",
            "set remote.wal.retention.ms to a time in ms, add delete to cleanup.policy, or set -1 if that is meant",
        )
    if not short:
        return Verdict(Level.OK, f"{len(topics)} topics keep their objects for as long as local retention{cost}")
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
        "; ".join(found) + cost,
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


def _cost(facts: Facts, topics: Mapping[str, EnabledTopic]) -> str:
    """Return dollars a month, at a steady rate; nothing if no size is known. Raises PriceError."""
    shares = [share for topic in topics.values() if (share := _bytes_kept(topic)) is not None]
    if not shares:
        return ""
    section = facts.settings.storage.price_section
    prices = PriceTable.load(facts.settings.link.prices_file or DEFAULT_PRICES_FILE)
    gb_month = prices.store(section).storage_gb_month
    now, all_of_it = (sum(column) / BYTES_PER_GB for column in zip(*shares, strict=True))
    told = f". About {now:,.1f} GB in objects at a steady rate, ${now * gb_month:,.2f} a month ({section})"
    if now == all_of_it:
        return told
    return f"{told}; with -2 for all, {all_of_it:,.1f} GB and ${all_of_it * gb_month:,.2f}"


def _bytes_kept(topic: EnabledTopic) -> tuple[float, float] | None:
    """Return the bytes in objects, now and with -2; None if unknown. A log holds its local retention."""
    if topic.log_bytes is None or topic.kept is None or topic.local_retention_ms is None:
        return None
    if topic.kept.retention_ms == topic.local_retention_ms:
        return topic.log_bytes, topic.log_bytes
    if topic.local_retention_ms == NO_LIMIT:
        return None
    return topic.log_bytes * topic.kept.retention_ms / topic.local_retention_ms, topic.log_bytes


def duration(ms: int) -> str:
    """Format a duration in the largest unit, up to hours, of which it is a whole number."""
    if ms == NO_LIMIT:
        return "of all time"
    return next((f"{ms // unit} {name}" for unit, name in _UNITS_MS if ms and ms % unit == 0), f"{ms} ms")

"""Plans which agents of another zone read an object together: each zone's readers, and the ranges they want. Sans-IO.

If a zone has as many readers as the setting says, one of them reads for all. A reader counts if it gets the
announcement of the object now, which requires that it is connected and keeps up; so an agent that is gone is never
chosen. An agent whose zone is unknown, or that does not understand shared reads, reads for itself.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain

from plugin.segment_metadata import CombinedSegmentId
from replication.leader.zones import Zones
from replication.wire.peer_protocol import coalesce_ranges
from replication.wire.shared_reads import ZoneReading, in_order

Ranges = list[tuple[int, int]]


def zone_readings(
    segment_id: CombinedSegmentId, wanted: Mapping[int, Ranges], zones: Zones, min_readers: int, gap_bytes: int
) -> dict[int, ZoneReading]:
    """Return what to announce to each broker that reads together with others.

    `wanted` has the ranges of all agents that understand shared reads. At least two read together, also if
    `min_readers` is lower.
    """
    by_zone: defaultdict[str, list[int]] = defaultdict(list)
    for broker_id in wanted:
        zone = zones.of(broker_id)
        if zone is not None:
            by_zone[zone].append(broker_id)
    found: dict[int, ZoneReading] = {}
    for readers in by_zone.values():
        if len(readers) >= max(min_readers, 2):
            ranges = coalesce_ranges(list(chain.from_iterable(wanted[one] for one in readers)), gap_bytes)
            found |= dict.fromkeys(readers, ZoneReading(in_order(segment_id, readers), ranges))
    return found


def reads_for(brokers: Iterable[int], zones: Zones, min_readers: int) -> dict[int, int | str]:
    """Return which reader fetches an object for each of these brokers: itself, or its zone if that reads together."""
    zone_of = {broker_id: zones.of(broker_id) for broker_id in brokers}
    counts = Counter(zone_of.values())
    shares = max(min_readers, 2) if min_readers else float("inf")
    return {one: one if zone is None or counts[zone] < shares else zone for one, zone in zone_of.items()}

"""Which agents of other zones read an object together, sans-IO: each zone's readers, and what they want between them.

From so many readers in a zone on as the setting says, one of them reads for all. A reader is there if it is told of the
object now, as only who is connected and keeps up is; so who is gone is not chosen. One whose zone is not known, or that
does not understand, reads for itself.
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
    """What to tell each broker of those that read with others. `wanted` are the ranges of all that understand.

    At least two do, however few `min_readers` allows.
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
    """Of these brokers, which read an object: each by itself, or for its zone where that reads together."""
    zone_of = {broker_id: zones.of(broker_id) for broker_id in brokers}
    counts = Counter(zone_of.values())
    shares = max(min_readers, 2) if min_readers else float("inf")
    return {one: one if zone is None or counts[zone] < shares else zone for one, zone in zone_of.items()}

"""Counts what an agent has moved for clients since its start, in more detail than metrics: the basis of cost reports.

The counts are cumulative, and used in the event loop. At the gateway both ends are counted: what clients sent and got
would have crossed zones without the gateway; what passed between the agents did.
"""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class ZoneTraffic:
    """Bytes of one zone's clients, as `metadata_topic.records.usage_record.ClientZoneUsage` has them."""

    sent_bytes: int = 0
    sent_crossed_bytes: int = 0
    given_bytes: int = 0
    given_crossed_bytes: int = 0
    untold_bytes: int = 0
    near_bytes: int = 0


@dataclass(slots=True)
class RouterTraffic:
    """Answered requests for objects that gateways wrote for producers, and the bytes that they moved."""

    put: int = 0
    get: int = 0
    put_bytes: int = 0
    get_bytes: int = 0


@dataclass(slots=True)
class ClientTraffic:
    """The bytes that an agent has moved for clients: as their gateway, and beside their broker."""

    zone: str = ""
    """The zone of the clients that connect to this agent."""
    by_zone: defaultdict[str, ZoneTraffic] = field(default_factory=lambda: defaultdict(ZoneTraffic))
    router: RouterTraffic = field(default_factory=RouterTraffic)

    @property
    def own(self) -> ZoneTraffic:
        """The traffic of the clients that connect to this agent."""
        return self.by_zone[self.zone]

    def fetched(self, zone: str, size: int, has_replica: bool | None) -> None:
        """Count record bytes that the local broker sent to a consumer of another zone.

        `has_replica`: whether its zone has a replica of the partition; None if unknown.
        """
        if has_replica is None:
            self.by_zone[zone].untold_bytes += size
        elif has_replica:
            self.by_zone[zone].near_bytes += size

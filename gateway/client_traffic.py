"""What an agent has moved for clients since it started, told apart further than in metrics: the basis of cost reports.

Cumulative, and used in the event loop. Where clients come in, both ends are counted: what they sent and were given
would have crossed the border without the gateway; what passed between the agents did.
"""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class ZoneTraffic:
    """Bytes of one zone's clients, as `metadata_topic.records.client_usage_record.ClientZoneUsage` tells them."""

    sent_bytes: int = 0
    sent_crossed_bytes: int = 0
    given_bytes: int = 0
    given_crossed_bytes: int = 0
    untold_bytes: int = 0
    near_bytes: int = 0


@dataclass(slots=True)
class RouterTraffic:
    """Requests for objects of the RouterChannel that were answered, and the bytes that they moved."""

    put: int = 0
    get: int = 0
    put_bytes: int = 0
    get_bytes: int = 0


@dataclass(slots=True)
class ClientTraffic:
    """Of both of an agent's sides."""

    zone: str = ""
    """Whose clients come in by this agent."""
    by_zone: defaultdict[str, ZoneTraffic] = field(default_factory=lambda: defaultdict(ZoneTraffic))
    router: RouterTraffic = field(default_factory=RouterTraffic)

    @property
    def own(self) -> ZoneTraffic:
        """Of the clients that come in by this agent."""
        return self.by_zone[self.zone]

    def fetched(self, zone: str, size: int, has_replica: bool | None) -> None:
        """A consumer of another zone is given so many record bytes of the broker here; `has_replica` is whether its
        zone has one of their partition, None where that is not known.
        """
        if has_replica is None:
            self.by_zone[zone].untold_bytes += size
        elif has_replica:
            self.by_zone[zone].near_bytes += size

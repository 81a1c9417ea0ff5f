"""Makes the record of what an agent has moved for clients, which accompanies its usage record."""

from dataclasses import astuple
from typing import TYPE_CHECKING

from metadata_topic.records.usage_record import ClientUsageRecord, ClientZoneUsage, RouterUsage, UsageRecord

if TYPE_CHECKING:
    from gateway.client_traffic import ClientTraffic


def client_usage(beside: UsageRecord, traffic: "ClientTraffic", prices: str) -> ClientUsageRecord:
    """Return the record as of now. `prices` names the section of price tables of the agent's store."""
    return ClientUsageRecord(
        beside.broker_id,
        beside.incarnation,
        beside.sequence,
        beside.event_timestamp_ms,
        traffic.zone,
        prices,
        RouterUsage(*astuple(traffic.router)),
        tuple(ClientZoneUsage(zone, *astuple(moved)) for zone, moved in traffic.by_zone.items()),
    )

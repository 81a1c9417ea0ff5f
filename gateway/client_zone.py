"""Finds the zone of a client that uses one address for all zones. Sans-IO.

It is given by `zone=<zone>` in the client id, else by the network of its address, else it is the zone of the agent that
it asked. Metadata requests have no rack, so `client.rack` comes too late.
"""

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MARK: Final = "zone="


@dataclass(frozen=True, slots=True)
class ZoneRules:
    """The rules by which a client's zone is found: zone names in client ids, and networks."""

    own_zone: str
    zones: Collection[str]
    """The zones to which clients may be led, the own one among them."""
    networks: Mapping[Network, str]

    def zone_of(self, client_id: str, address: str) -> str:
        """Return a client's zone by its client id, or else by its address; one of `zones`."""
        for zone in (self._said(client_id), self._located(address)):
            if zone in self.zones:
                return zone
        return self.own_zone

    def _said(self, client_id: str) -> str:
        """Return the zone in the client id. Clients append their own words to the id, so the longest match counts."""
        _, mark, said = client_id.partition(_MARK)
        fitting = [
            zone for zone in self.zones if said.startswith(zone) and not said[len(zone) : len(zone) + 1].isalnum()
        ]
        return max(fitting, key=len, default="") if mark else ""

    def _located(self, address: str) -> str:
        try:
            where = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return ""
        if isinstance(where, ipaddress.IPv6Address) and where.ipv4_mapped is not None:
            where = where.ipv4_mapped
        found = [network for network in self.networks if where in network]
        return self.networks[max(found, key=lambda one: one.prefixlen)] if found else ""

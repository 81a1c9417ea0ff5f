"""Describes where a client's connection comes from, for the agent beside its broker."""

from dataclasses import dataclass
from typing import Final

from replication.wire.peer_protocol import Hello, PeerCapabilities

THROTTLED_MAX_S: Final = 600.0
"""How long a client's bytes wait for a broker that does not read them. A broker that throttles the client by a quota
does not read its connection meanwhile, and looks like one that hangs. Clients' own time-outs are shorter by default."""


@dataclass(frozen=True, slots=True)
class ClientSide:
    """Where a client's connection comes from: its zone, and the agent that relays it."""

    zone: str
    """The client's zone."""
    gateway: Hello
    """The hello of the agent through which the client came."""
    capabilities: PeerCapabilities
    """The capabilities that both agents have."""

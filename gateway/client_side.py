"""Where a client's connection comes from, as the agent beside its broker knows."""

from dataclasses import dataclass

from replication.wire.peer_protocol import Hello, PeerCapabilities


@dataclass(frozen=True, slots=True)
class ClientSide:
    """Of one connection."""

    zone: str
    """The client's."""
    gateway: Hello
    """As the agent said that the client came in by."""
    capabilities: PeerCapabilities
    """Of both agents."""

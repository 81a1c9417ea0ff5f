"""Where a client's connection comes from, as the agent beside its broker knows."""

from dataclasses import dataclass
from typing import Final

from replication.wire.peer_protocol import Hello, PeerCapabilities

THROTTLED_MAX_S: Final = 600.0
"""For how long what a client sends waits for a broker that does not read it: one that throttles the client by a quota
reads nothing of its connection meanwhile, and looks like one that hangs. Clients wait shorter by default.
"""


@dataclass(frozen=True, slots=True)
class ClientSide:
    """Of one connection."""

    zone: str
    """The client's."""
    gateway: Hello
    """As the agent said that the client came in by."""
    capabilities: PeerCapabilities
    """Of both agents."""

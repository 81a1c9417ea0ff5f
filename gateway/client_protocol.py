"""The messages between the agent of a client's zone and the agent beside a broker, before the client's frames. Sans-IO.

Both have said hello (`replication.wire.peer_protocol`), with CLIENTS. Then, framed as the hellos are:

    zone      UTF-8, the client's                                  gateway to the broker's agent
    answer    empty reason: connected; else why not, UTF-8         the broker's agent to the gateway

An answer begins with a byte that is 0 or 1, for connected or refused. After a connected one come the
client's frames and the broker's, until either end closes. The client's come first, because a Kafka broker sends nothing
without a request.
"""

from dataclasses import dataclass
from typing import Final

from kafka_log.crc32c import Buffer
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import Hello, PeerCapabilities

MAX_ZONE_BYTES = 255
MAX_MESSAGE_BYTES = 4096
THROTTLED_MAX_S: Final = 600.0
"""How long a client's bytes wait for a broker that does not read them. A broker that throttles the client by a quota
does not read its connection meanwhile, and looks like one that hangs. Clients' own time-outs are shorter by default."""
_CONNECTED, _REFUSED = b"\x00", b"\x01"


def encode_zone(zone: str) -> bytes:
    """Encode the client's zone as the payload of the first message, from its gateway."""
    return zone.encode()


def decode_zone(payload: Buffer) -> str:
    """Parse the client's zone from the first message. Raises MalformedFrameError."""
    if len(payload) > MAX_ZONE_BYTES:
        raise MalformedFrameError(0, f"a zone's name of {len(payload)} bytes")
    try:
        return bytes(payload).decode()
    except UnicodeDecodeError as error:
        raise MalformedFrameError(error.start, "a zone's name that is no UTF-8") from error


def encode_response(refused_because: str = "") -> bytes:
    """Encode the payload of the second message, to the gateway: why the client is refused; empty: it is connected."""
    return (_REFUSED if refused_because else _CONNECTED) + refused_because.encode()[: MAX_MESSAGE_BYTES - 1]


def decode_response(payload: Buffer) -> str:
    """Return why the client was refused, by the second message; empty if it is connected. Raises
    MalformedFrameError."""
    kind, reason = bytes(payload[:1]), bytes(payload[1:]).decode("utf-8", "replace")
    if kind not in (_CONNECTED, _REFUSED) or (kind == _REFUSED) != bool(reason):
        raise MalformedFrameError(0, "no answer to a client's connection")
    return reason


@dataclass(frozen=True, slots=True)
class ClientSide:
    """Where a client's connection comes from: its zone, and the agent that relays it."""

    zone: str
    """The client's zone."""
    gateway: Hello
    """The hello of the agent through which the client came."""
    capabilities: PeerCapabilities
    """The capabilities that both agents have."""

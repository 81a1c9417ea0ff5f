"""Logs the agent in at another broker before it relays the local broker's frames there (KIP-152).

Needed for listeners with SASL when the local broker speaks without SASL and therefore never logs in itself.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_protocol import PeerRefusedError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_HANDSHAKE_VERSION = 1
_AUTHENTICATE_VERSION = 1
_TIMEOUT_S = 5.0
_CLIENT_ID = "remote-wal-bypass"


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """Credentials and mechanism with which the agent logs in at brokers."""

    mechanism: str
    username: str
    password: str = field(repr=False)

    async def log_in(self, connection: FramedConnection) -> None:
        """Log in on this connection.

        Raises PeerRefusedError when the broker refuses, OSError (also TimeoutError) when it does not respond.
        """
        async with asyncio.timeout(_TIMEOUT_S):
            handshake = SaslHandshakeRequest(mechanism=self.mechanism, version=_HANDSHAKE_VERSION)
            answer = await _asked(connection, handshake, SaslHandshakeResponse)
            if answer.error_code:
                offered = ", ".join(answer.mechanisms)
                raise PeerRefusedError(f"the broker does not take SASL {self.mechanism}, but {offered}")
            exchange = get_sasl_mechanism(self.mechanism)(
                sasl_mechanism=self.mechanism, sasl_plain_username=self.username, sasl_plain_password=self.password
            )
            while not exchange.is_done():
                token = SaslAuthenticateRequest(auth_bytes=exchange.auth_bytes(), version=_AUTHENTICATE_VERSION)
                answer = await _asked(connection, token, SaslAuthenticateResponse)
                if answer.error_code:
                    raise PeerRefusedError(f"SASL {self.mechanism} for {self.username}: {answer.error_message}")
                _received(exchange, answer.auth_bytes)
        if not exchange.is_authenticated():
            raise PeerRefusedError(f"SASL {self.mechanism} for {self.username}: not authenticated")


def _received(exchange: Any, token: bytes) -> None:
    """Process the broker's token, which also authenticates the broker if the mechanism does that."""
    try:
        exchange.receive(token)
    except (ValueError, KeyError) as error:
        raise PeerRefusedError(f"the broker's side of the SASL login is wrong: {error}") from error


async def _asked(connection: FramedConnection, request: Any, response: Any) -> Any:
    request.with_header(correlation_id=0, client_id=_CLIENT_ID)
    connection.write_frame(bytes(request.encode(header=True)))
    frame = await connection.read_frame()
    if frame is None:
        raise ConnectionResetError("closed during the SASL login")
    try:
        return response.decode(bytes(frame), version=request.API_VERSION, header=True)
    except Exception as error:  # the codec's own errors are of many types
        raise PeerRefusedError(f"no answer of a broker to a SASL login: {type(error).__name__}") from error

"""The agent's own login past another agent: a broker's side by the RFCs, its frames by kafka-python's codec."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_protocol import PeerRefusedError
from replication.wire.sasl_login import SaslLogin
from tests.replication.fetch_frames import encode

SALT, ITERATIONS = b"salt", 4096
Exchange = Callable[[bytes], bytes | None]


def plain(token: bytes) -> bytes | None:
    """RFC 4616; None: refused."""
    return b"" if token == b"agent\0agent\0secret" else None


class Scram:
    """RFC 5802, the server's side, with SHA-256 (RFC 7677)."""

    def __init__(self, password: bytes = b"secret", knows_the_password: bool = True) -> None:
        self._salted = hashlib.pbkdf2_hmac("sha256", password, SALT, ITERATIONS)
        self._knows_the_password = knows_the_password
        self._first = b""
        self._challenge = b""

    def __call__(self, token: bytes) -> bytes | None:
        if not self._first:
            self._first = token.removeprefix(b"n,,")
            nonce = self._first.partition(b",r=")[2] + b"broker"
            self._challenge = b"r=%s,s=%s,i=%d" % (nonce, base64.b64encode(SALT), ITERATIONS)
            return self._challenge
        bare, _, proof = token.partition(b",p=")
        message = b",".join((self._first, self._challenge, bare))
        key = self._hmac(self._salted, b"Client Key")
        signature = self._hmac(hashlib.sha256(key).digest(), message)
        if base64.b64decode(proof) != bytes(one ^ other for one, other in zip(key, signature, strict=True)):
            return None
        server_key = self._hmac(self._salted, b"Server Key" if self._knows_the_password else b"a guess")
        return b"v=" + base64.b64encode(self._hmac(server_key, message))

    @staticmethod
    def _hmac(key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, hashlib.sha256).digest()


@asynccontextmanager
async def broker_with(mechanism: str, exchange: Exchange) -> AsyncIterator[FramedConnection]:
    """A connection to a broker that takes this mechanism, then echoes frames."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(connection: FramedConnection) -> None:
        frame = await connection.read_frame()
        if frame is None:
            return
        asked: Any = SaslHandshakeRequest.decode(bytes(frame), version=1, header=True)
        error = 0 if asked.mechanism == mechanism else 33
        connection.write_frame(encode(SaslHandshakeResponse(error_code=error, mechanisms=[mechanism], version=1), 0))
        while (frame := await connection.read_frame()) is not None:
            if bytes(frame) == b"a fetch":
                connection.write_frame(frame)
                continue
            token: Any = SaslAuthenticateRequest.decode(bytes(frame), version=1, header=True)
            answer = exchange(token.auth_bytes)
            told = SaslAuthenticateResponse(
                error_code=58 if answer is None else 0,
                error_message="Authentication failed" if answer is None else None,
                auth_bytes=answer or b"",
                session_lifetime_ms=0,
                version=1,
            )
            connection.write_frame(encode(told, 0))

    def connected(connection: FramedConnection) -> None:
        tasks.append(asyncio.create_task(serve(connection)))

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FramedConnection(on_connected=connected), "127.0.0.1", 0)
    connection = FramedConnection()
    try:
        await connect_framed(Address("127.0.0.1", server.sockets[0].getsockname()[1]), connection)
        yield connection
    finally:
        connection.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("mechanism", "exchange"), [("PLAIN", plain), ("SCRAM-SHA-256", Scram())])
async def test_after_the_login_frames_pass_as_on_any_connection(mechanism: str, exchange: Exchange) -> None:
    async with broker_with(mechanism, exchange) as connection:
        await SaslLogin(mechanism, "agent", "secret").log_in(connection)
        connection.write_frame(b"a fetch")
        assert await connection.read_frame() == b"a fetch"


@pytest.mark.parametrize(
    ("mechanism", "exchange", "told"),
    [
        ("PLAIN", lambda _token: None, "PLAIN for agent: Authentication failed"),
        ("SCRAM-SHA-256", Scram(b"another"), "SCRAM-SHA-256 for agent: Authentication failed"),
        ("SCRAM-SHA-256", Scram(knows_the_password=False), "wrong signature"),
        ("SCRAM-SHA-512", Scram(), "does not take SASL SCRAM-SHA-512, but SCRAM-SHA-256"),
    ],
)
async def test_a_login_that_either_side_refuses_is_told_without_the_password(
    mechanism: str, exchange: Exchange, told: str
) -> None:
    async with broker_with(mechanism.replace("512", "256"), exchange) as connection:
        with pytest.raises(PeerRefusedError, match=told) as caught:
            await SaslLogin(mechanism, "agent", "secret").log_in(connection)
        assert "secret" not in str(caught.value)

"""Dials a host at all of its addresses: one that is silent must not keep the next one from being tried."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)


async def connect(
    protocol: Callable[[], Protocol],
    host: str,
    port: int,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    handshake_timeout_s: float | None = None,
) -> Protocol:
    """Connect within the time, of which each address has an equal share, and the last one all that is left.

    `server_name` is whom the certificate must name, if not the host. Raises OSError, TimeoutError and ssl.SSLError
    among it: that of the address that was tried last.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        addresses = list(dict.fromkeys(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        for left, (family, _, _, _, where) in zip(range(len(addresses) - 1, -1, -1), addresses, strict=True):
            try:
                async with asyncio.timeout(timeout_s / len(addresses) if left else None):
                    _, connection = await loop.create_connection(
                        protocol,
                        str(where[0]),
                        int(where[1]),
                        family=family,
                        ssl=tls,
                        server_hostname=server_name or host if tls is not None else None,
                        ssl_handshake_timeout=handshake_timeout_s if tls is not None else None,
                    )
            except OSError as error:
                if not left or isinstance(error, ssl.SSLError):  # one that answers so is no silent one
                    raise
            else:
                return connection
    raise OSError(f"{host} has no address")

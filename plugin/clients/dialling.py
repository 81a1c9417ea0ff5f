"""Connects to a host at all of its addresses: a silent one must not prevent the next from being tried."""

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
    """Connect within the time. Each address gets an equal share of it, the last one all that is left.

    `server_name` is the name that the certificate must have, if not the host. Raises OSError, including TimeoutError
    and ssl.SSLError: the error of the last address.
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
                if not left or isinstance(error, ssl.SSLError):  # an address with a TLS error is not silent
                    raise
            else:
                return connection
    raise OSError(f"{host} has no address")

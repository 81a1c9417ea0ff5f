"""Connects to a host with several addresses: a silent one must not prevent the next from being tried.

There is time for two silent ones in a call. The next call begins with those that were not tried.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)

_SILENT_MAX: Final = 2
"""How many addresses a call may wait for: with more, the time for each would not be enough for TLS."""
_failures: Final = Counter[tuple[str, int]]()
"""How many addresses failed so far, by host and port, if a host has more than a call waits for. Only the remainder by
their number counts: the next call begins with the address after those that failed.
"""


async def connect(
    protocol: Callable[[], Protocol],
    host: str,
    port: int,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    handshake_timeout_s: float | None = None,
) -> Protocol:
    """Connect to a host within `timeout_s`. Of several addresses, each gets at most half of the time left, the last one
    all of it.

    `server_name` is the name that the certificate must have, if not the host. Raises OSError, including TimeoutError
    and ssl.SSLError: the error of the last address.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        addresses = list(dict.fromkeys(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        takes_turns = len(addresses) > _SILENT_MAX  # otherwise the resolver's order is kept
        first = _failures[host, port] % len(addresses) if takes_turns else 0
        addresses = addresses[first:] + addresses[:first]
        share_s = timeout_s / min(len(addresses) or 1, _SILENT_MAX)
        for left, (family, _, _, _, where) in zip(range(len(addresses) - 1, -1, -1), addresses, strict=True):
            try:
                async with asyncio.timeout(share_s if left else None):
                    _, connection = await loop.create_connection(
                        protocol,
                        str(where[0]),
                        int(where[1]),
                        family=family,
                        ssl=tls,
                        server_hostname=server_name or host if tls is not None else None,
                        ssl_handshake_timeout=handshake_timeout_s if tls is not None else None,
                    )
            except (OSError, asyncio.CancelledError) as error:
                if takes_turns:
                    _failures[host, port] += 1
                # An address with a TLS error is not silent.
                if not left or isinstance(error, ssl.SSLError | asyncio.CancelledError):
                    raise
            else:
                return connection
    raise OSError(f"{host} has no address")

"""Dials a host at all of its addresses: one that is silent must not keep the next one from being tried."""

import asyncio
import socket
from asyncio.staggered import staggered_race
from functools import partial
from typing import Any, Final

_NEXT_AFTER_S: Final = 0.25
"""How long an address is tried alone before the next one is tried as well (RFC 8305, section 5)."""


async def dialled(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first address to answer. The caller bounds the time in total.

    Raises OSError: that of the address that was tried last, if all fail.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    tries = [partial(_connected, family, kind, protocol, where) for family, kind, protocol, _, where in found]
    connected: socket.socket | None
    connected, _, errors = await staggered_race(tries, _NEXT_AFTER_S)
    if connected is None:
        raise next((one for one in reversed(errors) if one is not None), OSError(f"{host} has no address"))
    return connected


async def _connected(family: int, kind: int, protocol: int, where: Any) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    try:
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(one, where)
    except BaseException:
        one.close()
        raise
    return one

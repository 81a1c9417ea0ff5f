"""A separate process that leads clients of the broker's zone to the broker while its agent is dead.

The broker advertises an address to them at which the agent or the standby may listen. The standby listens while nobody
else does. Once the agent listens again, the standby stops: its connections end, and clients come through the agent.
Through the standby, clients get plain Kafka: acks=all is the broker's own. It leads nobody while a topic is durable,
because nothing would hold those answers, nor while that is not known. If a topic becomes durable while it leads, it
learns that within about `ASK_S`.
"""

import asyncio
import functools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from gateway.client_port import PassingPort
from replication.wire.peer_connection import Address
from replication.wire.peer_listener import News

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.25
ASK_S: Final = 5.0
"""A guess: the whole topic of settings is read to know whether a topic is durable."""
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"


async def stand_by(listener: Address, port: PassingPort, is_any_durable: Callable[[], bool]) -> None:
    """Connect clients of `listener` to the broker through `port`, while no agent listens and no topic is durable; until
    cancelled.

    `is_any_durable` blocks, and raises if that is unknown. Raises OSError if the address is not allowed, ssl.SSLError.
    """
    unable, clock = News(), asyncio.get_running_loop().time
    leads, ask_s = False, 0.0
    log.info("standby_watches", address=str(listener), does="listens there for clients while no agent does")
    asking: asyncio.Future[bool] | None = None
    try:
        while True:
            if listeners_at(listener) > (port.socket_count if leads else 0):
                if leads:
                    await port.stop()
                    log.warning("standby_rests", reason="the agent listens again")
                leads, asking, ask_s = False, None, 0.0
            elif asking is not None and asking.done():
                may, asking, ask_s = asking.result(), None, clock() + ASK_S
                if may and not leads:
                    await port.open(listener)
                    log.warning("standby_leads_clients", address=str(listener), reason="no agent listens there")
                elif leads and not may:
                    await port.stop()
                leads = may
            elif asking is None and clock() >= ask_s:
                asking = asyncio.ensure_future(asyncio.to_thread(_may_lead, is_any_durable, unable))
            await (asyncio.wait((asking,), timeout=LOOK_S) if asking is not None else asyncio.sleep(LOOK_S))
    finally:
        await port.stop()


def _may_lead(is_any_durable: Callable[[], bool], unable: News) -> bool:
    """Find out whether the standby may lead clients."""
    may, why = False, "a topic is durable, and nothing here holds answers"
    try:
        may = not is_any_durable()
    except Exception as error:  # whatever the error is, the answer is not known
        why = f"whether a topic is durable is not known: {error}"
    if may:
        unable.is_over()
    elif unable.is_new(why):
        log.error("standby_leads_nobody", reason=why)
    return may


def listeners_at(where: Address, tables: tuple[Path, ...] = _TABLES) -> int:
    """Count the sockets of this host that listen at this address, or at all addresses, by the kernel's tables."""
    wanted = _addresses(where)
    found = 0
    for table in filter(Path.exists, tables):  # a host without IPv6 has no table of it
        with table.open() as lines:
            next(lines, None)
            for line in lines:
                host, _, port = (fields := line.split())[1].partition(":")
                if fields[3] != _LISTENS:
                    break
                found += int(port, 16) == where.port and (host in wanted or not int(host, 16))
    return found


@functools.cache  # the event loop asks several times a second, and a resolver may block
def _addresses(where: Address) -> frozenset[str]:
    asked = socket.getaddrinfo(where.host or None, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return frozenset(_as_told(socket.inet_pton(family, str(address[0]))) for family, *_, address in asked)


def _as_told(packed: bytes) -> str:
    """Return an address as in these tables: words of four bytes, each with the lowest byte first."""
    return "".join(packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4))

"""Talks to a service manager: takes its sockets and reports state, by systemd's protocols without its library.

Sockets come as descriptors from 3 on, counted in LISTEN_FDS and named in LISTEN_FDNAMES, only for the process
LISTEN_PID (sd_listen_fds(3)). The state goes as a datagram to NOTIFY_SOCKET (sd_notify(3)). Without these variables
there are no sockets, and nothing is reported.
"""

import asyncio
import faulthandler
import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import TextIO

import structlog

from replication.wire.peer_connection import Address, Listener

log = structlog.get_logger(__name__)

_FIRST_DESCRIPTOR = 3
_MICROSECONDS = 1_000_000


class ListeningSockets:
    """The listening sockets from the service manager, until they are taken by name or by address."""

    def __init__(self, sockets: list[tuple[str, socket.socket]]) -> None:
        self._left = sockets

    @classmethod
    def handed_over(cls, environment: MutableMapping[str, str], pid: int) -> "ListeningSockets":
        """Return this process's sockets by its environment variables, and remove those: they are not for child
        processes."""
        told = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
        if told["LISTEN_PID"] != str(pid) or not told["LISTEN_FDS"].isdecimal():
            return cls([])
        names = told["LISTEN_FDNAMES"].split(":")
        sockets = []
        for index in range(int(told["LISTEN_FDS"])):
            descriptor = _FIRST_DESCRIPTOR + index
            os.set_inheritable(descriptor, False)
            listening = socket.socket(fileno=descriptor)
            listening.setblocking(False)
            sockets.append((names[index] if index < len(names) else "", listening))
        return cls(sockets)

    def take(self, name: str, address: Address) -> Listener:
        """Return the socket with this name, or the one bound to the address; without either, the address itself."""
        named = [entry for entry in self._left if entry[0] == name]
        for entry in named or [entry for entry in self._left if _is_bound_to(entry[1], address)]:
            self._left.remove(entry)
            return entry[1]
        return address

    def close_rest(self) -> None:
        """Close and log unused sockets: a client that connects there would wait for ever."""
        for name, listening in self._left:
            log.error(
                "handed_socket_not_wanted",
                name=name,
                address=str(listening.getsockname()),
                hint="name it peer, http, replica-<broker id> or client-<broker id>, or bind it where the settings say",
            )
            listening.close()
        self._left = []


def _is_bound_to(listening: socket.socket, address: Address) -> bool:
    is_internet = listening.family in (socket.AF_INET, socket.AF_INET6)
    return is_internet and tuple(listening.getsockname()[:2]) == (address.host, address.port)


class ServiceManager:
    """Sends this process's state to the service manager."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        is_for_us = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        self.watchdog_s = int(watchdog_us) / _MICROSECONDS if watchdog_us.isdecimal() and is_for_us else None
        """The manager ends the process after so long without a report; None without a watchdog."""

    def tell(self, *states: str) -> None:
        """Send states such as READY=1, WATCHDOG=1, STOPPING=1 or STATUS=text. Errors are ignored."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as telling:
                telling.setblocking(False)
                telling.sendto("\n".join(states).encode(), self._address)
        except OSError as error:
            log.warning("service_manager_not_told", states=states, error=str(error))


_BEATS = 4
"""How often within the limit the end is postponed; one or two may be late on a busy machine."""


class Watchdog:
    """Ends a process whose event loop hangs: a hanging agent stops its broker, while a missing one is restarted.

    The loop postpones the end again and again. When it does not do so within the limit, a thread of the interpreter
    that needs no lock writes the stacks of all threads to standard error and ends the process (`faulthandler`). So it
    does not matter whether the loop waits for ever, or a thread holds the interpreter in an endless call. A service
    manager with a watchdog is notified at the same time, which also covers a stopped process.
    """

    def __init__(self, timeout_s: float, manager: ServiceManager, stacks: TextIO) -> None:
        """`timeout_s` 0: only the service manager is notified. `stacks` is an open file, for the traceback."""
        self._timeout_s = timeout_s
        self._manager = manager
        self._stacks = stacks

    async def run(self) -> None:
        """Postpone the process's forced end again and again, until cancelled."""
        bounds = [bound_s for bound_s in (self._timeout_s, self._manager.watchdog_s) if bound_s]
        if not bounds:
            return
        try:
            while True:
                if self._timeout_s:
                    faulthandler.dump_traceback_later(self._timeout_s, exit=True, file=self._stacks)
                if self._manager.watchdog_s:
                    self._manager.tell("WATCHDOG=1")
                await asyncio.sleep(min(bounds) / _BEATS)
        finally:
            faulthandler.cancel_dump_traceback_later()

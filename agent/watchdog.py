"""Ends a process whose event loop stands still: one that hangs holds up its broker, one that is gone is started anew.

Theory. The loop puts the end off, again and again; when it does not come to that for the bound, a thread of the
interpreter's own that needs no lock writes the stacks of all threads to standard error and ends the process
(`faulthandler`). So it does not matter whether the loop waits for something that never comes, or a thread holds the
interpreter in a call that does not end. A service manager with a watchdog is told at the same time, which also covers
what no thread of the process can: a stopped process.
"""

import asyncio
import faulthandler
from typing import TextIO

from agent.service_manager import ServiceManager

_BEATS = 4
"""So many times within the bound it is put off; one or two may come late on a busy machine."""


class Watchdog:
    """One of a process."""

    def __init__(self, timeout_s: float, manager: ServiceManager, stacks: TextIO) -> None:
        """`timeout_s` 0: only the service manager is told. `stacks` is an open file, for the traceback."""
        self._timeout_s = timeout_s
        self._manager = manager
        self._stacks = stacks

    async def run(self) -> None:
        """Until cancelled."""
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

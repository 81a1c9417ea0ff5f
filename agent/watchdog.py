"""Ends a process whose event loop hangs, because a hanging agent stops its broker while a missing one is restarted.

The loop postpones the end again and again. When it does not do so within the limit, a thread of the interpreter that
needs no lock writes the stacks of all threads to standard error and ends the process (`faulthandler`). So it does not
matter whether the loop waits for ever, or a thread holds the interpreter in an endless call. A service manager with a
watchdog is notified at the same time, which also covers a stopped process.
"""

import asyncio
import faulthandler
from typing import TextIO

from agent.service_manager import ServiceManager

_BEATS = 4
"""How often within the limit the end is postponed; one or two may be late on a busy machine."""


class Watchdog:
    """The watchdog of a process."""

    def __init__(self, timeout_s: float, manager: ServiceManager, stacks: TextIO) -> None:
        """`timeout_s` 0: only the service manager is notified. `stacks` is an open file, for the traceback."""
        self._timeout_s = timeout_s
        self._manager = manager
        self._stacks = stacks

    async def run(self) -> None:
        """Postpone the end until cancelled."""
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

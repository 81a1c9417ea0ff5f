"""Responses that came, and wait for their turn: as many as may, between one task that gives and one that takes.

What asyncio.Queue does for any number of tasks takes four times the steps, for each response.
"""

import asyncio
from collections import deque

from replication.follower.answers_in_order import Answer


class ResponsesAhead:
    """In order. None is the end."""

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._most = most
        self.loop = loop
        """Kept, as Python 3.11 asks the kernel each time which one runs."""
        self._came: deque[Answer | None] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._giver: asyncio.Future[None] | None = None

    async def put(self, response: Answer | None) -> None:
        """Wait while as many as may be are there."""
        while len(self._came) >= self._most:
            self._giver = self.loop.create_future()
            try:
                await self._giver
            finally:
                self._giver = None
        self._came.append(response)
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    async def get(self) -> Answer | None:
        """The next one."""
        while not self._came:
            self._taker = self.loop.create_future()
            try:
                await self._taker
            finally:
                self._taker = None
        response = self._came.popleft()
        if self._giver is not None and not self._giver.done():
            self._giver.set_result(None)
        return response

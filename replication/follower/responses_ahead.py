"""A bounded queue of responses between one producing task and one consuming task.

asyncio.Queue, which serves any number of tasks, takes four times the steps for each response.
"""

import asyncio
from collections import deque

from replication.follower.answers_in_order import Answer


class ResponsesAhead:
    """Responses in order; None marks the end."""

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._most = most
        self.loop = loop
        """Kept, because Python 3.11 makes a system call each time it looks for the running loop."""
        self._came: deque[Answer | None] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._giver: asyncio.Future[None] | None = None

    async def put(self, response: Answer | None) -> None:
        """Add a response; wait while the queue is full."""
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
        """Return the next response; wait for one if there is none."""
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

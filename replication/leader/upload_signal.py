"""Wakes those who wait for an upload. Used from the event loop alone."""

import asyncio


class UploadSignal:
    """Every `notify` ends all `wait`s that began before it."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}
        """In the order in which they came, as everywhere where who is first would be chance otherwise."""

    def notify(self) -> None:
        """Something was stored, or a mode changed: look again."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Until the next `notify`, at most so long."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting[future] = None
        timer = loop.call_later(max(timeout_s, 0.0), _expire, future)
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.pop(future, None)


def _expire(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)

"""Waits until a topic has been read to its end at the time of the request.

Having caught up once says nothing about now: a reader may lag because of its batching, a slow broker, or an outage.
Code that draws a conclusion from what is *not* known must wait first. A barrier's goals are the end offsets asked for
after the request was made, so what was acknowledged to any writer before the request is below them. The reading thread
asks for the goals and compares them with its positions, because progress and content match there.

`wait` is for any thread but the reader's; `serve` is for the reader's only.
"""

import threading
from collections.abc import Callable, Mapping


class _Barrier:
    def __init__(self) -> None:
        self.goals: Mapping[int, int] | None = None
        self.is_passed = False
        self.is_settled = threading.Event()

    def pass_(self) -> None:
        self.is_passed = True
        self.is_settled.set()


class ReadBarriers:
    """The waiting requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Barrier] = []
        self._is_over = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything that was in the topic at the call has been taken in. Blocks.

        False when time ran out, for instance because nobody said where the topic ends, or when reading has ended.
        """
        barrier = _Barrier()
        with self._lock:
            if self._is_over:
                return False
            self._waiting.append(barrier)
        barrier.is_settled.wait(timeout_s)
        with self._lock:
            self._waiting.remove(barrier)
        return barrier.is_passed

    def serve(self, end_offsets: Callable[[], Mapping[int, int] | None], positions: Mapping[int, int]) -> None:
        """Settle requests whose goals are reached. `end_offsets` returns them per partition, None if unknown.

        Then they are asked for again next time: a partition whose leader just moved is known again within a moment.
        """
        with self._lock:
            waiting = list(self._waiting)
        unasked = [barrier for barrier in waiting if barrier.goals is None]
        goals = end_offsets() if unasked else None
        for barrier in unasked:
            barrier.goals = goals
        for barrier in waiting:
            if barrier.goals is not None and all(
                positions.get(partition, 0) >= goal for partition, goal in barrier.goals.items()
            ):
                barrier.pass_()

    def give_up(self) -> None:
        """End all waits, because reading has ended.

        At its end the interpreter joins the threads of pools, so one that waited here would keep the process alive.
        """
        with self._lock:
            self._is_over = True
            for barrier in self._waiting:
                barrier.is_settled.set()

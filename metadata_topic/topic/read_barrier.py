"""Waiting until a topic has been read to where it ends at the time of asking.

Theory. Being caught up once says nothing about now: a reader may be behind by what it gathers, by a broker that is
slow, or by an outage. Whoever concludes something from what is *not* known must ask first. A barrier's goals are the
end offsets asked for after the request was made, so what was acknowledged to any writer before the request is below
them. The goals are asked for, and compared with the positions, by the thread that reads: progress and content are one
unit there.

`wait` is for any thread but the reader's; `serve` is for the reader's alone.
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
    """The requests that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Barrier] = []
        self._is_over = False

    def wait(self, timeout_s: float) -> bool:
        """Blocks until all that was in the topic when this was called has been taken in.

        False when time ran out, for instance because nobody told where the topic ends, or when reading has ended.
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
        """Settle those whose goals are reached. `end_offsets`, per partition, are None when they are not known.

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
        """Reading has ended: nobody needs to wait any more.

        At its end the interpreter joins the threads of pools, so one that waited here would keep the process alive.
        """
        with self._lock:
            self._is_over = True
            for barrier in self._waiting:
                barrier.is_settled.set()

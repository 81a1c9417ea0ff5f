"""When a replica's log grew, seen from outside, on a thread."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from perf.restart.pauses import Pause, longest_pause

_LOOK_EACH_S = 0.002


class ReplicaGrowth:
    """Looks at partition 0 while it is entered."""

    def __init__(self, cluster: LocalCluster, broker_id: int, topic: str) -> None:
        directory = cluster.files.partition_directory(broker_id, topic, 0)
        if directory is None:
            raise LookupError(f"broker {broker_id} has no replica of {topic}")
        self._directory: Path = directory
        self._grown_s: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name=f"growth-{topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def wait_until_grown_since(self, since_s: float, timeout_s: float) -> None:
        """Raises WaitTimeoutError."""
        wait_until(
            lambda: bool(self._grown_s) and self._grown_s[-1] > since_s, f"{self._directory.name} grows", timeout_s
        )

    def longest_pause(self, begin_s: float, end_s: float) -> Pause:
        """The longest time without growth, from a moment on up to another one."""
        return longest_pause(self._grown_s, begin_s, end_s)

    def _look(self) -> None:
        last = -1
        while not self._stop.wait(_LOOK_EACH_S):
            size = sum(path.stat().st_size for path in self._directory.glob("*.log"))
            if size != last:
                self._grown_s.append(time.monotonic())
                last = size

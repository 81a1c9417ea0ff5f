"""Counts the system calls of a process, and their bytes, from the output of strace (strace(1), `-f -o`)."""

import contextlib
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

BUFFER_BYTES: Final = 256 * 1024
"""The size from which memory requested from the kernel counts as a buffer of records (`ALLOCATED_AT_KERNEL`)."""
ALLOCATED_AT_KERNEL: Final = {"MALLOC_MMAP_THRESHOLD_": str(BUFFER_BYTES)}
"""Environment that makes glibc ask the kernel for each piece of memory of that size (mallopt(3))."""
LOOP, CLIENT, OTHERS = "event loop", "Kafka client", "others"
_CLIENTS_THREADS: Final = "rdk:"
"""The beginning of librdkafka's thread names."""
_IN: Final = frozenset({"read", "pread64", "readv", "preadv", "recvfrom", "recvmsg"})
_OUT: Final = frozenset({"write", "pwrite64", "writev", "sendto", "sendmsg"})
_CALL = re.compile(r"^(?P<thread>\d+) +(?:<\.\.\. )?(?P<name>\w+)(?P<resumed> resumed>)?")
_RESULT = re.compile(r"= (?P<result>\d+)(?: |$)")
_ANONYMOUS = re.compile(r"mmap\(NULL, (?P<size>\d+), [\w|]+, MAP_PRIVATE\|MAP_ANONYMOUS, ")
_UNFINISHED = "<unfinished ...>"


@dataclass(slots=True)
class SystemCalls:
    """The system calls of one process, or of several."""

    calls: Counter[str] = field(default_factory=Counter)
    by_threads: Counter[str] = field(default_factory=Counter)
    """Counts by thread: the event loop's, the Kafka client's, and others by the threads' names."""
    futex_by_threads: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    """Bytes read and received."""
    bytes_out: int = 0
    buffers: Counter[int] = field(default_factory=Counter)
    """New memory in pieces that may hold records, by their size."""

    @property
    def buffer_bytes(self) -> int:
        """The bytes of all these pieces."""
        return sum(size * times for size, times in self.buffers.items())

    def add(self, lines: Iterable[str], threads: Mapping[int, str] | None = None) -> None:
        """Add strace's output. A call that another thread interrupts is two lines, and counts once.

        `threads`: the ids of the event loop's and the Kafka client's threads.
        """
        for line in lines:
            found = _CALL.match(line)
            if found is None:  # a signal, an exit
                continue
            name = found["name"]
            if not found["resumed"]:
                self.calls[name] += 1
                of = (threads or {}).get(int(found["thread"]), OTHERS)
                self.by_threads[of] += 1
                self.futex_by_threads[of] += name == "futex"
            if anonymous := _ANONYMOUS.search(line):
                size = int(anonymous["size"])
                if size >= BUFFER_BYTES:
                    self.buffers[size] += 1
            result = None if _UNFINISHED in line else _RESULT.search(line)
            if result is not None and name in _IN:
                self.bytes_in += int(result["result"])
            elif result is not None and name in _OUT:
                self.bytes_out += int(result["result"])


def strace() -> str | None:
    """Return the program, if it is installed."""
    return shutil.which("strace")


@contextmanager
def traced(
    program: str, pids: Iterable[int], directory: Path, named: Mapping[int, str] | None = None
) -> Iterator[SystemCalls]:
    """Count the system calls of these processes in the block, when it ends. `named`: threads by their ids."""
    seen = SystemCalls()
    files = {pid: directory / f"strace-{pid}" for pid in pids}
    threads = {thread: kind for pid in files for thread, kind in kinds_of_threads(pid, named or {}).items()}
    tracers = [
        subprocess.Popen(
            (program, "-f", "-s", "0", "-e", "signal=none", "-o", str(file), "-p", str(pid)),
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for pid, file in files.items()
    ]  # fmt: skip
    try:
        for tracer in tracers:
            if tracer.stderr is not None:
                tracer.stderr.readline()  # it says that it is attached, or why not
        yield seen
    finally:
        for tracer in tracers:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate()
    for file in files.values():
        with file.open(errors="replace") as lines:
            seen.add(lines, threads)
        file.unlink()


def kinds_of_threads(pid: int, named: Mapping[int, str]) -> dict[int, str]:
    """Return the kind of each thread: the event loop's, the Kafka client's, or one of these names without numbers."""
    kinds = {thread: name.rstrip("0123456789_-") for thread, name in named.items()} | {pid: LOOP}
    for name in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            if name.read_text().startswith(_CLIENTS_THREADS):
                kinds[int(name.parent.name)] = CLIENT
    return kinds

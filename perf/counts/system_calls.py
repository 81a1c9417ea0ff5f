"""Counts the system calls of a process, and their bytes, from the output of strace (strace(1), `-f -o`)."""

import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

BUFFER_BYTES: Final = 256 * 1024
"""The size from which memory requested from the kernel counts as a buffer of records (`ALLOCATED_AT_KERNEL`)."""
ALLOCATED_AT_KERNEL: Final = {"MALLOC_MMAP_THRESHOLD_": str(BUFFER_BYTES)}
"""Environment that makes glibc ask the kernel for each piece of memory of that size (mallopt(3))."""
_IN: Final = frozenset({"read", "pread64", "readv", "preadv", "recvfrom", "recvmsg"})
_OUT: Final = frozenset({"write", "pwrite64", "writev", "sendto", "sendmsg"})
_CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(?P<name>\w+)(?P<resumed> resumed>)?")
_RESULT = re.compile(r"= (?P<result>\d+)(?: |$)")
_ANONYMOUS = re.compile(r"mmap\(NULL, (?P<size>\d+), [\w|]+, MAP_PRIVATE\|MAP_ANONYMOUS, ")
_UNFINISHED = "<unfinished ...>"


@dataclass(slots=True)
class SystemCalls:
    """Counts of system calls, of one process or of several."""

    calls: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    """Bytes read and received."""
    bytes_out: int = 0
    buffer_bytes: int = 0
    """New memory in pieces that may hold records."""

    def add(self, lines: Iterable[str]) -> None:
        """Add strace's output. A call that another thread interrupts is two lines, and counts once."""
        for line in lines:
            found = _CALL.match(line)
            if found is None:  # a signal, an exit
                continue
            name = found["name"]
            self.calls[name] += not found["resumed"]
            anonymous = _ANONYMOUS.search(line)
            if anonymous and int(anonymous["size"]) >= BUFFER_BYTES:
                self.buffer_bytes += int(anonymous["size"])
            result = None if _UNFINISHED in line else _RESULT.search(line)
            if result is not None and name in _IN:
                self.bytes_in += int(result["result"])
            elif result is not None and name in _OUT:
                self.bytes_out += int(result["result"])


@contextmanager
def traced(program: str, pids: Iterable[int], directory: Path) -> Iterator[SystemCalls]:
    """Count these processes' system calls while the context lasts; yields the counts, which are filled at its end."""
    seen = SystemCalls()
    files = {pid: directory / f"strace-{pid}" for pid in pids}
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
            seen.add(lines)
        file.unlink()

"""Child processes that outlive the program that started them, with pid file and log file, and their end with it.

A pid alone does not name a process, because the kernel reuses it later; a pid file therefore holds the process's start
time too. Each child leads its own session, so that an interrupt typed at the terminal does not reach it, and signals go
to its whole process group.

A thread that waits for such a child would wait on after an interrupt. So a program wraps its work with
`ends_what_it_started`: its first SIGTERM, SIGINT or SIGHUP kills every process that descends from it, and then unwinds
the main thread as an interrupt does. Until that has come to its end, a thread kills what others start meanwhile: who
unwinds may wait for it. Descendants whose own parent has ended become the program's children (prctl(2),
PR_SET_CHILD_SUBREAPER).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from local_cluster.polling import T, WaitTimeoutError, wait_until

KILL_TIMEOUT_S = 20.0
STOP_GRACE_S = 15.0
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AGAIN_S = 1.0
"""What lives so long while all unwinds is no command of the cleanup."""


class ProcessStartError(Exception):
    """A child process could not be started, or ended at once; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How to start a child process: its command, and the files for its output and its pid."""

    name: str
    command: tuple[str, ...]
    log_path: Path
    pid_path: Path
    working_directory: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that override this process's own environment."""


class ManagedProcess:
    """One child process, which an earlier program may have started: its pid file identifies it."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._started: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. Raises ProcessStartError if it runs already or cannot be executed."""
        if self.is_alive():
            raise ProcessStartError(f"{self.spec.name} runs already, as process {self.pid}")
        self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log_path.open("ab") as log:
            try:
                self._started = subprocess.Popen(
                    self.spec.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.spec.working_directory,
                    env={**os.environ, **self.spec.environment},
                    start_new_session=True,
                )
            except OSError as error:
                raise ProcessStartError(f"cannot start {self.spec.name}: {error}") from error
        pid = self._started.pid
        self.spec.pid_path.write_text(f"{pid} {_start_ticks(pid) or 0}\n")

    def start_until(self, ready: Callable[[], T | None], what: str, timeout_s: float) -> T:
        """Start the process, and wait for the first truthy result of `ready`; on failure, kill it.

        Raises ProcessStartError with the end of its log if it has ended meanwhile, WaitTimeoutError.
        """
        self.start()

        def ready_and_alive() -> T | None:
            if not self.is_alive():
                raise ProcessStartError(f"{self.spec.name} has ended: {self.log_tail()}")
            return ready()

        try:
            return wait_until(ready_and_alive, f"{self.spec.name} {what}", timeout_s)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int | None:
        """The living process's id; None if there is none."""
        if self._started is not None and self._started.poll() is None:
            return self._started.pid
        try:
            pid, ticks = map(int, self.spec.pid_path.read_text().split())
        except (OSError, ValueError):
            return None
        return pid if _start_ticks(pid) == ticks else None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a child of this program that has ended; minus the signal's number if a signal ended it."""
        return self._started.poll() if self._started is not None else None

    def cpu_s(self) -> float:
        """Return the processor seconds used since its start; 0 if it does not run."""
        pid = self.pid
        stat = _stat(pid) if pid is not None else None
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK") if stat else 0.0

    def is_alive(self) -> bool:
        """Return whether the process runs (a paused one does)."""
        return self.pid is not None

    def send_signal(self, number: signal.Signals) -> bool:
        """Send a signal to the process's whole group; False if there is no such process."""
        pid = self.pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
            return True
        return False

    def pause(self) -> bool:
        return self.send_signal(signal.SIGSTOP)

    def resume(self) -> bool:
        return self.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended. Does nothing if it has already."""
        if self.send_signal(signal.SIGKILL):
            self.wait_for_exit(KILL_TIMEOUT_S)
        self.spec.pid_path.unlink(missing_ok=True)

    def terminate(self, grace_s: float = STOP_GRACE_S) -> bool:
        """Send SIGTERM, then SIGKILL after `grace_s`; True if the process ended by itself."""
        self.request_exit()
        return self.finish_exit(grace_s)

    def request_exit(self) -> None:
        """Send SIGTERM without waiting; a paused process is resumed so that it can end."""
        if self.send_signal(signal.SIGTERM):
            self.resume()

    def finish_exit(self, grace_s: float) -> bool:
        """Wait for a process after `request_exit`; kill it after `grace_s`. True if it ended by itself."""
        try:
            self.wait_for_exit(grace_s)
        except WaitTimeoutError:
            self.kill()
            return False
        self.spec.pid_path.unlink(missing_ok=True)
        return True

    def wait_for_exit(self, timeout_s: float) -> None:
        """Wait until the process has ended. Raises WaitTimeoutError."""
        wait_until(lambda: not self.is_alive(), f"{self.spec.name} ends", timeout_s, interval_s=0.02)

    def log_tail(self) -> str:
        """Return the last lines that the process printed."""
        try:
            text = self.spec.log_path.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-15:])


@contextlib.contextmanager
def ends_what_it_started(*, stays_if_done: bool = False) -> Iterator[None]:
    """End all processes that the block started when it ends or a signal arrives (KeyboardInterrupt). For a program's
    main thread.

    `stays_if_done`: they stay if the block ends without an exception.
    """
    told, unwound = False, threading.Event()

    def kill_until_unwound() -> None:
        before: set[int] = set()
        while not unwound.wait(_AGAIN_S):
            living = set(descendants(os.getpid()))
            _kill(living & before)
            before = living

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal told
        first, told = not told, True
        kill_descendants()
        if first:  # a second one must not interrupt the cleanup
            threading.Thread(target=kill_until_unwound, name="ends what is started", daemon=True).start()
            raise KeyboardInterrupt

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {number: signal.signal(number, end) for number in _SIGNALS}
    done = False
    try:
        yield
        done = True
    finally:
        unwound.set()
        if not (done and stays_if_done):
            kill_descendants()
        for number, handler in before.items():
            signal.signal(number, handler)


def kill_descendants() -> None:
    """Send SIGKILL to every descendant of this process, until none is left."""
    while living := descendants(os.getpid()):
        _kill(living)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    children = defaultdict(list)
    for directory in Path("/proc").glob("[0-9]*"):
        stat = _stat(directory.name)
        if stat and stat[0] not in ("Z", "X"):
            children[int(stat[1])].append(int(directory.name))
    found = list(children[pid])
    for one in found:  # grows meanwhile
        found += children[one]
    return found


def _stat(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/pid/stat from the third on: state, parent, ...; None if there is no such process.

    Source: proc(5). The second field, the command's name, may hold anything.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """Return the process's start, in clock ticks since boot; None: no such process, or all of it has ended."""
    stat = _stat(pid)
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return None
    if stat is None:
        return None
    # The first thread of a JVM can be a zombie while others still hold its ports and locks.
    ended = stat[0] in ("Z", "X") and threads <= 1
    return None if ended else int(stat[19])

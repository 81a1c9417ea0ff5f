"""Child processes that outlive the program that started them: pid file, log file, signals.

A pid alone does not name a process, because the kernel reuses it later; a pid file therefore holds the process's start
time too. Each child leads its own session, so that an interrupt typed at the terminal does not reach it, and signals go
to its whole process group.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from local_cluster.polling import WaitTimeoutError, wait_until

KILL_TIMEOUT_S = 20.0
STOP_GRACE_S = 15.0


class ProcessStartError(Exception):
    """A child could not be started, or ended at once; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The command to run, and the files for its output and its pid."""

    name: str
    command: tuple[str, ...]
    log_path: Path
    pid_path: Path
    working_directory: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that override this process's own environment."""


class ManagedProcess:
    """One child process, perhaps started by an earlier program; the pid file decides."""

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

    @property
    def pid(self) -> int | None:
        """The living process's id; None if there is none."""
        if self._started is not None and self._started.poll() is None:
            return self._started.pid
        return self._recorded_pid()

    def _recorded_pid(self) -> int | None:
        try:
            pid_text, ticks_text = self.spec.pid_path.read_text().split()
            pid, ticks = int(pid_text), int(ticks_text)
        except (OSError, ValueError):
            return None
        return pid if _start_ticks(pid) == ticks else None

    @property
    def exit_code(self) -> int | None:
        """The exit code of an ended child of this program; minus the signal's number if a signal ended it."""
        return self._started.poll() if self._started is not None else None

    def cpu_s(self) -> float:
        """Return processor seconds since its start; 0 if it does not run."""
        pid = self.pid
        if pid is None:
            return 0.0
        try:
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def is_alive(self) -> bool:
        """Return whether it runs (a paused process counts as running)."""
        return self.pid is not None

    def send_signal(self, number: signal.Signals) -> bool:
        """Send a signal to the whole group; False if there is no such process."""
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
        """Send SIGKILL, and wait until it is gone. Nothing happens if it is gone already."""
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
        """Wait for a process that was asked to end; kill it after `grace_s`. True if it ended by itself."""
        try:
            self.wait_for_exit(grace_s)
        except WaitTimeoutError:
            self.kill()
            return False
        self.spec.pid_path.unlink(missing_ok=True)
        return True

    def wait_for_exit(self, timeout_s: float) -> None:
        """Wait for the end. Raises WaitTimeoutError."""
        wait_until(lambda: not self.is_alive(), f"{self.spec.name} ends", timeout_s, interval_s=0.02)

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines that the process printed."""
        try:
            text = self.spec.log_path.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def _start_ticks(pid: int) -> int | None:
    """Return the process's start, in clock ticks since boot; None: no such process, or all of it has ended.

    Source: proc(5), /proc/pid/stat, fields 3 and 22. The second field, the command's name, may hold anything.
    """
    directory = Path(f"/proc/{pid}")
    try:
        after_name = (directory / "stat").read_text().rpartition(")")[2].split()
        threads = len(list((directory / "task").iterdir()))
    except OSError:
        return None
    state, ticks = after_name[0], after_name[19]
    # The first thread of a JVM can be a zombie while others still hold its ports and locks.
    ended = state in ("Z", "X") and threads <= 1
    return None if ended else int(ticks)

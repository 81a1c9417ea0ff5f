import signal
import sys
from pathlib import Path

import pytest

from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec, ProcessStartError


def _process(directory: Path, code: str) -> ManagedProcess:
    return ManagedProcess(
        ProcessSpec(
            "child", (sys.executable, "-c", code), directory / "log", directory / "pid", directory, {"GREETING": "hi"}
        )
    )


SLEEPER = "import os, signal; print(os.environ['GREETING'], flush=True); signal.pause()"
DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\nwhile 1: signal.pause()"
)


def test_another_program_finds_and_ends_the_process_by_its_pid_file(tmp_path: Path) -> None:
    started = _process(tmp_path, SLEEPER)
    started.start()
    found = _process(tmp_path, SLEEPER)
    assert found.pid == started.pid is not None
    with pytest.raises(ProcessStartError, match="runs already"):
        found.start()
    assert found.terminate(10)
    assert not started.is_alive()
    assert not (tmp_path / "pid").exists()


def test_a_process_tells_its_processor_time_while_it_runs(tmp_path: Path) -> None:
    busy = _process(tmp_path, "while True: pass")
    assert busy.cpu_s() == 0
    busy.start()
    wait_until(lambda: busy.cpu_s() > 0.05, "it has used some")
    busy.kill()
    assert busy.cpu_s() == 0


def test_a_pid_that_the_kernel_gave_to_another_process_is_not_ours(tmp_path: Path) -> None:
    started = _process(tmp_path, SLEEPER)
    started.start()
    pid, ticks = (tmp_path / "pid").read_text().split()
    found = _process(tmp_path, SLEEPER)
    (tmp_path / "pid").write_text(f"{pid} {int(ticks) - 1}\n")
    assert not found.is_alive()
    assert not found.send_signal(signal.SIGKILL)
    (tmp_path / "pid").write_text(f"{pid} {ticks}\n")
    assert found.is_alive()
    started.kill()


def test_a_process_whose_first_thread_has_ended_is_still_alive(tmp_path: Path) -> None:
    code = (
        "import ctypes, threading, signal\n"
        "def outlive():\n"
        "    print('outliving', flush=True)\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=outlive).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    started = _process(tmp_path, code)
    started.start()
    wait_until(lambda: "State:\tZ" in Path(f"/proc/{started.pid}/status").read_text(), "a zombie leader", 10)
    found = _process(tmp_path, code)
    assert found.is_alive()
    found.send_signal(signal.SIGKILL)
    wait_until(lambda: not started.is_alive(), "all threads have ended", 10)
    assert not found.is_alive()


def test_a_process_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    process = _process(tmp_path, DEAF)
    process.start()
    wait_until(process.log_tail, "the child is deaf", 10)
    assert not process.terminate(0.1)
    assert not process.is_alive()


def test_a_paused_process_counts_as_alive_and_can_still_be_ended(tmp_path: Path) -> None:
    process = _process(tmp_path, SLEEPER)
    process.start()
    assert process.pause()
    assert process.is_alive()
    assert process.terminate(10)


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    process = ManagedProcess(
        ProcessSpec("ghost", ("/nonexistent/program",), tmp_path / "log", tmp_path / "pid", tmp_path)
    )
    with pytest.raises(ProcessStartError, match="cannot start ghost"):
        process.start()
    process.kill()


def test_waiting_gives_up_at_the_deadline_after_a_last_look() -> None:
    now = [0.0]
    looks = []

    def pause(seconds: float) -> None:
        now[0] += seconds

    def look() -> bool:
        looks.append(now[0])
        return False

    with pytest.raises(WaitTimeoutError, match="not within 1 s: it rains"):
        wait_until(look, "it rains", 1.0, interval_s=0.3, clock=lambda: now[0], pause=pause)
    assert looks[-1] >= 1.0


def test_waiting_sees_a_condition_that_came_true_during_the_last_pause() -> None:
    now = [0.0]

    def pause(_seconds: float) -> None:
        now[0] = 100.0  # the machine was busy

    assert wait_until(lambda: now[0] > 50, "late", 1.0, clock=lambda: now[0], pause=pause)

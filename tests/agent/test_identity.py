"""One agent per broker, and a growing incarnation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.identity import LOCK_FILE, AgentAlreadyRunningError, AgentLock


def test_a_second_agent_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    state = tmp_path / "made" / "when missing"
    first = AgentLock(state)
    with pytest.raises(AgentAlreadyRunningError, match="one broker has one agent"):
        AgentLock(state)
    first.release()
    AgentLock(state).release()


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from agent.identity import AgentLock;"
        f"lock = AgentLock(Path({str(tmp_path)!r})); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(AgentAlreadyRunningError):
            AgentLock(tmp_path)
        holder.kill()
        holder.wait(60)
    AgentLock(tmp_path).release()


def test_the_incarnation_grows_when_the_clock_stands_still_or_goes_back(tmp_path: Path) -> None:
    clock = iter([1_000, 1_000, 5, 2_000, 9_999_999, 2_000])
    seen = []
    for _ in range(6):
        lock = AgentLock(tmp_path)
        seen.append(lock.next_incarnation(lambda: next(clock)))
        lock.release()
    assert seen == [1_000, 1_001, 1_002, 2_000, 9_999_999, 10_000_000]


def test_it_grows_within_one_start_too(tmp_path: Path) -> None:
    lock = AgentLock(tmp_path)
    assert [lock.next_incarnation(lambda: 7) for _ in range(3)] == [7, 8, 9]
    lock.release()


@pytest.mark.parametrize("content", [b"garbage", b"-5", b"12 34", b"\0\0\0"])
def test_a_damaged_file_is_named_instead_of_beginning_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK_FILE).write_bytes(content)
    lock = AgentLock(tmp_path)
    with pytest.raises(ValueError, match=LOCK_FILE):
        lock.next_incarnation(lambda: 1_000)
    lock.release()
    assert (tmp_path / LOCK_FILE).read_bytes() == content


def test_an_incarnation_that_fits_no_segment_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_bytes(b"%d\n" % (2**48 - 1))
    lock = AgentLock(tmp_path)
    with pytest.raises(ValueError, match="no incarnation"):
        lock.next_incarnation(lambda: 1_000)
    lock.release()


def test_a_crash_between_the_two_writes_leaves_a_number_that_is_not_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = AgentLock(tmp_path)
    assert lock.next_incarnation(lambda: 999) == 999

    def crash(*_: object) -> None:
        raise OSError("the power is gone")

    for step in ("ftruncate", "pwrite"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, crash)
            with pytest.raises(OSError, match="power"):
                lock.next_incarnation(lambda: 5)
    assert lock.next_incarnation(lambda: 5) >= 1_001
    lock.release()

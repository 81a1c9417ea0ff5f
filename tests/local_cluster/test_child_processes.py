"""A program that is told to end ends what it started, also what descends from it by others."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from local_cluster.processes import ends_what_it_started

sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
orphan = (
    "import subprocess, sys; command = [sys.executable, *sys.argv[1:]];"
    "print(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True).pid)"
)
with ends_what_it_started(), ThreadPoolExecutor(1) as pool:
    own = subprocess.Popen(sleep, start_new_session=True)
    # Its parent ends at once.
    left = subprocess.run([sys.executable, "-c", orphan, *sleep[1:]], stdout=subprocess.PIPE, text=True).stdout
    waited_for = pool.submit(subprocess.run, sleep)
    print(own.pid, left.strip(), flush=True)
    own.wait(600)
"""


STAYING = """
import subprocess, sys
from local_cluster.processes import ends_what_it_started

with ends_what_it_started(stays_if_done=True):
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
    print(started.pid, flush=True)
    {then}
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_all_descendants_end_with_it(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(lives, pids))
        program.send_signal(number)
        assert program.wait(30) != 0
    assert not any(map(lives, pids))


def test_what_another_thread_starts_after_the_signal_ends_too() -> None:
    late = PROGRAM.replace(
        "pool.submit(subprocess.run, sleep)", "pool.submit(lambda: (time.sleep(1), subprocess.run(sleep)))"
    )
    command = [sys.executable, "-c", late]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline()
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) != 0


@pytest.mark.parametrize("goes_well", [True, False])
def test_what_was_started_stays_where_that_is_wanted_and_all_went_well(goes_well: bool) -> None:
    code = STAYING.format(then="" if goes_well else "raise SystemExit(3)")
    command = [sys.executable, "-c", code]
    pid = int(subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout)
    try:
        assert lives(pid) is goes_well
    finally:
        if goes_well:
            os.kill(pid, signal.SIGKILL)

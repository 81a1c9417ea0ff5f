"""The demonstration, the benchmarks and a cluster that starts, told to end: whatever they started ends with them."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster.polling import wait_until

ROOT = Path(__file__).parent.parent.parent
MARK = "REMOTE_WAL_TEST_MARK"


def processes(mark: str) -> list[str]:
    """The command lines of all that live and were started under this mark, whoever their parents are by now."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (directory / "environ").read_bytes():
                found.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def runs(what: str, number: int = 1) -> Callable[[list[str]], bool]:
    return lambda commands: sum(what in command for command in commands) >= number


@pytest.mark.parametrize(
    ("command", "under_way", "number"),
    [
        (["cli.main", "demo", "--quick"], runs("tools.ProducerPerformance"), signal.SIGTERM),
        (["cli.main", "cluster", "up", "--directory", "{scratch}"], runs("kafka.Kafka ", 2), signal.SIGTERM),
        pytest.param(
            ["perf", "ladder", "--rung", "links", "--workload", "steady", "--results", "{scratch}"],
            runs("tools.ProducerPerformance"),
            signal.SIGINT,
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["demo", "cluster", "ladder"],
)
def test_a_program_that_is_told_to_end_leaves_no_process_behind(
    command: list[str], under_way: Callable[[list[str]], bool], number: signal.Signals, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    scratch = tmp_path / "scratch"
    arguments = [part.format(scratch=scratch) for part in command]
    environment = {**os.environ, MARK: mark, "TMPDIR": str(tmp_path)}
    with (tmp_path / "output").open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    try:
        wait_until(lambda: under_way(processes(mark)) or program.poll() is not None, "it is under way", 120.0)
        assert program.poll() is None, (tmp_path / "output").read_text()
        program.send_signal(number)
        assert program.wait(60) != 0
        assert processes(mark) == []
        assert not list(Path("/run/netns").glob(f"rw{program.pid}-*")), "its network namespaces"
        assert not list(tmp_path.glob("remote-wal-*")), "its temporary directory"
    finally:
        program.kill()

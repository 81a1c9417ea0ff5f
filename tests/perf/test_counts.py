"""What is counted of agents, and that it is neither more nor less."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from perf.counts.command import BUFFER_BYTES, Counted, SystemCalls, passed_by, rows
from perf.counts.counted_agent import Calls, HandOvers

_STRACE = f"""\
101 recvfrom(7, ""..., 65536, 0, NULL, NULL) = 1200
101 futex(0x7f00, FUTEX_WAIT_PRIVATE, 0, NULL <unfinished ...>
102 write(5, ""..., 8) = 8
102 sendmsg(9, {{msg_name=NULL, msg_iov=[{{iov_base=""..., iov_len=500}}]}}, 0 <unfinished ...>
101 <... futex resumed>) = 0
101 read(7, 0x7ffe, 16) = -1 EAGAIN (Resource temporarily unavailable)
102 <... sendmsg resumed>) = 500
101 mmap(NULL, {BUFFER_BYTES}, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f12
101 mmap(NULL, {BUFFER_BYTES - 1}, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f12
101 mmap(NULL, 8388608, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_STACK, -1, 0) = 0x7f12
102 +++ exited with 0 +++
"""


def test_a_system_call_in_two_lines_counts_once() -> None:
    seen = SystemCalls()
    seen.add(_STRACE.splitlines())
    assert seen.calls == {"recvfrom": 1, "futex": 1, "write": 1, "sendmsg": 1, "read": 1, "mmap": 3}
    assert (seen.bytes_in, seen.bytes_out, seen.buffer_bytes) == (1200, 508, BUFFER_BYTES)


def _called() -> int:
    return len(str(os.getpid()))


def test_calls_are_those_of_the_thread_that_counts() -> None:
    calls, other = Calls(), threading.Thread(target=_called)
    calls.begin()
    _called()
    _called()
    calls.end()
    other.start()
    other.join()
    name = f"{__name__}:_called"
    assert calls.python[name] == 2
    assert calls.c["getpid"] == 2


def test_a_hand_over_is_counted_and_done() -> None:
    hand_overs = HandOvers()
    with ThreadPoolExecutor(1) as pool:
        submit = hand_overs.counted(pool.submit)
        assert [submit(_called).result() for _ in range(3)] == [_called()] * 3
    assert hand_overs.total == 3


def test_what_was_not_counted_is_no_zero() -> None:
    (row,) = rows([Counted("directory", records=200, objects=199, python_calls=2500.0)])
    assert row[1:6] == ("199 of 200", "2,500", "0", "0, 0", "no strace")


def test_an_object_passes_what_every_second_one_calls() -> None:
    calls = {
        "rlm.write_path.queue:Queue.add": 10, "rlm.write_path.queue:Queue.take": 5, "plugin.prices:load": 5,
        "rlm.rare:Rare.seldom": 4, "asyncio.events:Handle._run": 90, "gateway:<lambda>": 7,
        "gateway.pipe:serve.<locals>.done": 8,
    }  # fmt: skip
    files, classes = passed_by(calls, 10)
    assert files == ["gateway", "gateway.pipe", "plugin.prices", "rlm.write_path.queue"]
    assert classes == ["rlm.write_path.queue:Queue"]

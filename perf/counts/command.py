"""Counts the work of all three agents for one object, which noise on the machine does not distort.

Each broker leads one partition of three, a record at a time is produced with acks=all, and each becomes an object that
both followers read. So the work of all agents for an object equals the work of one agent for one object that it leads
and two that it follows. At 20 records/s the counts include what agents do when idle, which is reported separately.

System calls, and their bytes, are counted in the output of strace (strace(1), `-f -o`).
"""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from cli.connection import Json
from cli.tables import show, table, tell_json
from local_cluster.agent_metrics import scrape_all
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG, LINKED, set_topics
from local_cluster.object_store.store_spec import OwnStore
from local_cluster.polling import wait_until
from perf.clusters import LatencyMs, object_store, spread, started_cluster
from perf.counts.counted_agent import BEGIN, END, FILE_VARIABLE
from perf.loads import paced

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


T = TypeVar("T")
_TOPIC: Final = "counted"
_SMALL_BYTES, _LARGE_BYTES = 1_000, 900_000
_PER_S, _LARGE_PER_S = 20, 5
_WRITE_TIMEOUT_S = 120.0
_PROGRAM: Final = "perf.counts.counted_agent"
_PAUSE: Final = threading.Event().wait
_PACKAGES: Final = {one.name for one in Path(__file__).parents[2].iterdir() if (one / "__init__.py").is_file()}
_MOST: Final = 500
"""The maximum number of functions that are reported by name."""


@dataclass(slots=True)
class Counted:
    """What was counted with one store, per object unless stated otherwise; None: strace is not installed."""

    store: str
    records: int = 0
    """The records; each is an object of its own if nothing went wrong."""
    objects: int = 0
    python_calls: float = 0.0
    """Calls on the event loops' threads."""
    c_calls: float = 0.0
    hand_overs: float = 0.0
    system_calls: float | None = None
    received_bytes: float | None = None
    """Bytes read and received by agents, for each byte of an object."""
    sent_bytes: float | None = None
    buffer_bytes: float | None = None
    """Bytes in newly allocated buffers, for each byte of an object."""
    idle_wake_ups_per_s: float = 0.0
    """Wake-ups of one agent, on all its threads."""
    idle_calls_per_s: float = 0.0
    """Python calls of one agent."""
    idle_functions: dict[str, float] = field(default_factory=dict)
    """The Python functions that an idle agent calls most, in a second."""
    functions: dict[str, float] = field(default_factory=dict)
    """The Python functions that are called most."""
    files: list[str] = field(default_factory=list)
    """The project's modules that an object passes: which a reader who follows a batch from append to follower opens."""
    classes: list[str] = field(default_factory=list)
    c_functions: dict[str, float] = field(default_factory=dict)
    system_calls_by_name: dict[str, float] = field(default_factory=dict)


def counts(
    store: Annotated[list[OwnStore] | None, typer.Option(help="Only these.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of each load.")] = 10,
    latency_ms: LatencyMs = 5,
    as_json: Json = False,
) -> None:
    """Count calls, system calls, hand-overs and copies for one object, and what an idle agent does in a second.

    Takes two minutes for each store on a quiet machine.
    """
    from rich.console import Console

    found = []
    with (
        Console(stderr=True).status("preparing") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-counts-") as directory,
    ):
        environment = {FILE_VARIABLE: str(Path(directory) / "{pid}.json"), **ALLOCATED_AT_KERNEL}
        for kind in store or OwnStore:
            with object_store(kind, latency_ms) as spec:
                mode = AgentsMode(spec, tls=kind is OwnStore.S3_NATIVE, program=_PROGRAM, environment=environment)
                with started_cluster(Path(directory) / kind, mode) as cluster:
                    found.append(_Counting(kind, cluster, Path(directory), line.update, seconds).run())
    if as_json:
        tell_json({"stores": [asdict(one) for one in found]})
        return
    columns = (
        "store", ">objects, of records", ">calls in Python", ">in C", ">files, classes", ">system calls", ">hand-overs",
        ">bytes in + out + new buffers", ">idle: wake-ups/s", ">calls/s",
    )  # fmt: skip
    show(table(*columns, rows=rows(found), title="One object, all three agents; idle: one agent"))


class _Counting:
    """Runs the loads on one cluster, one after the other."""

    def __init__(
        self, store: OwnStore, cluster: LocalCluster, directory: Path, tell: Callable[[str], None], seconds: float
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._say = tell
        self._seconds = seconds
        self._agents = [cluster.agent(broker_id) for broker_id in cluster.broker_ids]
        self._counted = Counted(store.value)
        self._idle_calls = Counter[str]()

    def run(self) -> Counted:
        cluster, brokers = self._cluster, self._cluster.broker_ids
        cluster.admin.create_topic(_TOPIC, assignment=spread(brokers, len(brokers)))
        set_topics(cluster.bootstrap_servers, [_TOPIC], LINKED)
        self._tell("warming up")
        wait_until(lambda: self._load(_SMALL_BYTES, _PER_S, 1.0) > 0, "objects are uploaded", _WRITE_TIMEOUT_S)
        self._load(_SMALL_BYTES, _PER_S, self._seconds)
        self._tell("counting what an idle agent does")
        _PAUSE(2.0)
        calls, _, _, _ = self._calls_of(lambda: _PAUSE(self._seconds))
        self._idle_calls = calls
        woken = -self._wake_ups()
        _PAUSE(self._seconds)
        woken += self._wake_ups()
        agent_seconds = self._seconds * len(brokers)
        self._counted.idle_calls_per_s = calls.total() / agent_seconds
        self._counted.idle_functions = {name: times / agent_seconds for name, times in calls.most_common(_MOST)}
        self._counted.idle_wake_ups_per_s = woken / agent_seconds
        self._count_calls()
        if program := shutil.which("strace"):
            self._count_system_calls(program)
        return self._counted

    def _count_calls(self) -> None:
        self._tell("counting calls")
        python, c, hand_overs, objects = self._calls_of(lambda: self._load(_SMALL_BYTES, _PER_S, self._seconds))
        counted = self._counted
        counted.records, counted.objects = round(_PER_S * self._seconds), objects
        counted.python_calls, counted.c_calls = python.total() / objects, c.total() / objects
        counted.hand_overs = hand_overs / objects
        counted.functions = {name: times / objects for name, times in python.most_common(_MOST)}
        counted.files, counted.classes = passed_by(python - self._idle_calls, objects)
        counted.c_functions = {name: times / objects for name, times in c.most_common(_MOST)}

    def _count_system_calls(self, strace: str) -> None:
        counted, pids = self._counted, self._pids()
        self._tell("counting system calls")
        with traced(strace, pids, self._directory) as small:
            objects = self._load(_SMALL_BYTES, _PER_S, self._seconds)
        counted.system_calls = small.calls.total() / objects
        counted.system_calls_by_name = {name: times / objects for name, times in small.calls.most_common()}
        self._tell("counting bytes")
        self._load(_LARGE_BYTES, _LARGE_PER_S, 1.0)
        with traced(strace, pids, self._directory) as large:
            size = self._load(_LARGE_BYTES, _LARGE_PER_S, self._seconds) * _LARGE_BYTES
        counted.received_bytes, counted.sent_bytes = large.bytes_in / size, large.bytes_out / size
        counted.buffer_bytes = large.buffer_bytes / size

    def _tell(self, what: str) -> None:
        self._say(f"{self._counted.store}: {what}")

    def _pids(self) -> list[int]:
        return [agent.pid for agent in self._agents if agent.pid is not None]

    def _calls_of(self, load: Callable[[], T]) -> tuple[Counter[str], Counter[str], int, T]:
        """Return calls in Python, calls in C, and hand-overs, of all agents while `load` runs; and its result."""
        files = {agent: self._directory / f"{agent.pid}.json" for agent in self._agents}
        for agent, file in files.items():
            file.unlink(missing_ok=True)
            agent.send_signal(BEGIN)
        result = load()
        python, c, hand_overs = Counter[str](), Counter[str](), 0
        for agent, file in files.items():
            agent.send_signal(END)
            wait_until(file.is_file, f"{agent.spec.name} tells what it counted", _WRITE_TIMEOUT_S)
            told = json.loads(file.read_text())
            python.update(told["python"])
            c.update(told["c"])
            hand_overs += told["hand_overs"]
        return python, c, hand_overs, result

    def _load(self, record_bytes: int, per_s: int, seconds: float) -> int:
        """Produce one record at a time; return how many objects were made."""
        from confluent_kafka import Producer

        own = {"acks": "all", "linger.ms": 0, "message.max.bytes": 1_000_000}
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap_servers, **CLIENT_CONFIG, **own})
        value, before = bytes(record_bytes), scrape_all(self._cluster)
        for number in paced(round(per_s * seconds), per_s):
            producer.produce(_TOPIC, value, partition=number % len(self._agents))
            if producer.flush(_WRITE_TIMEOUT_S):
                raise TimeoutError("a record was not acknowledged in time")
        grown = scrape_all(self._cluster).subtract(before)
        return round(grown.of("remote_wal_uploaded_segments_total"))

    def _wake_ups(self) -> int:
        return sum(map(wake_ups, self._pids()))


def passed_by(calls: Mapping[str, int], objects: int) -> tuple[list[str], list[str]]:
    """Return the project's modules, and its classes, that are called at least once for every second object."""
    often = [name.split(":") for name, times in calls.items() if times >= objects / 2]
    own = [(module, function) for module, function in often if module.split(".")[0] in _PACKAGES]
    methods = [(module, function) for module, function in own if "." in function and "<locals>" not in function]
    classes = {f"{module}:{function.split('.')[0]}" for module, function in methods}
    return sorted({module for module, _ in own}), sorted(classes)


def wake_ups(pid: int) -> int:
    """Return how often threads of the process have gone to sleep so far, each time followed by a wake-up (proc(5))."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # it has ended
            told = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            found += int(told["voluntary_ctxt_switches"])
    return found


def rows(found: Sequence[Counted]) -> list[tuple[str, ...]]:
    """Return the counts as rows of a table for people."""

    def figure(value: float | None, digits: int = 0) -> str:
        return "no strace" if value is None else f"{value:,.{digits}f}"

    return [
        (
            one.store,
            f"{one.objects} of {one.records}",
            figure(one.python_calls),
            figure(one.c_calls),
            f"{len(one.files)}, {len(one.classes)}",
            figure(one.system_calls),
            figure(one.hand_overs, 1),
            " + ".join(figure(value, 1) for value in (one.received_bytes, one.sent_bytes, one.buffer_bytes)),
            figure(one.idle_wake_ups_per_s),
            figure(one.idle_calls_per_s),
        )
        for one in found
    ]

"""How long a partition takes to another broker, by its size: stock Kafka beside ours, with KIP-405 on and off.

Four clusters of two brokers, one after the other: with and without agents, with and without KIP-405. With KIP-405, what
is ours is `follower.fetch.last.tiered.offset.enable` too, which is off in a stock cluster. In each, topics of one
partition with one replica are filled and moved, stock ones by Kafka's own request, ours by `remote-wal reassign`. A
move counts from its begin until the new replica leads.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.tables import show, table
from kafka_log.segment_files import list_segments
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.topic_switch import set_topics
from perf.clusters import log_bytes, started_cluster
from perf.options import Results

_RECORD_BYTES = 10_000
_SEGMENT_BYTES = 8 << 20
_FROM, _TO = 1, 2
_TIER_TIMEOUT_S = 600.0
_AGENTS = AgentsMode(overrides={"remote.wal.log.metadata.topic.replication.factor": "2"})
"""There are two brokers."""
_BEGIN_AT_TIER = "follower.fetch.last.tiered.offset.enable"


@dataclass(frozen=True, slots=True)
class Moved:
    """One move."""

    rung: str
    kip405: bool
    size_mb: int
    seconds: float
    """From its begin until the new replica leads."""
    command_seconds: float
    """The whole command, with the start of the interpreter; for stock the same as `seconds`."""
    copied_mb: float
    """What the new replica has on its disk at the end."""


def reassign(
    size_mb: Annotated[list[int] | None, typer.Option(help="The partition's size; 50 and 500 unless given.")] = None,
    tier: Annotated[
        bool | None, typer.Option("--kip405/--no-kip405", help="With it on, or off; both unless given.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 1,
    results: Results = Path("perf/results"),
) -> None:
    """Measure the move of a partition to another broker, by its size."""
    from rich.console import Console

    sizes = sorted(size_mb or (50, 500))
    moved: list[Moved] = []
    results.mkdir(parents=True, exist_ok=True)
    with Console().status("preparing") as line:
        for kip405 in (False, True) if tier is None else (tier,):
            for rung in ("stock", "ours"):
                with _cluster(rung, kip405) as cluster:
                    for size in sizes:
                        for number in range(rounds):
                            line.update(f"{rung}, KIP-405 {'on' if kip405 else 'off'}, {size} MB")
                            moved.append(_measure(cluster, rung, kip405, size, number))
                            (results / "reassign.json").write_text(json.dumps([asdict(one) for one in moved]))
    ordered = sorted(moved, key=lambda one: (one.kip405, one.size_mb, one.rung != "stock"))
    rows = [
        (
            "on" if one.kip405 else "off",
            f"{one.size_mb:,} MB",
            one.rung,
            f"{one.seconds:.2f}",
            f"{one.command_seconds:.2f}",
            f"{one.copied_mb:,.1f} MB",
        )
        for one in ordered
    ]
    columns = ("KIP-405", "partition", "rung", ">seconds", ">whole command", ">on the new disk")
    show(table(*columns, rows=rows, title="Until the new replica leads"))


@contextmanager
def _cluster(rung: str, kip405: bool) -> Iterator[LocalCluster]:
    agents, overrides = (_AGENTS, {_BEGIN_AT_TIER: "true"} if kip405 else {}) if rung == "ours" else (None, {})
    with (
        tempfile.TemporaryDirectory(prefix="remote-wal-reassign-") as directory,
        started_cluster(
            Path(directory) / "cluster", agents, brokers=2, overrides=overrides, tiered_storage=kip405
        ) as cluster,
    ):
        yield cluster


def _measure(cluster: LocalCluster, rung: str, kip405: bool, size_mb: int, number: int) -> Moved:
    topic = f"moved-{size_mb}-{number}"
    config = {"min.insync.replicas": "1", "segment.bytes": str(_SEGMENT_BYTES)}
    if kip405:
        config |= {"remote.storage.enable": "true", "local.retention.bytes": "1"}
    cluster.admin.create_topic(topic, assignment=[[_FROM]], config=config)
    if rung == "ours":
        set_topics(cluster.bootstrap_servers, [topic])
    records = size_mb * 1_000_000 // _RECORD_BYTES
    cluster.tools.produce(topic, records=records, record_bytes=_RECORD_BYTES, config={"acks": "1"})
    if kip405:
        wait_until(lambda: len(_segments(cluster, topic)) == 1, "all closed segments are on the tier", _TIER_TIMEOUT_S)
    move = _move_by_command if rung == "ours" else _move_by_kafka
    seconds, command_seconds = move(cluster, topic)
    cluster.admin.wait_for_leader(topic, expected=_TO)
    return Moved(rung, kip405, size_mb, seconds, command_seconds, log_bytes(cluster, _TO, topic) / 1e6)


def _segments(cluster: LocalCluster, topic: str) -> list[int]:
    directory = cluster.files.partition_directory(_FROM, topic, 0)
    return [] if directory is None else sorted(list_segments(directory))


def _move_by_kafka(cluster: LocalCluster, topic: str) -> tuple[float, float]:
    started = time.monotonic()
    cluster.admin.reassign(topic, {0: [_TO]}, timeout_s=_TIER_TIMEOUT_S)
    seconds = time.monotonic() - started
    return seconds, seconds


def _move_by_command(cluster: LocalCluster, topic: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "cli.main", "reassign", "execute", "--bootstrap-server", cluster.bootstrap_servers]
    started = time.monotonic()
    command += ["--topic", topic, "--to", str(_TO), "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    command_seconds = time.monotonic() - started
    if done.returncode:
        raise RuntimeError(f"the move of {topic} failed: {done.stdout}\n{done.stderr}")
    [move] = json.loads(done.stdout)["moves"]
    return float(move["seconds"]), command_seconds

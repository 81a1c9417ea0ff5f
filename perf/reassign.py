"""How long a partition takes to another broker, and what crosses the zone border, by where its older half is.

Two clusters of three brokers side by side, stock and with agents, move the same partition in turns: two replicas, of
which one, with the leadership, goes to the third broker; in stock by Kafka's own request, here by `remote-wal
reassign`. The clusters differ in `follower.fetch.last.tiered.offset.enable` too, which is on with agents. A move counts
from its begin until the new replica leads. Seconds stand for the hours after which objects go.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.tables import show, table
from kafka_log.segment_files import list_segments
from local_cluster.agent_metrics import Counters, scrape_all
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.topic_switch import set_topics
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from metadata_topic.settings.wal_retention import AS_LOCAL
from perf.clusters import log_bytes, started_cluster
from perf.options import Results
from plugin.loading import DEFAULT_ARCHIVE_IMPL_PREFIX

_RECORD_BYTES = 10_000
_SEGMENT_BYTES = 8 << 20
_BEFORE, _AFTER = (1, 2), (3, 2)
_NEW = _AFTER[0]
_PATIENCE_S = 600.0
_RETENTION_MS = 20_000
_BEGIN_AT_TIER = {"follower.fetch.last.tiered.offset.enable": "true"}
_AGENTS = {
    "remote.wal.expiration.task.interval.ms": "200",
    "remote.wal.expiration.delete.grace.ms": "1000",
    "remote.wal.expiration.topic.gone.ms": "2000",
    "remote.wal.expiration.cluster.interval.ms": "500",
    "remote.wal.archive.enable": "true",
    "remote.wal.archive.storage.manager.class.name": "plugin.local_directory.LocalWalStorageManager",
    DEFAULT_ARCHIVE_IMPL_PREFIX + "put.latency.ms": "20",
    DEFAULT_ARCHIVE_IMPL_PREFIX + "get.latency.ms": "20",
    "remote.wal.archive.object.max.age.ms": "1000",
    "remote.wal.archive.task.interval.ms": "500",
    "remote.wal.archive.care.interval.ms": "500",
}


class Kept(StrEnum):
    """Where the older half of the partition is when it moves; the newer half is in the WAL's objects."""

    WAL = "wal"
    """There too."""
    LOGS = "logs"
    """In the brokers' logs alone, as its objects are past their retention."""
    ARCHIVE = "archive"
    """And in the archive."""
    TIER = "tier"
    """On KIP-405's tier, with all but the active segment of the newer half; these have left the logs."""

    @property
    def settings(self) -> TopicSettings:
        """Links for every byte, so that a slow machine does not upload less."""
        retention_ms = _RETENTION_MS if self in (Kept.LOGS, Kept.ARCHIVE) else AS_LOCAL
        is_archived = self is Kept.ARCHIVE
        return TopicSettings(True, LinkPolicy.ALWAYS, archive=is_archived, wal_retention_ms=retention_ms)

    @property
    def topic_config(self) -> Mapping[str, str]:
        """Kafka's."""
        config = {"min.insync.replicas": "1", "segment.bytes": str(_SEGMENT_BYTES)}
        return config | ({"remote.storage.enable": "true", "local.retention.bytes": "1"} if self is Kept.TIER else {})


@dataclass(frozen=True, slots=True)
class Moved:
    """One move; megabytes are of 10^6 bytes."""

    rung: str
    kept: str
    size_mb: int
    seconds: float
    """From its begin until the new replica leads."""
    command_seconds: float
    """The whole command, with the start of the interpreter; for stock the same as `seconds`."""
    copied_mb: float
    """What the new replica has on its disk at the end."""
    border_mb: float
    """What crossed the zone border meanwhile; of stock, the records alone."""
    inline_mb: float
    linked_mb: float
    """Records that came by way of objects."""


def reassign(
    size_mb: Annotated[list[int] | None, typer.Option(help="The partition's size; 50 unless given.")] = None,
    kept: Annotated[list[Kept] | None, typer.Option(help="Where its older half is; each unless given.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 1,
    results: Results = Path("perf/results"),
) -> None:
    """Measure the move of a partition to another broker: time, and bytes at the border."""
    from rich.console import Console

    moved: list[Moved] = []
    results.mkdir(parents=True, exist_ok=True)
    with Console().status("preparing") as line, _clusters() as clusters:
        for where in kept or list(Kept):
            for size in sorted(size_mb or (50,)):
                for number in range(rounds):
                    for rung, cluster in clusters.items():
                        line.update(f"{rung}, the older half is in {where}, {size} MB")
                        moved.append(_measure(cluster, rung, where, size, number))
                        (results / "reassign.json").write_text(json.dumps([asdict(one) for one in moved]))
    figures = ("seconds", "command_seconds", "border_mb", "inline_mb", "linked_mb", "copied_mb")
    rows = [
        (one.kept, f"{one.size_mb:,} MB", one.rung, *(f"{getattr(one, figure):,.2f}" for figure in figures))
        for one in moved
    ]
    columns = (">seconds", ">whole command", ">border MB", ">inline MB", ">linked MB", ">on the new disk, MB")
    show(table("older half in", "partition", "rung", *columns, rows=rows, title="Until the new replica leads"))


@contextmanager
def _clusters() -> Iterator[dict[str, LocalCluster]]:
    with tempfile.TemporaryDirectory(prefix="remote-wal-reassign-") as directory:
        path = Path(directory)
        agents = AgentsMode(
            overrides={**_AGENTS, DEFAULT_ARCHIVE_IMPL_PREFIX + "directory": str(path / "archive")},
        )
        with (
            started_cluster(path / "stock", None, tiered_storage=True) as stock,
            started_cluster(path / "ours", agents, tiered_storage=True, overrides=_BEGIN_AT_TIER) as ours,
        ):
            yield {"stock": stock, "ours": ours}


def _measure(cluster: LocalCluster, rung: str, kept: Kept, size_mb: int, number: int) -> Moved:
    is_ours = cluster.settings.agents is not None
    topic = f"moved-{kept}-{size_mb}-{number}"
    cluster.admin.create_topic(topic, assignment=[_BEFORE], config=kept.topic_config)
    if is_ours:
        set_topics(cluster.bootstrap_servers, [topic], kept.settings)
    _produce_half(cluster, topic, size_mb)
    if is_ours and kept.settings.wal_retention_ms == _RETENTION_MS:
        wait_until(lambda: _objects(cluster) == 0, "what the WAL keeps no longer is gone", _PATIENCE_S)
    _produce_half(cluster, topic, size_mb)
    if kept is Kept.TIER:
        wait_until(lambda: _segments(cluster, topic) == 1, "all closed segments are on the tier", _PATIENCE_S)
    before = scrape_all(cluster).counters if is_ours else Counters()
    move: Callable[[LocalCluster, str], tuple[float, float]] = _move_by_command if is_ours else _move_by_kafka
    seconds, command_seconds = move(cluster, topic)
    cluster.admin.wait_for_leader(topic, expected=_NEW)
    counted = scrape_all(cluster).counters.since(before) if is_ours else Counters()
    copied_mb = log_bytes(cluster, _NEW, topic) / 1e6
    crossed = (
        [counted.zone_bytes, counted.inline_bytes, counted.linked_bytes] if is_ours else [copied_mb * 1e6] * 2 + [0.0]
    )
    cluster.admin.delete_topic(topic)
    return Moved(rung, kept, size_mb, seconds, command_seconds, copied_mb, *(size / 1e6 for size in crossed))


def _produce_half(cluster: LocalCluster, topic: str, size_mb: int) -> None:
    records = size_mb * 1_000_000 // _RECORD_BYTES // 2
    cluster.tools.produce(topic, records=records, record_bytes=_RECORD_BYTES, config={"acks": "1"})


def _objects(cluster: LocalCluster) -> int:
    return sum(1 for _ in cluster.layout.object_store_directory.rglob("*.rwal"))


def _segments(cluster: LocalCluster, topic: str) -> int:
    directory = cluster.files.partition_directory(_BEFORE[0], topic, 0)
    return 0 if directory is None else len(list(list_segments(directory)))


def _move_by_kafka(cluster: LocalCluster, topic: str) -> tuple[float, float]:
    started = time.monotonic()
    cluster.admin.reassign(topic, {0: _AFTER}, timeout_s=_PATIENCE_S)
    seconds = time.monotonic() - started
    return seconds, seconds


def _move_by_command(cluster: LocalCluster, topic: str) -> tuple[float, float]:
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": _AFTER}]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as plan:
        plan.write(json.dumps(wanted))
        plan.flush()
        command = [sys.executable, "-m", "cli.main", "reassign", "execute", "--plan", plan.name, "--json"]
        started = time.monotonic()
        command += ["--bootstrap-server", cluster.bootstrap_servers]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        command_seconds = time.monotonic() - started
    if done.returncode:
        raise RuntimeError(f"the move of {topic} failed: {done.stdout}\n{done.stderr}")
    [move] = json.loads(done.stdout)["moves"]
    return float(move["seconds"]), command_seconds

"""The demonstration, from an empty directory to the report."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demo import faults
from demo.load import Heartbeat, prepare_topics, produce, read_back
from demo.measurement import Sampler
from demo.plan import ALL_TOPICS, GATEWAYS, LEDGER_TOPIC, DemoPlan, PerformanceRun
from demo.progress import Progress
from demo.report import (
    MB_PER_MIB,
    FaultSeen,
    ProducerRun,
    Replicas,
    Report,
    moved_between,
    records_of,
    traffic_between,
)
from demo.store_outage import DirectoryOutage, PausedOutage, StoreOutage
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_distribution import KAFKA_VERSION
from local_cluster.kafka_tools import KafkaTools, ProducerPerformance
from local_cluster.object_store.native import start_native_store
from local_cluster.object_store.process import start_object_store
from local_cluster.object_store.server import DEFAULT_BUCKET, DEFAULT_DIRECTORY_BUCKET
from local_cluster.object_store.store_spec import LocalDirectoryStore, S3Store, StoreKind
from local_cluster.security.inter_broker_protocol import InterBrokerProtocol
from local_cluster.workload.ledger import LedgerReport
from local_cluster.workload.ledger_workload import LedgerWorkload
from local_cluster.workload.replica_comparison import compare_replicas
from plugin.prices import Prices

if TYPE_CHECKING:
    from local_cluster.object_store.store_spec import StoreSpec

_BROKER_SETTINGS = {
    # Agents read their metadata from the broker of their own zone, as docs/operations.md tells operators.
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "group.initial.rebalance.delay.ms": "0",
}


class DemoError(Exception):
    """The demonstration cannot run as asked."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line chose."""

    plan: DemoPlan
    store: StoreKind = StoreKind.LOCAL
    keep: Path | None = None
    """Where everything stays; None: a temporary directory, removed at the end."""
    protocol: InterBrokerProtocol = InterBrokerProtocol.PLAINTEXT


@dataclass(frozen=True, slots=True)
class _Load:
    """All that writes, reads and watches."""

    direct: KafkaTools
    by_agents: KafkaTools
    ledger: LedgerWorkload
    heartbeat: Heartbeat
    sampler: Sampler


def run_demo(options: DemoOptions, progress: Progress, clock: Callable[[], float] = time.monotonic) -> Report:
    """Run all of it. However it ends, no process is left behind.

    Raises the errors of local_cluster and metadata_topic, LedgerWorkloadError, KafkaToolError, DemoError.
    """
    started_s = clock()
    with contextlib.ExitStack() as undo:
        directory = _directory(options, undo)
        progress.begin("start three brokers, three agents")
        spec, outage = _store(options.store, directory, undo)
        cluster = _start_cluster(options, directory / "cluster", spec, progress)
        undo.callback(cluster.kill_all)
        progress.end(f"Kafka {KAFKA_VERSION}, unmodified, {options.protocol}; each pair is a zone of its own")
        progress.begin("make topics, switch them on", f"{len(ALL_TOPICS)} topics, remote.wal.storage.enable=true")
        prepare_topics(cluster)
        load = _start_load(cluster, options.plan, clock, undo)
        outage = outage or DirectoryOutage(cluster.layout.object_store_directory)
        return _Show(options, cluster, load, progress, clock).play(outage, started_s)


class _Show:
    """The part with records."""

    def __init__(
        self,
        options: DemoOptions,
        cluster: LocalCluster,
        load: _Load,
        progress: Progress,
        clock: Callable[[], float],
    ) -> None:
        self._options = options
        self._plan = options.plan
        self._cluster = cluster
        self._load = load
        self._progress = progress
        self._clock = clock

    def play(self, outage: StoreOutage, started_s: float) -> Report:
        """Every step, then the report."""
        load, plan, progress = self._load, self._plan, self._progress
        first = load.sampler.now()
        progress.begin("measure latency at a steady pace", "producer-perf-test with acks=1, acks=all, and by agents")
        paced = produce(plan.paced, load.direct, load.by_agents)
        quiet = load.sampler.now()
        progress.end(", ".join(map(_latency_note, plan.paced, paced)) + " (p50 / p99)")
        load.ledger.start()
        load.heartbeat.start()
        progress.begin("write as fast as it goes", "each way in turn, beside seven numbered producers")
        before = load.sampler.now()
        saturated = produce(plan.saturated, load.direct, load.by_agents)
        after = load.sampler.now()
        progress.end(", ".join(map(_throughput_note, plan.saturated, saturated)))
        seen = self._break_things(before.at_s, outage)
        ledger_report, replicas, consumed = self._judge()
        last = load.sampler.now()
        phases = {
            "paced": (plan.paced, paced, (first, quiet)),
            "saturated": (plan.saturated, saturated, (before, after)),
        }
        prices, store = Prices.load(), self._options.store
        faults_counted = last.totals.by("remote_wal_faults_total", "reason")
        return Report(
            store=store,
            kafka_version=KAFKA_VERSION,
            total_s=self._clock() - started_s,
            load_s=last.at_s - first.at_s,
            records=records_of(
                ledger_report,
                [producer.name for producer in plan.ledger_producers() if producer.acks == "1"],
                sum(run.records for run in (*plan.paced, *plan.saturated)),
                sum(result.records for result in (*paced, *saturated)),
                consumed,
            ),
            replicas=replicas,
            whole=traffic_between(first, last, prices, store, replicas.bytes),
            phases={name: traffic_between(*moments, prices, store) for name, (_, _, moments) in phases.items()},
            producers=tuple(
                ProducerRun(name, run.way.name, result, moved_between(*moments, run.way.topic.name))
                for name, (runs, results, moments) in phases.items()
                for run, result in zip(runs, results, strict=True)
            ),
            faults=tuple(seen),
            fault_counters={reason: int(count) for reason, count in sorted(faults_counted.items()) if count},
        )

    def _break_things(self, flowing_since_s: float, outage: StoreOutage) -> list[FaultSeen]:
        load, plan, progress = self._load, self._plan, self._progress
        scene = faults.Scene(self._cluster, load.sampler, load.heartbeat, flowing_since_s, self._clock)
        progress.begin("kill -9 a broker that leads", "its followers take over; then it comes back")
        seen = [faults.kill_leader(scene)]
        note = "a new leader after {new_leader_after_s:.1f} s, all in sync after {all_in_sync_after_s:.0f} s"
        progress.end(note.format_map(seen[-1].seen))
        scene.pause(plan.calm_s)
        progress.begin(f"take the object store away for {plan.store_outage_s:.0f} s", outage.description)
        seen.append(faults.store_outage(scene, outage, plan.store_outage_s))
        inline = seen[-1].seen["inline_bytes"]
        assert isinstance(inline, int)  # noqa: S101 - narrows what faults.py counts
        progress.end(f"{inline / 1e6:.1f} MB went inline meanwhile")
        scene.pause(plan.calm_s)
        progress.begin("kill -9 an agent", "and start it again")
        seen.append(faults.kill_agent(scene))
        progress.end("ready again after {ready_again_after_s:.1f} s".format_map(seen[-1].seen))
        scene.pause(plan.calm_s)
        return seen

    def _judge(self) -> tuple[LedgerReport, Replicas, int]:
        load, progress = self._load, self._progress
        progress.begin("stop the producers", "the last acknowledgements come in")
        load.heartbeat.finish()
        load.ledger.stop_producing()
        progress.begin("read every record back", "by number, and with consumer-perf-test")
        ledger_report = load.ledger.finish()
        consumed = read_back([*self._plan.paced, *self._plan.saturated], load.direct)
        progress.end(f"{ledger_report.consumed + consumed:,} records")
        progress.begin("compare all replicas byte by byte")
        compared = [compare_replicas(self._cluster, topic.name) for topic in ALL_TOPICS]
        replicas = Replicas(
            sum(len(comparison.partitions) for comparison in compared),
            sum(comparison.compared_bytes for comparison in compared),
            tuple(str(comparison) for comparison in compared if not comparison.identical),
        )
        progress.end(f"{replicas.partitions} partitions of {replicas.bytes / 1e6:,.0f} MB, three replicas each")
        return ledger_report, replicas, consumed


def _latency_note(run: PerformanceRun, result: ProducerPerformance) -> str:
    return f"{run.way.name} {result.p50_ms:,.0f} / {result.p99_ms:,.0f} ms"


def _throughput_note(run: PerformanceRun, result: ProducerPerformance) -> str:
    return f"{run.way.name} {result.mib_per_s * MB_PER_MIB:.1f} MB/s"


def _directory(options: DemoOptions, undo: contextlib.ExitStack) -> Path:
    if options.keep is not None:
        if options.keep.exists() and any(options.keep.iterdir()):
            raise DemoError(f"{options.keep} is not empty: --keep needs a directory of its own")
        options.keep.mkdir(parents=True, exist_ok=True)
        return options.keep.absolute()
    directory = Path(tempfile.mkdtemp(prefix="remote-wal-demo-"))
    undo.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _store(store: StoreKind, directory: Path, undo: contextlib.ExitStack) -> "tuple[StoreSpec, StoreOutage | None]":
    if store is StoreKind.LOCAL:
        return LocalDirectoryStore(), None
    if store is StoreKind.S3_NATIVE:
        native, spec = start_native_store(directory / "object-store-server", DEFAULT_BUCKET)
        undo.callback(native.kill)
        return spec, PausedOutage(native)
    bucket = DEFAULT_DIRECTORY_BUCKET if store is StoreKind.S3_EXPRESS else DEFAULT_BUCKET
    server, url = start_object_store(directory / "object-store-server", bucket)
    undo.callback(server.kill)
    return S3Store(url, bucket, backend=store.backend), PausedOutage(server)


def _start_cluster(options: DemoOptions, directory: Path, store: "StoreSpec", progress: Progress) -> LocalCluster:
    settings = ClusterSettings(AgentsMode(store, gateways=GATEWAYS), _BROKER_SETTINGS)
    settings = settings.speaking(options.protocol)
    cluster = LocalCluster.create(directory, settings=settings, progress=progress.note)
    try:
        cluster.start()
    except BaseException:
        cluster.kill_all()
        raise
    return cluster


def _start_load(
    cluster: LocalCluster,
    plan: DemoPlan,
    clock: Callable[[], float],
    undo: contextlib.ExitStack,
) -> _Load:
    """Producers that wait for their step."""
    load = _Load(
        cluster.tools,
        cluster.runtime.tools(GATEWAYS.bootstrap_servers(cluster.layout, "az1")),
        LedgerWorkload(cluster.bootstrap_servers, LEDGER_TOPIC.name, plan.ledger_producers()),
        Heartbeat(cluster.bootstrap_servers, clock),
        Sampler(cluster, clock),
    )
    undo.callback(load.ledger.abandon)
    undo.callback(load.heartbeat.abandon)
    return load

"""The demonstration, from an empty directory to the report."""

import contextlib
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from demo import faults
from demo.load import Heartbeat, prepare_topics, produce, read_back
from demo.measurement import Moment, Sampler
from demo.plan import ALL_TOPICS, GATEWAYS, LEDGER_TOPIC, DemoPlan, PerformanceRun
from demo.presentation import Progress
from demo.report import MB_PER_MIB, FaultSeen, ProducerRun, Replicas, Report, moved_between, records_of, traffic_between
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_distribution import KAFKA_VERSION
from local_cluster.kafka_tools import ProducerPerformance
from local_cluster.object_store.native import start_native_store
from local_cluster.object_store.store_spec import LocalDirectoryStore, OwnStore, StoreSpec
from local_cluster.processes import ManagedProcess
from local_cluster.workload.ledger import LedgerReport, LedgerWorkload
from local_cluster.workload.replica_comparison import compare_replicas
from plugin.prices import Prices

_BROKER_SETTINGS = {
    # Agents read their metadata from the broker of their own zone, as docs/operations.md tells operators.
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "group.initial.rebalance.delay.ms": "0",
}


def run_demo(plan: DemoPlan, store: OwnStore, progress: Progress) -> Report:
    """Run the demo in a temporary directory. However it ends, no process and no file is left.

    Raises the errors of local_cluster and metadata_topic, LedgerWorkloadError, KafkaToolError.
    """
    started_s = time.monotonic()
    with contextlib.ExitStack() as undo:
        directory = Path(tempfile.mkdtemp(prefix="remote-wal-demo-"))
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        progress.begin("start three brokers, three agents")
        server, spec = _store(store, directory, undo)
        settings = ClusterSettings(AgentsMode(spec, gateways=GATEWAYS), _BROKER_SETTINGS)
        cluster = LocalCluster.create(directory / "cluster", settings=settings, progress=progress.note)
        undo.callback(cluster.kill_all)
        cluster.start()
        progress.end(f"Kafka {KAFKA_VERSION}, unmodified; each pair is a zone of its own")
        progress.begin("make topics, switch them on", f"{len(ALL_TOPICS)} topics, remote.wal.storage.enable=true")
        prepare_topics(cluster)
        show = _Show(plan, store, cluster, server, progress)
        undo.callback(show.abandon)
        return show.play(started_s)


@dataclass(frozen=True, slots=True)
class _Phase:
    """Runs of Kafka's producer performance, and the time that they took."""

    runs: tuple[PerformanceRun, ...]
    results: list[ProducerPerformance]
    before: Moment
    after: Moment


class _Show:
    """The part with records. Producers wait for their step."""

    def __init__(
        self, plan: DemoPlan, store: OwnStore, cluster: LocalCluster, server: ManagedProcess | None, progress: Progress
    ) -> None:
        self._plan = plan
        self._store = store
        self._cluster = cluster
        self._server = server
        self._progress = progress
        self._direct = cluster.tools
        self._by_agents = cluster.runtime.tools(GATEWAYS.bootstrap_servers(cluster.layout, "az1"))
        self._ledger = LedgerWorkload(cluster.bootstrap_servers, LEDGER_TOPIC, plan.ledger_producers())
        self._heartbeat = Heartbeat(cluster.bootstrap_servers)
        self._sampler = Sampler(cluster)

    def abandon(self) -> None:
        """Tell all that writes to end, without waiting."""
        self._heartbeat.abandon()
        self._ledger.abandon()

    def play(self, started_s: float) -> Report:
        """Every step, then the report."""
        plan, progress = self._plan, self._progress
        progress.begin("measure latency at a steady pace", "producer-perf-test with acks=1, acks=all, and by agents")
        paced = self._produce(plan.paced)
        progress.end(", ".join(map(_latency_note, paced.runs, paced.results)) + " (p50 / p99)")
        self._ledger.start()
        self._heartbeat.start()
        progress.begin("write as fast as it goes", "each way in turn, beside seven numbered producers")
        saturated = self._produce(plan.saturated)
        progress.end(", ".join(map(_throughput_note, saturated.runs, saturated.results)))
        seen = self._break_things(saturated.before.at_s)
        ledger_report, replicas, consumed = self._judge()
        first, last = paced.before, self._sampler.now()
        phases = {"paced": paced, "saturated": saturated}
        prices, store = Prices.load(), self._store
        faults_counted = last.totals.sum_by("remote_wal_faults_total", "reason")
        return Report(
            store=store,
            kafka_version=KAFKA_VERSION,
            total_s=time.monotonic() - started_s,
            load_s=last.at_s - first.at_s,
            records=records_of(
                ledger_report,
                [producer.name for producer in plan.ledger_producers() if producer.acks == "1"],
                sum(run.records for run in (*plan.paced, *plan.saturated)),
                sum(result.records for result in (*paced.results, *saturated.results)),
                consumed,
            ),
            replicas=replicas,
            whole=traffic_between(first, last, prices, store, replicas.bytes),
            phases={name: traffic_between(one.before, one.after, prices, store) for name, one in phases.items()},
            producers=tuple(
                ProducerRun(name, run.way.name, result, moved_between(one.before, one.after, run.way.topic))
                for name, one in phases.items()
                for run, result in zip(one.runs, one.results, strict=True)
            ),
            faults=tuple(seen),
            fault_counters={reason: int(count) for reason, count in sorted(faults_counted.items()) if count},
        )

    def _produce(self, runs: tuple[PerformanceRun, ...]) -> _Phase:
        before = self._sampler.now()
        results = produce(runs, self._direct, self._by_agents)
        return _Phase(runs, results, before, self._sampler.now())

    def _break_things(self, flowing_since_s: float) -> list[FaultSeen]:
        plan, progress = self._plan, self._progress
        scene = faults.Scene(self._cluster, self._sampler, self._heartbeat, flowing_since_s)
        progress.begin("kill -9 a broker that leads", "its followers take over; then it comes back")
        seen = [faults.kill_leader(scene)]
        note = "a new leader after {new_leader_after_s:.1f} s, all in sync after {all_in_sync_after_s:.0f} s"
        progress.end(note.format_map(seen[-1].seen))
        scene.pause(plan.calm_s)
        told = "requests are never answered" if self._server else "requests fail, as on a lost mount"
        progress.begin(f"take the object store away for {plan.store_outage_s:.0f} s", told)
        seen.append(faults.store_outage(scene, self._server, told, plan.store_outage_s))
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
        progress = self._progress
        progress.begin("stop the producers", "the last acknowledgements come in")
        self._heartbeat.finish()
        self._ledger.stop_producing()
        progress.begin("read every record back", "by number, and with consumer-perf-test")
        ledger_report = self._ledger.finish()
        consumed = read_back([*self._plan.paced, *self._plan.saturated], self._direct)
        progress.end(f"{ledger_report.consumed + consumed:,} records")
        progress.begin("compare all replicas byte by byte")
        compared = [compare_replicas(self._cluster, topic) for topic in ALL_TOPICS]
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


def _store(store: OwnStore, directory: Path, undo: contextlib.ExitStack) -> tuple[ManagedProcess | None, StoreSpec]:
    """Return the store's server, if it has one, and the agents' settings for it."""
    if store is OwnStore.LOCAL:
        return None, LocalDirectoryStore()
    server, spec = start_native_store(directory / "object-store-server", "remote-wal")
    undo.callback(server.kill)
    return server, spec

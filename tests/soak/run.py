"""A soak from an empty directory to its verdict: records flow, faults strike as planned, then all is judged at rest."""

import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from local_cluster.agent_metrics import scrape_all
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.native import start_native_store
from local_cluster.object_store.store_spec import S3Store
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.processes import ProcessStartError
from local_cluster.workload.ledger import LedgerWorkloadError
from local_cluster.zones import ZoneGateways
from plugin.wall_clock import wall_ms
from tests.cluster.quick_agent import QuickAgents, quick
from tests.faulty_store import DEFAULT_BUCKET, start_faulty_store
from tests.soak.changed_topics import COMPARABLE, REPLICATED
from tests.soak.fault_plan import FaultKind, Step, plan_faults
from tests.soak.judgement import Judge, Tell
from tests.soak.load import TOPICS, Load, Records
from tests.soak.strikes import Strikes
from tests.soak.verifiable_clients import VerifiableClientError

RETENTION_MS = 300_000
_STEPS_BETWEEN_RESTS = 4
_STORE_LATENCY_MS = 20
_LINKS_S = 60.0
_BROKERS = {
    "replica.lag.time.max.ms": "10000",
    "replica.socket.timeout.ms": "10000",
    "log.retention.check.interval.ms": "30000",
    "log.segment.delete.delay.ms": "1000",
}
_AGENTS = {
    # So that one machine bears it: some ten objects a second and agent.
    "remote.wal.log.manager.combiner.task.interval.ms": "100",
    # What takes hours elsewhere comes often enough to be struck.
    "remote.wal.uncommitted.ttl.ms": "60000",
    **quick(expiration_interval_s=5, delete_grace_times=0.5, cluster_interval_s=5),
    **quick(orphans_interval_s=30, failover_interval_s=5),
}


class ByGateway(StrEnum):
    """How clients go by the gateways of their zones. Consumers read from the replica of their zone."""

    RELAYED = "relayed"
    """Their bytes pass as they are."""
    OBJECTS = "objects"
    """What they produce and read goes by object storage, whatever it costs, and logs keep what gateways stored. The
    numbered producers are answered once their records are stored.
    """


_GATEWAYS = {
    ByGateway.RELAYED: {"remote.wal.gateway.fetch.rack.enable": "true"},
    ByGateway.OBJECTS: {
        "remote.wal.gateway.fetch.rack.enable": "true",
        "remote.wal.gateway.fetch.links.enable": "true",
        "remote.wal.gateway.produce.enable": "true",
        "remote.wal.gateway.produce.policy": "always",
    },
}
_BROKERS_OF_ZONES = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
_CALM_S = 35.0
_SETTLED_S, _ENDS_S = 5.0, 10.0
"""Of the calm: what is begun before and after it may have had other clients."""


@dataclass(frozen=True, slots=True)
class SoakOptions:
    seconds: float
    seed: int
    kinds: Sequence[FaultKind] = tuple(FaultKind)
    longest_fault_s: float = 15.0
    reads_objects_back: bool = True
    """Whether all objects are read, and orphans waited for, which takes a minute."""
    gateway: ByGateway | None = None
    """None: clients go to the brokers themselves."""
    copies: bool = True
    """Whether the transactional copier runs too: a JVM every few seconds."""


@dataclass(slots=True)
class SoakReport:
    with_agents: bool
    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    records: Records | None = None
    figures: dict[str, object] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    """What must not be; empty if all promises were kept."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        records = asdict(self.records) if self.records is not None else None
        return {
            "with_agents": self.with_agents,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": dict(self.faults),
            "records": records,
            "figures": self.figures,
            "findings": self.findings,
        }


def run_soak(options: SoakOptions, directory: Path, tell: Tell, *, with_agents: bool) -> SoakReport:
    """Run it. However it ends, no process is left behind; the directory stays.

    Raises ProcessStartError, WaitTimeoutError when the cluster does not even start.
    """
    with contextlib.ExitStack() as undo:
        store: S3Store | None = None
        if with_agents:
            latency = ("--put-latency-ms", str(_STORE_LATENCY_MS), "--get-latency-ms", str(_STORE_LATENCY_MS))
            # Faults are played by the front. The objects are in a native server: moto lists many of them too slowly.
            native, store = start_native_store(directory / "store", DEFAULT_BUCKET, tls=False)
            undo.callback(native.kill)
            behind = store.endpoint_url.removeprefix("http://")
            server, url = start_faulty_store(directory / "front", "--behind", behind, *latency)
            undo.callback(server.kill)
            store = replace(store, endpoint_url=url)
        # The controllers' logs stand apart, as on machines of their own: only brokers lose their disks.
        controllers = {number: {"metadata.log.dir": str(directory / f"controller-{number}")} for number in (1, 2, 3)}
        settings = replace(soak_settings(options, store), broker_overrides=controllers)
        cluster = LocalCluster.create(directory / "cluster", settings=settings)
        undo.callback(cluster.kill_all)
        tell("starting the cluster")
        cluster.start()
        return Soak(options, cluster, store, tell).run(directory / "clients")


def soak_settings(options: SoakOptions, store: S3Store | None) -> ClusterSettings:
    """Of a cluster of three; without a store there are no agents."""
    if store is None:
        return ClusterSettings(None, _BROKERS)
    if options.gateway is None:
        return ClusterSettings(QuickAgents(store, _AGENTS), _BROKERS)
    zones = ZoneGateways({1: "az1", 2: "az2", 3: "az3"}, durable=options.gateway is ByGateway.OBJECTS)
    agents = QuickAgents(store, _AGENTS | _GATEWAYS[options.gateway], gateways=zones)
    return ClusterSettings(agents, _BROKERS | _BROKERS_OF_ZONES)


class Soak:
    """The part with records, on a cluster that runs."""

    def __init__(
        self,
        options: SoakOptions,
        cluster: LocalCluster,
        store: S3Store | None,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a `store` with an endpoint, its faults do nothing."""
        self.report = SoakReport(cluster.layout.has_agents, options.seed)
        self._options = options
        self._cluster = cluster
        self._store = store
        self._say = tell
        self._clock = clock
        self._started_s = clock()
        self._calm_ms: tuple[int, int] | None = None
        self._pause = threading.Event().wait

    def run(self, directory: Path) -> SoakReport:
        """Faults, then the verdict. `directory` takes what the clients leave."""
        report = self.report
        load = Load(self._cluster, directory, self._options.seed, RETENTION_MS, copies=self._options.copies)
        strikes = Strikes(self._cluster, self._store, (*TOPICS, *REPLICATED), load.changed)
        with load:
            try:
                self._strike(load, strikes)
                self._tell("the faults are over: everything comes back")
                strikes.settle()
                report.findings += self._links_are_used()
                if self._adopts:
                    self._be_calm(load)
                self._tell("the producers end, and what they wrote is read")
                load.changed.finish()
                report.findings += load.changed.findings()  # before all that may expire has done so
                report.records = load.finish()
                report.findings += report.records.findings()
                report.figures["changed_topics"] = load.changed.figures()
                report.figures["recovered_logs"] = dict(strikes.recovered)
                report.figures["given_up_with_their_only_disk"] = strikes.given_up
                self._tell(f"records: {'; '.join(report.findings) or 'nothing lost, doubled or reordered'}")
                report.figures["copier_runs"] = dict(Counter(map(str, load.copier_runs)))
                self._judge()
            except (LedgerWorkloadError, VerifiableClientError, ProcessStartError, WaitTimeoutError) as error:
                report.findings.append(f"{type(error).__name__}: {error}")
        report.findings += strikes.findings
        report.seconds = self._clock() - self._started_s
        return report

    def _strike(self, load: Load, strikes: Strikes) -> None:
        ends_s = self._clock() + self._options.seconds
        plan = plan_faults(
            self._options.seed, self._cluster.broker_ids, self._options.kinds, self._options.longest_fault_s
        )
        for number, step in enumerate(plan, start=1):
            if self._clock() >= ends_s:
                return
            self._play(step, strikes)
            records = load.records()
            faults = " and ".join(map(str, step.faults))
            self._tell(f"{faults}; {records.ledger.acknowledged:,} acknowledged, {records.ledger.consumed:,} read")
            if number % _STEPS_BETWEEN_RESTS == 0:
                strikes.settle()

    def _play(self, step: Step, strikes: Strikes) -> None:
        began_s = self._clock()
        for fault in step.faults:
            self.report.faults[fault.kind.value] += 1
            strikes.begin(fault)
        for fault in sorted(step.faults, key=lambda fault: fault.seconds):
            self._pause(max(began_s + fault.seconds - self._clock(), 0.0))
            strikes.end(fault)
        self._pause(step.calm_s)
        strikes.look()

    def _links_are_used(self) -> Iterator[str]:
        """A soak in which all goes inline shows nothing."""
        if not self._cluster.layout.has_agents:
            return
        try:
            wait_until(lambda: scrape_all(self._cluster).linked_bytes > 0, "links are used again", _LINKS_S)
        except (WaitTimeoutError, OSError) as error:
            yield f"after the faults: {error}"
        self.report.figures["linked_bytes_since_last_start"] = int(scrape_all(self._cluster).linked_bytes)

    def _be_calm(self, load: Load) -> None:
        self._tell("for a while no client comes or goes")
        load.rest()
        begin_ms = wall_ms() + int(_SETTLED_S * 1000)
        self._pause(_CALM_S)
        self._calm_ms = begin_ms, wall_ms() - int(_ENDS_S * 1000)

    def _judge(self) -> None:
        judge = Judge(self._cluster, (*TOPICS, *COMPARABLE), self._tell)
        now_ms = wall_ms()
        found = itertools.chain(judge.replicas(), judge.defects())
        if self._cluster.layout.has_agents:
            environment = self._store.environment() if self._store is not None else {}
            os.environ.update(environment)  # the store's credentials, for what is read in this process
            found = itertools.chain(judge.all_is_stored(), judge.stored_offsets(now_ms, RETENTION_MS), found)
            if self._keys.get("remote.wal.gateway.produce.enable"):
                found = itertools.chain(judge.router_channels(self._calm_ms), found)
            if self._options.reads_objects_back:
                found = itertools.chain(found, judge.objects(environment), judge.orphans(environment))
        for finding in found:
            self._tell(f"BROKEN: {finding}")
            self.report.findings.append(finding)
        self.report.figures |= judge.figures

    @property
    def _keys(self) -> Mapping[str, str]:
        agents = self._cluster.settings.agents
        return {} if agents is None else agents.overrides

    @property
    def _adopts(self) -> bool:
        return "remote.wal.gateway.produce.enable" in self._keys

    def _tell(self, line: str) -> None:
        self._say(f"{self._clock() - self._started_s:7.1f} s  {line}")

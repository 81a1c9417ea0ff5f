"""The language of the cluster tests: a script of actions and expectations, played with agents and without.

Without agents the same script is the control: actions on agents do nothing there, and expectations of links hold
without being looked at. All else, above all the promises at the end, is the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from kafka_log.broker_files.partition_metadata import read_partition_metadata
from kafka_log.topic_partition import TopicId
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.workload.ledger import LedgerReport, LedgerWorkload, ProducerPlan, TransactionPlan
from local_cluster.workload.replica_comparison import compare_replicas
from metadata_topic.settings.topic_settings import TopicSettings
from plugin.errors import RemoteResourceNotFoundError
from plugin.loading import StorageSpec, load_storage_manager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.store_loop import ask, ask_each
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters, describe
from tests.cluster.replica_moves import delete_topic, elect_preferred_leaders

PATIENCE_S = 90.0
"""Machines may be slow and shared: this only bounds how long a failure takes."""

PLAIN = ProducerPlan("plain", records_per_s=300)
ZSTD = ProducerPlan("zstd", codec="zstd", records_per_s=300)
TRANSACTIONS = ProducerPlan("transactions", codec="lz4", records_per_s=200, transaction=TransactionPlan(20, 3))


class Script:
    """One topic on a running cluster, a workload on it, and what is done to the cluster meanwhile."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.counters = AgentCounters(cluster)
        self._workload: LedgerWorkload | None = None
        self._expects_links = False

    @property
    def with_agents(self) -> bool:
        return self.cluster.layout.has_agents

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._workload is not None:
            self._workload.__exit__(kind, error, trace)

    # Topics.

    def create_topic(
        self, partitions: int = 3, *, assignment: Sequence[Sequence[int]] | None = None, linked: bool = True
    ) -> None:
        """Create the topic with three replicas; with `linked`, replicate it through object storage."""
        self.cluster.admin.create_topic(self.topic, partitions, assignment=assignment)
        if linked:
            self.link_topic()

    def link_topic(self, settings: TopicSettings = LINKED_AND_KEPT) -> None:
        """Switch the topic on, links always, and wait until the agents have taken on all of its partitions."""
        if not self.with_agents:
            return
        set_topics(self.cluster.bootstrap_servers, [self.topic], settings)
        self._expects_links = True
        leaders = [state.leader for state in self.cluster.admin.partitions(self.topic)]
        wanted = sum(self.cluster.agent(leader).is_alive() for leader in leaders)
        wait_until(lambda: len(self.partitions_of_agents()) == wanted, "the agents lead the topic", PATIENCE_S)
        # Those that do not lead it may come to, and some tests have them stand still meanwhile.
        running = [one for one in self.cluster.broker_ids if self.cluster.agent(one).is_alive()]
        wait_until(
            lambda: all(self.topic in describe(self.cluster, one)["enabled_topics"] for one in running),
            "all agents that run know that the topic is linked",
            PATIENCE_S,
        )

    def recreate_topic(self, *, assignment: Sequence[Sequence[int]]) -> None:
        """Delete the topic, and make another one of the same name."""
        old = self.topic_id()
        delete_topic(self.cluster.admin, self.topic)
        wait_until(lambda: not self.cluster.admin.partitions(self.topic), "the topic is gone", PATIENCE_S)
        self.cluster.admin.create_topic(self.topic, assignment=assignment)
        wait_until(lambda: self.topic_id() != old, "the topic has another id", PATIENCE_S)
        self.link_topic()  # it has no settings of the one before it

    def topic_id(self) -> TopicId | None:
        """From the partition's directory on the broker that leads it; None while there is none."""
        for broker_id in self.cluster.broker_ids:
            directory = self.cluster.layout.partition_directory(broker_id, self.topic, 0)
            if directory is None:
                continue
            with suppress(OSError):  # it is being made, or removed
                return read_partition_metadata(directory)
        return None

    # Load.

    def produce(self, *plans: ProducerPlan, seed: int = 0) -> None:
        """Start producers, and a consumer that reads everything."""
        workload = LedgerWorkload(self.cluster.bootstrap_servers, self.topic, plans or (PLAIN, ZSTD), seed=seed)
        workload.start()
        self._workload = workload

    @property
    def workload(self) -> LedgerWorkload:
        assert self._workload is not None, "nothing is produced yet"
        return self._workload

    def expect_records_to_flow(self, records: int = 200) -> None:
        """So many more records are acknowledged and consumed, some of each producer."""
        before = self.workload.report()

        def flow() -> bool:
            now = self.workload.report()
            every = all(
                producer.acknowledged > earlier.acknowledged
                for producer, earlier in zip(now.producers, before.producers, strict=True)
            )
            return (
                every and now.consumed > before.consumed + records and now.acknowledged > before.acknowledged + records
            )

        wait_until(flow, f"{records} more records of {self.topic} are acknowledged and read", PATIENCE_S)

    def expect_links_to_be_used(self, record_bytes: int = 50_000) -> None:
        """So many more record bytes reach followers as links."""
        if not self.with_agents:
            return
        counters = AgentCounters(self.cluster)
        self._wait(
            lambda: counters.growth(RECORD_BYTES, path="linked") > record_bytes,
            f"{record_bytes} record bytes travel as links",
            counters,
        )

    def expect_inline_bytes(self, record_bytes: int = 50_000) -> None:
        """So many more record bytes reach followers as they are."""
        if not self.with_agents:
            return
        counters = AgentCounters(self.cluster)
        self._wait(
            lambda: counters.growth(RECORD_BYTES, path="inline") > record_bytes,
            f"{record_bytes} record bytes travel inline",
            counters,
        )

    def expect_growth(self, name: str, **labels: str) -> None:
        """The agents' counters of this name and these labels have grown since the script began, or will."""
        if self.with_agents:
            self._wait(lambda: self.counters.growth(name, **labels) > 0, f"{name} {labels} grows", self.counters)

    def _wait(self, condition: Callable[[], bool], description: str, counters: AgentCounters) -> None:
        try:
            wait_until(condition, description, PATIENCE_S, interval_s=0.2)
        except WaitTimeoutError as error:
            faults = counters.grown_labels("remote_wal_faults_total", "reason")
            raise WaitTimeoutError(f"{error}; faults meanwhile: {faults}") from None

    # Agents. Without agents, nothing happens.

    def partitions_of_agents(self) -> list[dict[str, object]]:
        """What the agents tell of this topic's partitions; those of agents that do not answer are missing."""
        found: list[dict[str, object]] = []
        for broker_id in self.cluster.broker_ids:
            try:
                answer = describe(self.cluster, broker_id)
            except OSError:
                continue
            found += [partition for partition in answer["partitions"] if partition["topic"] == self.topic]
        return found

    def kill_agent(self, broker_id: int) -> None:
        if self.with_agents:
            self.cluster.agent(broker_id).kill()

    def start_agent(self, broker_id: int) -> None:
        if self.with_agents:
            self.cluster.start_agent(broker_id)

    def stop_agent(self, broker_id: int) -> None:
        """SIGTERM: the agent finishes what it has and exits with 0."""
        if self.with_agents:
            agent = self.cluster.agent(broker_id)
            assert self.cluster.agent(broker_id).terminate(grace_s=30.0), f"agent {broker_id} did not end by itself"
            assert agent.exit_code == 0, agent.log_tail()

    def agent_log(self, broker_id: int) -> str:
        """What the agent has logged since it was last started; nothing without agents."""
        if not self.with_agents:
            return ""
        return self.cluster.agent(broker_id).spec.log_path.read_text().rpartition("agent_started")[2]

    def cut_off_follower(self, broker_id: int) -> None:
        """Its agent stands still; without agents, the broker itself is killed."""
        if self.with_agents:
            elect_preferred_leaders(self.cluster.admin)  # so that nobody else's metadata is led by its broker
            self.cluster.agent(broker_id).pause()
        else:
            self.cluster.broker(broker_id).kill()

    def reconnect_follower(self, broker_id: int) -> None:
        if self.with_agents:
            self.cluster.agent(broker_id).resume()
        else:
            self.cluster.start_broker(broker_id)

    def switch(self, broker_id: int, name: str, value: str = "", *, store: str = "switches") -> None:
        """Set a switch of the agent's storage manager; see storage_plugins/breakable_storage.py.

        `store` is the directory of the switches of that storage manager, in the cluster's directory.
        """
        if self.with_agents:
            directory = self.cluster.layout.directory / store
            directory.mkdir(exist_ok=True)
            unfinished = directory / f"unfinished-{broker_id}-{name}"
            unfinished.write_text(value)
            unfinished.rename(directory / f"{broker_id}-{name}")

    def switch_all(self, name: str, value: str) -> None:
        for broker_id in self.cluster.broker_ids:
            self.switch(broker_id, name, value)

    def clear_switches(self) -> None:
        """Let storage work again."""
        for path in self.cluster.layout.directory.glob("*switches/*"):
            path.unlink(missing_ok=True)

    def expect_agent_to_die(self, broker_id: int) -> None:
        """The agent ends without being asked to."""
        if self.with_agents:
            agent = self.cluster.agent(broker_id)
            wait_until(lambda: not agent.is_alive(), f"agent {broker_id} is dead", PATIENCE_S)

    # The end.

    @contextmanager
    def without_a_shrinking_isr(self) -> Iterator[None]:
        """No broker takes a replica of this topic out of sync meanwhile."""
        before = self.isr_shrinks()
        yield
        assert self.isr_shrinks() == before

    def isr_shrinks(self) -> list[str]:
        """What the brokers have logged of replicas of this topic that they took out of sync."""
        return [
            line
            for broker_id in self.cluster.broker_ids
            for line in (self.cluster.layout.broker_directory(broker_id) / "kafka.log")
            .read_text(errors="replace")
            .splitlines()
            if "Shrinking ISR" in line and f"{self.topic}-" in line
        ]

    def expect_promises(self) -> LedgerReport:
        """What holds whatever was done: see the assertions."""
        if self._expects_links:
            self.expect_links_to_be_used()
        self.cluster.admin.wait_for_full_isr(self.topic, timeout_s=PATIENCE_S)
        report = self.workload.finish()
        assert report.faults == 0, str(report)
        assert report.foreign_records == 0
        assert all(producer.acknowledged > 0 for producer in report.producers), str(report)
        comparison = compare_replicas(self.cluster, self.topic, PATIENCE_S)
        assert comparison.identical, str(comparison)
        assert comparison.compared_bytes > 0
        return report

    def heal(self) -> None:
        """All processes run and answer, and storage works."""
        if self.with_agents:
            self.clear_switches()
            for broker_id in self.cluster.broker_ids:
                self.cluster.agent(broker_id).resume()
                self.cluster.start_agent(broker_id, wait=False)
        for broker_id in self.cluster.broker_ids:
            self.cluster.broker(broker_id).resume()
            if not self.cluster.broker(broker_id).is_alive():
                self.cluster.start_broker(broker_id, wait=False)
        self.cluster.wait_until_ready()


def expect_whole_objects(cluster: LocalCluster) -> int:
    """Every object that can be seen is whole and describes itself; how many there are."""
    where = {"directory": str(cluster.layout.object_store_directory)}
    storage = load_storage_manager(
        StorageSpec("plugin.local_directory.LocalWalStorageManager", None, where),
        StorageContext(cluster.layout.cluster_id, 0, is_written=False),
    )
    whole = 0
    try:
        for stored in ask_each(storage.list_log_segments()):
            with suppress(RemoteResourceNotFoundError):  # an agent deleted it since
                assert ask(storage.fetch_segment_metadata(stored)).entries
                whole += 1
        return whole
    finally:
        storage.close()

"""Real clusters for the tests marked `cluster`. None outlives the test session."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import LocalDirectoryStore
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.script import Script
from tests.leftover_sockets import LEAVES_SOCKETS

ClusterFactory = Callable[..., LocalCluster]

STORAGE_PLUGINS = Path(__file__).parent / "storage_plugins"
BASE_DIRECTORY = pytest.StashKey[Path]()
SHOWN_LOG_LINES = 25

IMPATIENT = {
    # A replica that stands still is out of sync soon, so that tests of it end soon.
    "replica.lag.time.max.ms": "6000",
    "replica.socket.timeout.ms": "4000",
    # Few partitions fill a reply. (The sets of in-sync replicas shrink one after the other, some seconds apart.)
    "replica.fetch.max.bytes": "4194304",
}


@dataclass(frozen=True, slots=True)
class BreakableStore:
    """Objects in the cluster's directory, by the storage manager with switches."""

    put_latency_ms: int = 3
    get_latency_ms: int = 3

    @property
    def class_name(self) -> str:
        return "breakable_storage.BreakableWalStorageManager"

    def settings(self, default_directory: Path) -> dict[str, str]:
        plain = LocalDirectoryStore(self.put_latency_ms, self.get_latency_ms).settings(default_directory)
        return {**plain, "switches": str(default_directory.parent / "switches")}

    def environment(self) -> dict[str, str]:
        return {}


def cluster_of(make: Callable[[Path], ClusterSettings], scope: Literal["module", "function"] = "module") -> Any:
    """A fixture: a running cluster with the settings that `make` gives for a directory of its own."""

    @pytest.fixture(scope=scope)
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
        directory = tmp_path_factory.mktemp("cluster")
        with LocalCluster.create(directory / "cluster", settings=make(directory)) as cluster:
            cluster.start()
            yield cluster

    return cluster


class SharedClusters:
    """Clusters that many tests share: at most one in a process, as idle ones, too, take a good part of two cores."""

    def __init__(self, make: Callable[[str], LocalCluster]) -> None:
        self._make = make
        self._name = ""
        self._cluster: LocalCluster | None = None

    def running(self, name: str) -> LocalCluster:
        """The cluster of this name, started if another one or none runs."""
        if self._cluster is None or name != self._name:
            self.end()
            self._name, self._cluster = name, self._make(name)
            self._cluster.start()
        return self._cluster

    def end(self) -> None:
        """Before a test that shares none."""
        if self._cluster is not None:
            self._cluster.kill_all()
            self._cluster = None


SHARED = pytest.StashKey[SharedClusters]()


def script_of(item: pytest.Item) -> str:
    """Its `script` is played on that cluster, `agents` or `stock`; empty if it says nothing of it."""
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        return str(item.callspec.params.get("script", ""))
    return ""


def shared_by(item: pytest.Item) -> str:
    """The shared cluster that the test uses; empty if it has one of its own."""
    given = script_of(item)
    for name, fixture in (("agents", "agent_cluster"), ("stock", "stock_cluster")):
        if given == name or fixture in getattr(item, "fixturenames", ()):
            return name
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            # kafka-python leaves the socket of a refused connection to the garbage collector, and brokers die here.
            item.add_marker(LEAVES_SOCKETS)
            if script_of(item) == "stock":  # a control, which no change of ours makes fail
                item.add_marker(pytest.mark.thorough)
            if item.get_closest_marker("timeout") is None:
                # A busy machine of two cores takes its time to start three brokers, and three more beside them.
                item.add_marker(pytest.mark.timeout(450))
    # Those that share a cluster come together; within that, the order stays the random one.
    items.sort(key=lambda item: shared_by(item) if here in item.path.parents else "")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not shared_by(item) and (shared := item.config.stash.get(SHARED, None)) is not None:
        shared.end()


@pytest.fixture(scope="session", autouse=True)
def shared_clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedClusters]:
    """None outlives the session."""

    def make(name: str) -> LocalCluster:
        agents = None
        if name == "agents":
            overrides = {
                "remote.log.wal.storage.manager.class.path": str(STORAGE_PLUGINS),
                **quick(failover_interval_s=1),
            }
            agents = QuickAgents(BreakableStore(), overrides)
        directory = tmp_path_factory.mktemp(name) / "cluster"
        return LocalCluster.create(directory, settings=ClusterSettings(agents, IMPATIENT))

    shared = SharedClusters(make)
    request.config.stash[SHARED] = shared
    yield shared
    shared.end()


@pytest.fixture
def stock_cluster(shared_clusters: SharedClusters) -> LocalCluster:
    """Three brokers without agents: leave it with all brokers running."""
    return shared_clusters.running("stock")


@pytest.fixture
def agent_cluster(shared_clusters: SharedClusters) -> LocalCluster:
    """Three brokers with agents: leave it with all of them running."""
    return shared_clusters.running("agents")


@pytest.fixture(params=["agents", "stock"])
def script(request: pytest.FixtureRequest, topic: str) -> Iterator[Script]:
    """A script to be played with agents, and without them as the control."""
    cluster = request.getfixturevalue("agent_cluster" if request.param == "agents" else "stock_cluster")
    with Script(cluster, topic) as script:
        yield script
    script.heal()


@pytest.fixture
def agent_script(agent_cluster: LocalCluster, topic: str) -> Iterator[Script]:
    """A script that says nothing without agents."""
    with Script(agent_cluster, topic) as script:
        yield script
    script.heal()


@pytest.fixture
def life(cluster: LocalCluster, topic: str) -> Iterator[Script]:
    """A script on the module's own cluster."""
    with Script(cluster, topic) as script:
        yield script
    script.heal()


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[ClusterFactory]:
    """Makes clusters of the test's own, started; they are gone after the test."""
    with ExitStack() as clusters:

        def make(settings: ClusterSettings | None = None, *, name: str = "cluster", start: bool = True) -> LocalCluster:
            cluster = clusters.enter_context(LocalCluster.create(tmp_path / name, settings=settings))
            if start:
                cluster.start()
            return cluster

        yield make


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]


@pytest.fixture(scope="session", autouse=True)
def _keep_base_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    request.config.stash[BASE_DIRECTORY] = tmp_path_factory.getbasetemp()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows how the logs end that grew during the test: where it cannot be repeated, nothing else tells."""
    report = yield
    base = item.config.stash.get(BASE_DIRECTORY, None)
    if report.failed and base is not None:
        for log in sorted(base.glob("*/*/agent-*/agent.log")) + sorted(base.glob("*/*/broker-*/kafka.log")):
            where = log.relative_to(base)
            if not (base / where.parts[0]).is_symlink() and log.stat().st_mtime >= call.start:
                lines = log.read_text(errors="replace").splitlines()[-SHOWN_LOG_LINES:]
                report.sections.append((str(where), "\n".join(lines)))
    return report

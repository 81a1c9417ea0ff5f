"""Real clusters for the tests marked `cluster`. None outlives the test session."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster

ClusterFactory = Callable[..., LocalCluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                # A busy machine of two cores takes its time to start three brokers.
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def stock_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers without agents, shared by the session: leave it with all brokers running."""
    directory = tmp_path_factory.mktemp("stock") / "cluster"
    with LocalCluster.create(directory) as cluster:
        cluster.start()
        yield cluster


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

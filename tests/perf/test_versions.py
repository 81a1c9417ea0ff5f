"""Versions beside each other: each gets its name, its turn, and what its own agents counted."""

from pathlib import Path

from local_cluster.agent_metrics import Counters
from local_cluster.cluster import LocalCluster
from local_cluster.layout import ClusterLayout
from local_cluster.object_store.store_spec import LocalDirectoryStore
from perf.ladder.report import agent_rows, compare
from perf.ladder.turns import STOCK, Entrant, Measured, turned
from perf.ladder.versions import modes_of
from perf.ladder.workloads import Comparison, Workload

RATE = Workload("rate", "a rate", 1, {"MB/s": Comparison.RATIO}, lambda _tools, _topic, _scale: {})


def test_checkouts_go_by_their_directory_or_where_that_says_too_little_by_their_path() -> None:
    store = LocalDirectoryStore()
    modes = modes_of(store, [Path("/a/before"), Path("/a/main"), Path("/b/main"), Path("/a/this")])
    assert {name: mode.checkout for name, mode in modes.items()} == {
        "this": None,
        "before": Path("/a/before"),
        "/a/main": Path("/a/main"),
        "/b/main": Path("/b/main"),
        "/a/this": Path("/a/this"),
    }
    assert all(mode.store is store for mode in modes.values())


def test_each_version_is_first_in_its_round(tmp_path: Path) -> None:
    cluster = LocalCluster(ClusterLayout(tmp_path, "id", (), 0))
    entrants = [Entrant(name, cluster, "links") for name in "abc"]
    orders = ["".join(one.name for one in turned(entrants, number)) for number in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


def counted(cpu_s: float) -> Counters:
    return Counters({("process_cpu_seconds_total", ()): cpu_s})


def test_a_row_has_the_versions_figure_beside_stock_and_its_own_agents_cost() -> None:
    runs = [
        Measured("rate", "directory", STOCK, 0, {"MB/s": 40.0}, 1.0, None),
        Measured("rate", "directory", "this", 0, {"MB/s": 30.0}, 1.0, counted(1.0)),
        Measured("rate", "directory", "before", 0, {"MB/s": 20.0}, 1.0, counted(2.0)),
        Measured("rate", "directory", STOCK, 1, {"MB/s": 20.0}, 1.0, None),
        Measured("rate", "directory", "before", 1, {"MB/s": 10.0}, 1.0, counted(3.0)),
        Measured("rate", "directory", "this", 1, {"MB/s": 15.0}, 1.0, counted(1.5)),
    ]
    assert {row["rung"]: row["compared"] for row in compare([RATE], runs)} == {"this": 0.75, "before": 0.5}
    assert {row["rung"]: row["agent_cpu_s"] for row in agent_rows(runs)} == {"this": 2.5, "before": 5.0}

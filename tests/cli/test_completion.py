"""A shell is told names of the cluster that the line says, soon, and nothing else."""

import socket
from collections.abc import Iterator

import pytest

import cli.completion
from kafka_cluster.answers import ClusterListing, DescribedPartition, DescribedTopic
from kafka_cluster.cluster import KafkaCluster

REPLICAS = (DescribedPartition(0, 1, (1, 2, 7), (1, 2)),)
TOPICS = ("orders-us", "orders-eu", "payments", "__consumer_offsets")
CLUSTER = ClusterListing(
    "cluster", {1: "a", 2: "b", 12: "c"}, {name: DescribedTopic(name, 0, partitions=REPLICAS) for name in TOPICS}
)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def completed(line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """As bash asks for the last word."""
    from typer.main import get_command

    from cli.main import build_app

    words = line.split(" ")
    monkeypatch.setenv("_REMOTE_WAL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit) as ended:
        get_command(build_app()).main(prog_name="remote-wal")
    told = capfd.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    return told.out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("describe --bootstrap-server b:1 --topic or", ["orders-eu", "orders-us"]),
        ("topics enable --bootstrap-server b:1 orders-eu or", ["orders-us"]),
        ("reassign drain --bootstrap-server b:1 1", ["1", "12"]),
        ("decommission --bootstrap-server b:1 --heir ", ["1", "2", "12"]),
        ("decommission --bootstrap-server b:1 --heir 1 ", ["7"]),
    ],
)
def test_names_are_those_of_the_cluster(
    line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def listing(cluster: KafkaCluster) -> ClusterListing:
        asked.append(cluster.client.bootstrap_servers)
        return CLUSTER

    monkeypatch.setattr(KafkaCluster, "listing", listing)
    assert completed(f"remote-wal {line}", monkeypatch, capfd) == expected
    assert set(asked) == {"b:1"}


@pytest.mark.parametrize("line", ["describe --topic ", "describe --bootstrap-server {} --topic "])
def test_where_no_cluster_tells_nothing_is_told_and_soon(
    line: str, silent_port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.completion, "ANSWER_TIMEOUT_S", 0.2)
    assert completed(f"remote-wal {line.format(f'127.0.0.1:{silent_port}')}", monkeypatch, capfd) == []

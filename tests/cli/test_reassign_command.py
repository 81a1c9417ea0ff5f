"""What `remote-wal reassign` refuses before it asks a cluster."""

import json
from collections.abc import Callable, Collection
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from kafka.errors import ClusterAuthorizationFailedError
from typer.testing import CliRunner

from cli.recovery import reassign
from cli.recovery.reassign import app
from recovery.errors import ReassignmentError
from recovery.reassignment import balance_turn
from recovery.reassignment.admin import ReassignmentAdmin
from recovery.reassignment.plan import HIDDEN, ClusterReplicas, Load, PartitionReplicas, TopicPartition

HERE = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain"], "Missing argument 'broker'"),
        (["execute"], "Missing option '--plan'"),
        (["execute", "--plan", "/nowhere/plan.json"], "does not exist"),
        (["balance", "--max-moves", "0"], "max-moves"),
    ],
)
def test_a_wrong_command_is_refused_with_exit_code_2(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, [arguments[0], *HERE, *arguments[1:]], terminal_width=200)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
CLUSTER = ClusterReplicas(
    {1: "a", 2: "b"}, tuple(PartitionReplicas(one, 1, (1, 2), frozenset({1, 2})) for one in (T0, T1))
)


class PlayedAdmin(ReassignmentAdmin):
    """Tells sizes, or that a broker does not answer."""

    def __init__(self, sizes: dict[tuple[TopicPartition, int], int] | None) -> None:
        self._sizes = sizes

    def ongoing(self) -> list[TopicPartition]:
        return [T0]

    def not_shown(self, broker: int, shown: Collection[TopicPartition]) -> list[TopicPartition]:
        return []

    def replica_sizes(self, partitions: Collection[TopicPartition]) -> dict[tuple[TopicPartition, int], int]:
        assert list(partitions) == [T0, T1]
        if self._sizes is None:
            raise ReassignmentError("describe log directories", "", "timed out")
        return self._sizes


def test_a_drain_spreads_replicas_by_their_largest_logs() -> None:
    loads = reassign.stored_loads(CLUSTER, PlayedAdmin({(T0, 1): 300, (T0, 2): 200, (T1, 2): 0}))
    assert loads == {T0: Load(stored_bytes=300), T1: Load(stored_bytes=1)}


def test_a_drain_does_not_wait_for_sizes_that_nobody_tells(capsys: pytest.CaptureFixture[str]) -> None:
    assert reassign.stored_loads(CLUSTER, PlayedAdmin(None)) == {}
    assert "spread by their number" in capsys.readouterr().err


class Measured(Exception):  # noqa: N818 - not an error: the end of what is played
    """Loads are measured, so a plan is made."""


@pytest.mark.parametrize("words", [["2", "--if-empty"], ["2"], ["3", "--if-empty"]])
def test_with_if_empty_only_a_broker_without_any_replica_is_given_some(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfCluster(PlayedAdmin):
        def cluster(self) -> ClusterReplicas:
            return CLUSTER

    def measured(*_: object) -> None:
        raise Measured

    monkeypatch.setattr(reassign, "_admin", lambda _: nullcontext(OfCluster({})))
    monkeypatch.setattr(reassign, "measured_loads", measured)
    done = CliRunner().invoke(app, ["join", *HERE, *words, "--json"])
    if words == ["2", "--if-empty"]:
        assert (done.exit_code, json.loads(done.stdout)) == (0, {"exit_code": 0, "moves": [], "left": {}})
    else:
        assert isinstance(done.exception, Measured)


def test_a_plan_that_the_cluster_does_not_allow_is_refused_as_the_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class KnowsBrokers(PlayedAdmin):
        def cluster(self) -> ClusterReplicas:
            return CLUSTER

    monkeypatch.setattr(reassign, "_admin", lambda _connection: nullcontext(KnowsBrokers({})))
    refused = CliRunner().invoke(app, ["drain", *HERE, "99"])
    assert refused.exit_code == 4, refused.output
    assert "no such broker lives" in refused.stderr
    assert "4 there can be no such plan" in " ".join(CliRunner().invoke(app, ["--help"]).output.split())


def test_a_partition_that_is_being_moved_is_planned_when_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # T0's replica goes from 1 to 2, and until it is there both are shown: one more would be made for that of 1
    class MovesOne(PlayedAdmin):
        def cluster(self) -> ClusterReplicas:
            one = PartitionReplicas(T0, 1, (2, 1), frozenset({1}))
            return ClusterReplicas({1: "a", 2: "b", 3: "c"}, (one,))

        def replica_sizes(self, partitions: Collection[TopicPartition]) -> dict[tuple[TopicPartition, int], int]:
            return {}

    monkeypatch.setattr(reassign, "_admin", lambda _connection: nullcontext(MovesOne(None)))
    done = CliRunner().invoke(app, ["drain", *HERE, "1", "--json"])
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["moves"] == []
    assert "being moved" in json.loads(done.stdout)["left"]["t-0"]


class TellsLogDirs(PlayedAdmin):
    """Of the client's answers, only that about log directories is played."""

    not_shown = ReassignmentAdmin.not_shown

    def __init__(self, log_dirs: Callable[[None, list[int]], list[dict[str, object]]]) -> None:
        self._client = SimpleNamespace(describe_log_dirs=log_dirs)

    def cluster(self) -> ClusterReplicas:
        return ClusterReplicas({1: "a", 2: "b"}, ())

    def replica_sizes(self, partitions: Collection[TopicPartition]) -> dict[tuple[TopicPartition, int], int]:
        return {}


def test_a_broker_with_replicas_of_a_hidden_topic_is_not_called_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    def log_dirs(_topics: None, brokers: list[int]) -> list[dict[str, object]]:
        partitions = [{"partition_index": one, "partition_size": 0, "is_future_key": one == 2} for one in range(3)]
        return [{"broker": brokers[0], "log_dirs": [{"topics": [{"name": "secret", "partitions": partitions}]}]}]

    admin = TellsLogDirs(log_dirs)
    assert admin.not_shown(1, [TopicPartition("secret", 0)]) == [TopicPartition("secret", 1)]
    monkeypatch.setattr(reassign, "_admin", lambda _: nullcontext(admin))
    done = CliRunner().invoke(app, ["drain", *HERE, "1", "--json"])
    left = json.loads(done.stdout)["left"]
    assert (done.exit_code, left) == (1, dict.fromkeys(("secret-0", "secret-1"), HIDDEN))


@pytest.mark.parametrize("answer", ["refused", "empty"])
def test_a_living_broker_that_does_not_tell_what_it_has_is_not_called_drained(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log_dirs(_topics: None, brokers: list[int]) -> list[dict[str, object]]:
        if answer == "refused":
            raise ClusterAuthorizationFailedError
        return [{"broker": brokers[0], "log_dirs": []}]  # so does the client library when it is denied

    monkeypatch.setattr(reassign, "_admin", lambda _: nullcontext(TellsLogDirs(log_dirs)))
    done = CliRunner().invoke(app, ["drain", *HERE, "1", "--json"])
    assert done.exit_code == 1, done.output
    assert "may not see is not known" in json.loads(done.stdout)["error"], "a takeover tells it"


def test_a_balancer_that_watches_measures_when_it_is_its_turn_and_tells_what_it_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[object] = []

    class Turn:
        def take(self) -> bool:
            told.append("asked")
            if len(told) == 5:
                raise KeyboardInterrupt
            return len(told) > 1

        def tell(self, apart: object, _now_ms: int) -> None:
            told.append(apart)

    def measured(_connection: object, _seconds: float) -> dict[TopicPartition, Load]:
        told.append("measured")
        return {T0: Load(10, 10, 10), T1: Load(10, 10, 10)}

    monkeypatch.setattr(balance_turn, "BEAT_S", 0.0)
    monkeypatch.setattr(reassign, "_turn", lambda _: nullcontext(Turn()))
    monkeypatch.setattr(reassign, "_admin", lambda _: nullcontext(Balanced({})))
    monkeypatch.setattr(reassign, "measured_loads", measured)
    CliRunner().invoke(app, ["balance", "--watch", "--every", "1", *HERE])
    assert told == ["asked", "asked", "measured", (0.0, 2.0, 0.0), "asked"]


def test_balancers_wait_for_the_topic_by_which_one_of_them_works(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    class Row:
        def __init__(self, _client: object) -> None: ...
        def __enter__(self) -> "Row":
            return self

        def __exit__(self, *_: object) -> None: ...
        def is_there(self) -> bool:
            looks.append("looked")
            return len(looks) > 3

        def read(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(balance_turn, "BEAT_S", 0.0)
    monkeypatch.setattr(balance_turn, "RowOfSettings", Row)
    monkeypatch.setattr(reassign, "measured_loads", lambda *_: pytest.fail("it had no turn"))
    done = CliRunner().invoke(app, ["balance", "--watch", *HERE])
    assert "waiting for __remote_wal_topic_settings" in done.stderr
    assert len(looks) == 4


class Balanced(PlayedAdmin):
    def cluster(self) -> ClusterReplicas:
        return ClusterReplicas({1: "a", 2: "a"}, (PartitionReplicas(T0, 1, (1, 2), frozenset({1, 2})),))

    def ongoing(self) -> list[TopicPartition]:
        return [T0]

"""`remote-wal takeover`: the settings at the new place, what is missing on a host, and which step comes next."""

import json
import signal
import socket
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from cli.main import build_app
from cli.takeover.host_properties import VOTERS, faults, host_properties, taken_addresses
from cli.takeover.place import Host, HostPlace, IncompleteRecoveryError, TakeoverError, TakeoverRefusedError
from cli.takeover.steps import Step, done_steps, run_steps
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration
from recovery.reassignment.plan import ClusterReplicas, PartitionReplicas, TopicPartition
from replication.wire.peer_connection import Address

DEAD = {
    "node.id": "3",
    "process.roles": "broker,controller",
    "controller.quorum.voters": "1@a:9093,2@b:9093, 3@c:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://c:9092,CONTROLLER://c:9093",
    "advertised.listeners": "PLAINTEXT://c:9092",
    "log.dirs": "/disk-1,/disk-2",
    "metadata.log.dir": "/disk-0",
    "broker.rack": "az3",
    "remote.wal.agent.peers": "1@a:19090,3@c:19090",
    "ssl.keystore.location": "/etc/of-c.jks",
}
OWN = {
    "listeners": "PLAINTEXT://d:9092",
    "advertised.listeners": "PLAINTEXT://d:9092",
    "broker.rack": "az4",
    "remote.wal.agent.peer.listener": "d:19090",
}


def broker(keys: dict[str, str]) -> BrokerProperties:
    return parse_broker_properties(keys, Path("server.properties"))


def test_a_voter_comes_back_as_a_broker_alone_with_the_hosts_own_places(tmp_path: Path) -> None:
    made = host_properties(DEAD, {}, tmp_path)
    assert made["process.roles"] == "broker"
    assert made[VOTERS] == "1@a:9093,2@b:9093", "Kafka refuses a broker alone that is among them"
    assert made["listeners"] == "PLAINTEXT://c:9092"
    assert made["remote.wal.agent.peers"] == "1@a:19090", "others are to learn the new address"
    assert made["log.dirs"] == f"{tmp_path / 'log-0'},{tmp_path / 'log-1'}"
    assert made["remote.wal.agent.state.directory"] == str(tmp_path / "agent-state")
    assert made["metadata.log.dir"] == str(tmp_path / "metadata"), "not where the voter's id may come back"
    assert made["node.id"] == "3"
    own = host_properties(DEAD, OWN | {"log.dirs": "/x,/y", "remote.wal.agent.peers": "3@d:1"}, tmp_path)
    assert own.items() >= OWN.items()
    assert (own["log.dirs"], own["remote.wal.agent.peers"]) == ("/x,/y", "3@d:1")


def test_what_the_host_does_not_say_or_have_is_named(tmp_path: Path) -> None:
    def told(own: dict[str, str]) -> str:
        return "\n".join(faults(broker(DEAD), own, broker(host_properties(DEAD, own, tmp_path))))

    certificate = tmp_path / "d.jks"
    certificate.touch()
    complete = OWN | {"ssl.keystore.location": str(certificate)}
    assert told(complete) == ""
    for key in OWN:
        assert f"{key} is missing" in told({name: value for name, value in complete.items() if name != key})
    assert "ssl.keystore.location: /etc/of-c.jks is no file" in told(OWN)
    for key in ("node.id", "broker.id", "process.roles", "log.dir", "metadata.log.dir"):
        assert f"{key} must not be in --host-config" in told(complete | {key: "7"})
    assert "2 log directories, and here are 1" in told(complete | {"log.dirs": str(tmp_path)})
    assert "cannot be written to" in told(complete | {"log.dirs": f"{tmp_path},{certificate}/logs"})


def test_nobody_else_may_read_the_settings_and_no_log_may_be_left_out(tmp_path: Path) -> None:
    dead, host, start = tmp_path / "dead.properties", tmp_path / "host.properties", tmp_path / "start.sh"
    start.touch()
    for file, keys in ((dead, {**DEAD, "ssl.key.password": "secret"}), (host, OWN)):
        file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    (place := tmp_path / "place").mkdir(mode=0o755)
    words = ["takeover", "3", "--bootstrap-server", "127.0.0.1:1", "--kafka", str(start), "--directory", str(place)]
    words += ["--broker-config", str(dead), "--host-config", str(host)]
    for word in ("--dry-run", "--topic=orders", "--partition", "--log-dir=/x", "--if-empty", "--help", "-h"):
        refused = CliRunner().invoke(build_app(), [*words, f"--recover-option={word}"])
        assert (refused.exit_code, list(place.iterdir())) == (2, [])
    CliRunner().invoke(build_app(), [*words, "--recover-option=--threads=2"])
    made = place / "server.properties"
    assert "secret" in made.read_text()
    assert made.stat().st_mode & 0o077 == 0


def test_addresses_of_other_hosts_and_of_other_processes_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = {"A": ("127.0.0.1", port), "B": ("192.0.2.1", 9092), "C": ("", 0)}
        [first, second] = taken_addresses(addresses)
    assert first == f"A: 127.0.0.1:{port}: something listens there"
    assert second.startswith("B: 192.0.2.1:9092: ")


@dataclass
class Played:
    """A place that is killed in the middle of a step, and writes down what is done."""

    dies_in: str = ""
    acts: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        def act() -> None:
            self.acts.append(name)
            if name == self.dies_in:
                raise KeyboardInterrupt

        return act


ALL = ["recover", "start", "wait_until_led", "drain", "stop", "hand_over"]


def play(directory: Path, dies_in: str = "") -> list[str]:
    place, told = Played(dies_in), list[str]()
    try:
        run_steps(directory, 3, cast(Any, place), told.append)
    except KeyboardInterrupt:
        assert place.acts[-1] == dies_in
    return place.acts


@pytest.mark.parametrize("step", ALL)
def test_a_killed_takeover_goes_on_with_the_step_that_it_did_not_finish(tmp_path: Path, step: str) -> None:
    play(tmp_path, step)
    assert done_steps(tmp_path, 3) == list(Step)[: ALL.index(step)]
    expected = [act for act in ALL[ALL.index(step) :] if act != "start"]
    assert [act for act in play(tmp_path) if act not in ("check", "start")] == expected
    assert done_steps(tmp_path, 3) == list(Step)
    assert play(tmp_path) == ["check_gone"], "it may have come back, and died again"


def test_the_broker_runs_for_each_step_that_needs_it_and_is_alive_nowhere_else(tmp_path: Path) -> None:
    play(tmp_path, "drain")
    assert play(tmp_path)[:3] == ["check", "start", "drain"], "the host may have restarted"
    (tmp_path / "other").mkdir()
    assert play(tmp_path / "other", "check") == ["check"], "nothing is done before"


def test_a_directory_is_of_one_takeover_and_one_run(tmp_path: Path) -> None:
    play(tmp_path, "start")
    with pytest.raises(TakeoverRefusedError, match="broker 3 is taken over there"):
        done_steps(tmp_path, 4)
    (tmp_path / "takeover.json").write_text("{}")
    with pytest.raises(TakeoverRefusedError, match="not written by this command"):
        run_steps(tmp_path, 3, cast(Any, Played()), print)


class RecoveredPlace(HostPlace):
    """A place whose commands tell an end."""

    ends: tuple[int, ...] = ()

    def recovery(self) -> tuple[str, ...]:
        return ()

    def _format_metadata_directory(self) -> None:
        """No cluster is there to be asked."""

    def _process(self, name: str, *words: str) -> ManagedProcess:
        (code, *_) = self.ends or (0,)
        document = json.dumps({"exit_code": code, "error": "a reason"})
        directory = self._host.directory
        command = ("sh", "-c", f"echo run >> {directory}/runs; echo '{document}'; exit {code}")
        return ManagedProcess(ProcessSpec(name, command, directory / f"{name}.log", directory / "pid", directory))


def recovered(directory: Path, code: int) -> RecoveredPlace:
    keys = host_properties(DEAD, OWN, directory)
    host = Host(directory, broker(DEAD), OWN, broker(keys), cast(Any, None), Path("kafka"), ())
    place = RecoveredPlace(host, KafkaClientConfig("127.0.0.1:1"), lambda _: None)
    place.ends = (code,)
    return place


def runs(directory: Path) -> int:
    return (directory / "runs").read_text().count("run")


@pytest.mark.parametrize("code", [1, 5])
def test_logs_that_are_not_whole_end_the_command_once_and_are_not_recovered_twice(tmp_path: Path, code: int) -> None:
    with pytest.raises(IncompleteRecoveryError, match="not all logs are whole"):
        recovered(tmp_path, code).recover()
    recovered(tmp_path, code).recover()
    assert runs(tmp_path) == 1


@pytest.mark.parametrize(("code", "error"), [(3, TakeoverError), (4, TakeoverRefusedError)])
def test_a_recovery_that_failed_or_was_refused_is_run_again(tmp_path: Path, code: int, error: type[Exception]) -> None:
    for _ in range(2):
        with pytest.raises(error, match="a reason"):
            recovered(tmp_path, code).recover()
    recovered(tmp_path, 0).recover()
    assert runs(tmp_path) == 3


def test_a_recovery_whose_last_word_a_full_disk_cut_off_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "recover.log").write_text('recovering\n{"exit_code": 3, "error": "No sp')
    recovered(tmp_path, 0).recover()
    assert runs(tmp_path) == 1


def test_logs_that_were_restored_before_the_broker_came_back_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Place(HostPlace):
        def _cluster(self) -> ClusterReplicas:
            return ClusterReplicas({}, ())

    def register(incarnation: int) -> None:
        agent = AgentRegistration(3, incarnation, "", "1", 1)
        monkeypatch.setattr(settings_topic, "read_settings", lambda _client: SettingsTable(agents={3: agent}))

    own = OWN | {"listeners": "PLAINTEXT://127.0.0.1:0", "ssl.keystore.location": str(tmp_path)}
    made = broker(host_properties(DEAD, own, tmp_path))
    addresses = SimpleNamespace(
        is_shadow=True, peers=SimpleNamespace(peer_listener=Address("127.0.0.1", 0)),
        http=SimpleNamespace(listener=Address("127.0.0.1", 0)), gateway=SimpleNamespace(enable=False),
    )  # fmt: skip
    host = Host(tmp_path, broker(DEAD), own, made, cast(Any, addresses), Path("kafka"), ())
    place = Place(host, KafkaClientConfig("127.0.0.1:1"), lambda _: None)
    monkeypatch.setattr(place, "_lives", lambda _agent: False)
    register(1)
    place.check()
    place.check()
    register(2)
    with pytest.raises(TakeoverRefusedError, match="it came back since its logs were restored"):
        place.check()
    (tmp_path / "agent.log").touch()
    place.check()


def test_a_directory_whose_takeover_is_done_is_not_used_again(tmp_path: Path) -> None:
    class Place(HostPlace):
        partitions: tuple[PartitionReplicas, ...] = ()

        def _cluster(self) -> ClusterReplicas:
            return ClusterReplicas({1: None}, self.partitions)

    host = Host(
        tmp_path, broker(DEAD), OWN, broker(host_properties(DEAD, OWN, tmp_path)), cast(Any, None), Path("k"), ()
    )
    place = Place(host, KafkaClientConfig("127.0.0.1:1"), lambda _: None)
    play(tmp_path)
    run_steps(tmp_path, 3, place, print)
    place.partitions = (PartitionReplicas(TopicPartition("t", 0), -1, (3,), frozenset({3})),)
    with pytest.raises(TakeoverRefusedError, match=r"has partitions again .*use a new --directory"):
        run_steps(tmp_path, 3, place, print)


def test_the_heir_is_the_lowest_living_broker_whose_agent_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Place(HostPlace):
        def _cluster(self) -> ClusterReplicas:
            return ClusterReplicas({1: None, 2: None, 3: None, 4: None, 5: None}, ())

    with socket.create_server(("127.0.0.1", 0)) as peers:
        at = f"127.0.0.1:{peers.getsockname()[1]}"
        dead = {one: AgentRegistration(one, 1, "127.0.0.1:1", "1", 1, peer_address="127.0.0.1:1") for one in (1, 5)}
        living = {one: replace(dead[1], broker_id=one, peer_address=at, is_gone=one == 2) for one in (0, 2, 3, 4)}
        agents = dead | living
        monkeypatch.setattr(settings_topic, "read_settings", lambda _client: SettingsTable(agents=agents))
        made = broker(host_properties(DEAD, OWN, tmp_path))
        agent = cast(Any, SimpleNamespace(http=None))
        host = Host(tmp_path, broker(DEAD), OWN, made, agent, Path("k"), ("--bootstrap-server", "b:1"))
        place = Place(host, KafkaClientConfig("127.0.0.1:1"), lambda _: None)
        agents[1] = replace(agents[1], http_endpoint="[::1:80", peer_address="agent:peers")
        assert place.handing_over()[:4] == ("decommission", "3", "--heir", "4")
        del agents[4]
        with pytest.raises(TakeoverRefusedError, match=r"no living broker has an agent that answers .*--heir"):
            place.handing_over()


def test_fewer_log_directories_are_refused_and_do_not_break_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_topic, "read_settings", lambda _client: SettingsTable())
    made = broker(host_properties(DEAD, OWN | {"log.dirs": str(tmp_path)}, tmp_path))
    host = Host(tmp_path, broker(DEAD), OWN, made, cast(Any, None), Path("k"), ("--bootstrap-server", "b:1"))
    place = HostPlace(host, KafkaClientConfig("127.0.0.1:1"), lambda _: None)
    assert place.recovery()[0] == "recover", "the refusals are told behind it"


def test_a_process_is_found_again_though_nobody_wrote_down_its_pid(tmp_path: Path) -> None:
    class Place(HostPlace):
        def begin(self) -> ManagedProcess:
            """As if this process were killed in between: what it writes is gone."""
            begun = self._process("broker", "sh", "-c", "echo runs; exec sleep 60")
            with (tmp_path / "broker.log").open("wb") as log:
                self.begun = subprocess.Popen(begun.spec.command, stdout=log, start_new_session=True)
            return begun

    keys = host_properties(DEAD, OWN, tmp_path)
    host = Host(tmp_path, broker(DEAD), OWN, broker(keys), cast(Any, None), Path("kafka"), ())
    place = Place(host, KafkaClientConfig("127.0.0.1:1"), lambda _: None)
    found = place.begin()
    wait_until(lambda: found.log_tail() == "runs", "it runs")
    assert found.pid == place.begun.pid
    found.kill()
    assert place.begun.wait() == -signal.SIGKILL

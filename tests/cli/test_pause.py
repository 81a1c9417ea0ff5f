"""`remote-wal pause` and `remote-wal resume`: what they write, refuse and say."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.link_pauses import read_local
from cli.main import build_app
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import DescribedBroker
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_records import Pause, links_of
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings

EARLIER = Pause("ben@ops-2", 1_600_000_000_000)


class Recorded:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: dict[str, Pause] = {}
        agents = {1: AgentRegistration(1, 1, "", "1", 0)}
        topics = {"orders": TopicSettings(enable=True)}
        recorded = self

        class Writer:
            def __init__(self, _client: object) -> None: ...

            def put(self, _kind: object, pauses: dict[str, Pause | None]) -> None:
                for scope, pause in pauses.items():
                    recorded.pauses.pop(scope, None)
                    recorded.pauses |= {} if pause is None else {scope: pause}

            def close(self) -> None: ...

        monkeypatch.setattr(
            settings_topic,
            "read_known_settings",
            lambda _client: SettingsTable(topics, agents=agents, pauses=self.pauses),
        )
        monkeypatch.setattr(settings_topic, "SettingsWriter", Writer)
        monkeypatch.setattr(KafkaCluster, "brokers", lambda _self: [DescribedBroker(1, "az1")])


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setenv("SUDO_USER", "anna")
    monkeypatch.setattr("socket.gethostname", lambda: "ops-1")
    return Recorded(monkeypatch)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), [*arguments, "--bootstrap-server", "nowhere:1"])


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        (["--all"], "all"),
        (["--broker", "1"], "broker:1"),
        (["--zone", "az1"], "zone:az1"),
        (["--topic", "orders"], "topic:orders"),
    ],
)
def test_a_pause_says_who_and_why_and_resume_removes_it(recorded: Recorded, options: list[str], scope: str) -> None:
    told = run("pause", *options, "--reason", "store is slow")
    assert told.exit_code == 0, told.output
    (found,) = recorded.pauses.items()
    assert (found[0], found[1].by, found[1].reason) == (scope, "anna@ops-1", "store is slow")
    assert "by anna@ops-1 (store is slow)" in told.stdout
    assert run("resume", *options).stdout == f"{links_of(scope)}: resumed\n"
    assert recorded.pauses == {}
    assert run("resume", *options).stdout == f"{links_of(scope)}: there was no such pause\n"


def test_a_user_without_a_name_pauses_as_well(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_123_456_789)
    told = run("pause", "--all")
    assert (told.exit_code, recorded.pauses["all"].by) == (0, "uid 4123456789@ops-1"), told.output


def test_who_paused_first_is_kept_and_what_is_left_is_told(recorded: Recorded) -> None:
    recorded.pauses |= {"all": EARLIER, "topic:orders": EARLIER}
    assert "by ben@ops-2" in run("pause", "--all").stdout
    assert recorded.pauses["all"] == EARLIER
    told = run("resume", "--all")
    assert told.stdout == f"all links: resumed\nstill paused: {EARLIER.describe('topic:orders')}\n"


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [(["--all"], 1), (["--topic", "orders"], 1), (["--broker", "1"], 1), (["--zone", "az1"], 0)],
)
def test_whoever_resumes_and_is_still_paused_gets_1(recorded: Recorded, options: list[str], exit_code: int) -> None:
    recorded.pauses |= {"zone:az1": EARLIER} if exit_code == 0 else {"all": EARLIER, "topic:clicks": EARLIER}
    assert run("resume", *options, "--json").exit_code == exit_code
    recorded.pauses = {"topic:clicks": EARLIER} | ({"zone:az1": EARLIER} if exit_code == 0 else {})
    assert run("resume", *options).exit_code == (1 if options == ["--all"] else 0)


def test_programs_are_told_in_one_document(recorded: Recorded) -> None:
    recorded.pauses |= {"topic:orders": EARLIER}
    paused = json.loads(run("pause", "--all", "--json").stdout)
    assert (paused["exit_code"], paused["scope"], paused["paused"]["by"]) == (0, "all", "anna@ops-1")
    resumed = json.loads(run("resume", "--all", "--json").stdout)
    assert (resumed["was_paused"], list(resumed["still_paused"])) == (True, ["topic:orders"])
    assert resumed["exit_code"] == 1


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_misspelt_topic_is_refused_with_what_was_meant(recorded: Recorded, command: str) -> None:
    told = run(command, "--topic", "ordres")
    assert (told.exit_code, "is orders meant?" in told.output) == (2, True), told.output


@pytest.mark.parametrize(
    "options",
    [[], ["--all", "--topic", "orders"], ["--topic", "order"], ["--broker", "7"], ["--zone", "az7"], ["--local"]],
)
def test_a_pause_of_nothing_is_refused(recorded: Recorded, options: list[str]) -> None:
    told = run("pause", *options)
    assert (told.exit_code, recorded.pauses) == (2, {}), told.output


def test_without_kafka_a_file_pauses_this_hosts_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:1\nremote.wal.agent.state.directory={tmp_path}\n")
    options = ["--local", "--broker-config", str(file)]
    told = CliRunner().invoke(build_app(), ["pause", *options, "--reason", "Wartung über Nacht"])
    paused = read_local(tmp_path)
    assert paused is not None
    assert (paused.by.split("@")[0], paused.reason) == ("anna", "Wartung über Nacht")
    assert told.stdout == f"{paused.describe('local')}\n"
    assert CliRunner().invoke(build_app(), ["resume", *options]).stdout == "this agent's links: resumed\n"
    assert read_local(tmp_path) is None

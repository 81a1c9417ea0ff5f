"""`remote-wal rollout`: one step at a time, in words and as JSON, and exit codes that programs can go by."""

import json
import shlex
from collections.abc import Callable
from functools import partial

import pytest
from typer.testing import CliRunner, Result

from cli.main import build_app
from metadata_topic.records.errors import MetadataTopicError
from rollout import gathering
from rollout.facts import AgentState
from rollout.gathering import ClusterUnknownError
from rollout.steps import Target, Wish, plan
from tests.rollout.model_cluster import LISTENER, OLD, ModelCluster

Invoke = Callable[..., Result]


@pytest.fixture
def cluster() -> ModelCluster:
    return ModelCluster.stock()


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, cluster: ModelCluster) -> Invoke:
    monkeypatch.setattr(gathering, "gather", lambda *_given: cluster.facts)
    return partial(run, "enabled")


def run(target: str, command: str, *options: str) -> Result:
    given = ["rollout", command, "--bootstrap-server", "kafka-1:9092", "--to", target, *options]
    return CliRunner().invoke(build_app(), given)


def test_next_prints_one_step_and_how_it_is_proven(invoke: Invoke, cluster: ModelCluster) -> None:
    cluster.files[1]["advertised.listeners"] = "CLIENT://kafka-1.brokers.of.the.first.zone.example.com:9092"
    told = invoke("next", "--port-base", "20000")
    assert told.exit_code == 0
    assert "Step 1 of 9: advertise:1, on kafka-1" in told.stdout
    advertised = "CLIENT://kafka-1.brokers.of.the.first.zone.example.com:9092,WAL://127.0.0.1:20001"
    assert f"    advertised.listeners={advertised}" in told.stdout.splitlines()
    assert "advertise:2" not in told.stdout


def test_a_program_that_does_what_next_says_comes_to_the_end(invoke: Invoke, cluster: ModelCluster) -> None:
    taken = []
    while not (told := json.loads(invoke("next", "--json").stdout))["done"]:
        step = told["step"]
        proof = [*shlex.split(step["proof"])[1:], "--json"]
        del proof[proof.index("--wait") : proof.index("--wait") + 2]
        before = CliRunner().invoke(build_app(), proof)
        assert (before.exit_code, json.loads(before.stdout)["found"][0]["what"]) == (1, f"{step['id']} is not done")
        [found] = [one for one in plan(cluster.facts, Wish(Target.ENABLED, OLD, LISTENER)) if one.id == step["id"]]
        assert (step["set"], step["if_it_fails"]) == (dict(found.lines), found.undo)
        cluster.take(found)
        assert CliRunner().invoke(build_app(), proof).exit_code == 0
        taken.append(step["id"])
    assert len(taken) == 9


def test_while_replicas_are_out_of_sync_there_is_no_step(invoke: Invoke, cluster: ModelCluster) -> None:
    cluster.not_in_sync = ("orders-3",)
    told = invoke("next", "--json")
    assert told.exit_code == 1
    answer = json.loads(told.stdout)
    assert (answer["exit_code"], answer["done"], answer["step"]) == (1, False, None)
    assert "orders-3" in answer["waits_for"][0]["what"]
    told = invoke("next")
    assert "Not now:" in told.stdout
    assert "If advertise:1 was tried last: Put the old lines back" in told.stdout
    assert invoke("check").exit_code == 1


def test_what_cannot_be_found_out_is_neither_well_nor_wrong(invoke: Invoke, cluster: ModelCluster) -> None:
    cluster.mute = {2}
    assert [invoke(command, "--json").exit_code for command in ("plan", "next", "check")] == [0, 3, 3]


def test_check_says_where_each_broker_stands(invoke: Invoke, cluster: ModelCluster) -> None:
    cluster.set_agent(2, AgentState.READY)
    told = invoke("check", "--json")
    assert told.exit_code == 0
    assert json.loads(told.stdout)["brokers"] == [
        {"broker": 1, "where": "stock", "agent": "none", "release": "", "told": ""},
        {"broker": 2, "where": "stock", "agent": "ready", "release": OLD, "told": ""},
        {"broker": 3, "where": "stock", "agent": "none", "release": "", "told": ""},
    ]
    assert "All is well." in invoke("check").stdout


@pytest.mark.parametrize("error", [ClusterUnknownError("nobody answers"), MetadataTopicError("read", "t", "no answer")])
def test_a_cluster_that_does_not_answer_is_told_with_3(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_given: object) -> None:
        raise error

    monkeypatch.setattr(gathering, "gather", fail)
    for command in ("plan", "next", "check"):
        told = run("enabled", command, "--json")
        assert told.exit_code == 3
        assert json.loads(told.stdout) == {"exit_code": 3, "error": str(error)}
    told = run("enabled", "next")
    assert (told.exit_code, told.stdout, told.stderr) == (3, "", f"remote-wal: {error}\n")


def test_a_step_of_a_broker_that_restarts_is_waited_for(invoke: Invoke, cluster: ModelCluster) -> None:
    cluster.away = {2}
    told = invoke("check", "--step", "switch:2", "--wait", "0.1", "--json")
    assert told.exit_code == 1
    assert json.loads(told.stdout)["found"][-1] == {
        "broker": 2, "what": "switch:2 may be done or not", "unknown": True
    }  # fmt: skip


def test_what_cannot_be_asked_for_is_told_with_2(invoke: Invoke) -> None:
    assert run("somewhere", "next").exit_code == 2
    assert run("removed", "next", "--back-to", "nowhere").exit_code == 2
    told = invoke("check", "--step", "switch:9", "--wait", "60")
    assert (told.exit_code, "there is no step switch:9, only advertise:1" in told.stderr) == (2, True)


def test_all_options_that_were_given_stand_in_the_proof(invoke: Invoke) -> None:
    given = ["--listener", "agents", "--replica-host", "r-{id}.internal", "--protocol", "SSL"]
    proof = json.loads(invoke("next", "--json", *given).stdout)["step"]["proof"]
    assert shlex.split(proof)[-6:] == given[:2] + given[4:] + given[2:4]
    assert "--port-base" not in proof

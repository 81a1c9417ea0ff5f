"""A broker may be restarted only while every broker, agent and replica is known to be well."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.settings.process_settings import HttpSettings
from cli.exit_code import ExitCode
from cli.fleet.doctor import exit_code
from cli.main import build_app
from doctor import before_restart, restart_questions
from doctor.before_restart import AgentReadiness, AgentState, RestartFacts, RunningCluster, judge_restart
from doctor.facts import Unknown
from doctor.findings import Finding, Level
from doctor.restart_questions import ask_agents
from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties
from metadata_topic.settings.topic_settings import AgentRegistration

DEAD = Unknown("no answer")
READY = AgentReadiness("2.0", AgentState.READY)
ROWS = ["controller", "brokers", "replicas", "agents", "agent-listeners", "agent-releases"]


def broker(
    broker_id: int, port: int | None = None, inter_broker: str = "WAL", listens: int | None = None
) -> BrokerProperties:
    """A broker that advertises WAL at this port, by default where agents expect it, and listens there or elsewhere."""
    port = port or 19900 + broker_id
    lines = {
        "node.id": str(broker_id),
        "listeners": f"CLIENT://:9092,WAL://127.0.0.1:{listens or port}",
        "advertised.listeners": f"CLIENT://kafka-{broker_id}:9092,WAL://127.0.0.1:{port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,WAL:PLAINTEXT",
        "inter.broker.listener.name": inter_broker,
    }
    return parse_broker_properties(lines, Path(f"broker {broker_id}"))


BROKERS: dict[int, BrokerProperties | Unknown] = {one: broker(one) for one in (1, 2, 3)}
STOCK: dict[int, BrokerProperties | Unknown] = {one: broker(one, inter_broker="CLIENT") for one in (1, 2, 3)}
CLUSTER = RunningCluster(BROKERS, frozenset(), (), (), ())
AGENTS = dict.fromkeys((1, 2, 3), READY)
WELL = RestartFacts("2.0", 19900, 1, False, False, CLUSTER, 0, AGENTS)


def cluster(**changes: Any) -> dict[str, Any]:
    return {"cluster": replace(CLUSTER, **changes)}


def agent(
    state: AgentState, reason: str = "", release: str = "2.0", broker_id: int = 2, is_shadow: bool = False
) -> dict[str, Any]:
    return {"agents": {**AGENTS, broker_id: AgentReadiness(release, state, reason, is_shadow)}}


def without(broker_id: int) -> Mapping[int, BrokerProperties | Unknown]:
    return {one: told for one, told in BROKERS.items() if one != broker_id}


TROUBLES: dict[str, tuple[str, Level, dict[str, Any], str]] = {
    "no controller": ("controller", Level.UNKNOWN, {"reassigned": DEAD}, "no answer"),
    "a broker is gone": (
        "brokers", Level.WARNING, cluster(brokers=without(2), missing=frozenset({2})), "broker 2 is not there, so no",
    ),
    "a replica is behind": (
        "replicas", Level.WARNING, cluster(not_in_sync=tuple(f"orders-{n}" for n in range(7))),
        "7 partitions are under-replicated or without a leader: orders-0, ",
    ),
    "topics are hidden": ("replicas", Level.UNKNOWN, cluster(hidden=("orders (denied)",)), "orders (denied)"),
    "an agent is dead": ("agents", Level.WARNING, agent(AgentState.SILENT, "refused"), "2 does not answer (refused)"),
    "an agent is not ready": ("agents", Level.WARNING, agent(AgentState.NOT_READY, "no store"), "2 is not ready (no"),
    "an agent is out of reach": ("agents", Level.UNKNOWN, agent(AgentState.UNASKED, "a firewall"), "a firewall"),
    "an agent is not registered": (
        "agents", Level.WARNING, {"agents": {1: READY, 3: READY}}, "no agent relays for broker 2: none is registered",
    ),
    "an agent is in shadow": (
        "agents", Level.WARNING, agent(AgentState.READY, is_shadow=True), "no agent relays for broker 2: it is in",
    ),
    "the agent of the first broker that is to replicate through agents is in shadow": (
        "agents", Level.WARNING,
        {**agent(AgentState.READY, broker_id=1, is_shadow=True), **cluster(brokers=STOCK), "switches": True},
        "no agent relays for broker 1: it is in shadow",
    ),
    "the first broker that is to replicate through agents reaches another whose agent is in shadow": (
        "agents", Level.WARNING,
        {**agent(AgentState.READY, is_shadow=True), **cluster(brokers=STOCK), "switches": True},
        "no agent relays for broker 2: it is in shadow",
    ),
    "no agent is registered when the first broker is to replicate through agents": (
        "agents", Level.WARNING, {"agents": {}, **cluster(brokers=STOCK), "switches": True},
        "no agent relays for broker 1: none is registered; no agent relays for broker 2",
    ),
    "the agent of a broker that is to be restarted is not ready": (
        "agents", Level.WARNING, agent(AgentState.NOT_READY, "no store", broker_id=1), "1 is not ready (no",
    ),
    "replicas are out of sync, and the agent that is to be restarted answers": (
        "replicas", Level.WARNING, {**cluster(not_in_sync=("orders-0",)), "restarts_agent": True}, "orders-0",
    ),
    "another agent is not ready when one is to be restarted": (
        "agents", Level.WARNING, {**agent(AgentState.NOT_READY, "no store"), "restarts_agent": True},
        "2 is not ready (no",
    ),
    "an agent is dead, and the first broker is to replicate through agents": (
        "agents", Level.WARNING, {**agent(AgentState.SILENT), **cluster(brokers=STOCK), "switches": True},
        "2 does not answer",
    ),
    "an agent of a stock broker is dead": (
        "agents", Level.WARNING, {**agent(AgentState.SILENT), **cluster(brokers={**STOCK, 1: broker(1)})},
        "2 does not answer",
    ),
    "a listener is elsewhere": (
        "agent-listeners", Level.WARNING, cluster(brokers={**BROKERS, 2: broker(2, 19909)}), "broker 2 by WAL",
    ),
}  # fmt: skip


def judged(**changes: Any) -> dict[str, Finding]:
    return {one.check: one for one in judge_restart(replace(WELL, **changes))}


def test_an_agent_may_lead_from_the_advertised_port_to_its_brokers_listener() -> None:
    brokers: dict[int, BrokerProperties | Unknown] = {one: broker(one, listens=9091) for one in (1, 2, 3)}
    assert judged(**cluster(brokers=brokers))["agent-listeners"].level is Level.OK


def test_where_all_is_well_a_restart_may_begin() -> None:
    assert [(one.check, one.level) for one in judge_restart(WELL)] == [(row, Level.OK) for row in ROWS]
    assert exit_code(judge_restart(WELL)) is ExitCode.GOOD


@pytest.mark.parametrize("trouble", TROUBLES)
def test_each_trouble_is_found_by_its_row_alone_and_forbids_a_restart(trouble: str) -> None:
    row, level, changes, text = TROUBLES[trouble]
    found = judged(**changes)
    assert {name: one.level for name, one in found.items() if one.level is not Level.OK} == {row: level}
    assert text in found[row].found
    assert exit_code(list(found.values())) is (ExitCode.FINDINGS if level is Level.WARNING else ExitCode.UNKNOWN)


def test_a_broker_that_does_not_tell_its_settings_is_unknown_and_may_hide_a_wrong_listener() -> None:
    found = judged(**cluster(brokers={**BROKERS, 2: DEAD}))
    levels = {name: one.level for name, one in found.items()}
    assert levels == dict.fromkeys(ROWS, Level.OK) | dict.fromkeys(("brokers", "agent-listeners"), Level.UNKNOWN)
    assert exit_code(list(found.values())) is ExitCode.UNKNOWN


def test_what_is_wrong_counts_more_than_what_is_unknown() -> None:
    changes = {**cluster(not_in_sync=("orders-0",)), "agents": DEAD, "reassigned": DEAD}
    assert exit_code(list(judged(**changes).values())) is ExitCode.FINDINGS


def test_where_nothing_answers_nothing_is_well() -> None:
    found = judged(cluster=DEAD, reassigned=DEAD, agents=DEAD)
    assert {one.level for one in found.values()} == {Level.UNKNOWN}


@pytest.mark.parametrize(
    ("row", "changes", "text"),
    [
        ("controller", {"reassigned": 3}, "3 partitions are being reassigned"),
        ("replicas", cluster(single=("orders-0",)), "1 partitions have one replica"),
        ("agents", agent(AgentState.READY, "degraded: the store is slow"), "broker 2: degraded: the store is slow"),
        (
            "agents",
            {**agent(AgentState.SILENT), **cluster(brokers=STOCK)},
            "none of 3 is needed; not ready, or not asked: broker 2 (does not answer)",
        ),
        *(
            (
                "agents",
                {**agent(state, "why", broker_id=1), "restarts_agent": True},
                f"2 agents are ready; the one that is to be restarted {state.value} (why)",
            )
            for state in (AgentState.NOT_READY, AgentState.SILENT, AgentState.UNASKED)
        ),
        (
            "agents",
            {**agent(AgentState.READY, broker_id=1, is_shadow=True), "restarts_agent": True},
            "2 agents are ready; the one that is to be restarted is in shadow",
        ),
        (
            "replicas",
            {
                **agent(AgentState.SILENT, broker_id=1),
                **cluster(not_in_sync=("orders-0",)),
                "restarts_agent": True,
            },
            "orders-0; the agent that is to be restarted does not answer: that may be why",
        ),
        ("agent-releases", agent(AgentState.READY, release="1.0"), "to be upgraded, one by one: 1.0 at broker 2"),
    ],
)
def test_what_forbids_nothing_is_told(row: str, changes: dict[str, Any], text: str) -> None:
    found = judged(**changes)
    assert found[row].level is Level.INFORMATION
    assert text in found[row].found
    assert exit_code(list(found.values())) is ExitCode.GOOD


def test_an_agent_in_shadow_that_nobody_replicates_through_may_be_dead() -> None:
    stock = {**BROKERS, 2: broker(2, inter_broker="CLIENT")}
    found = judged(**agent(AgentState.SILENT, is_shadow=True), **cluster(brokers=stock))["agents"]
    assert (found.level, found.found) == (Level.OK, "2 agents are ready")


@contextmanager
def answering(status: HTTPStatus, body: bytes) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else HTTPStatus.NOT_FOUND)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def asked(endpoint: str, host: str = "localhost", timeout_s: float = 10.0) -> AgentReadiness:
    registration = AgentRegistration(1, 1, endpoint, "2.0", 0)
    return ask_agents({1: registration}, {1: host}, HttpSettings(), timeout_s)[1]


@pytest.mark.parametrize(
    ("status", "body", "state", "reason"),
    [
        (HTTPStatus.OK, b"ready\ndegraded: the store is slow\n", AgentState.READY, "degraded: the store is slow"),
        (HTTPStatus.SERVICE_UNAVAILABLE, b"starting\nno store\n", AgentState.NOT_READY, "starting; no store"),
    ],
)
def test_an_agent_says_itself_whether_it_is_ready(
    status: HTTPStatus, body: bytes, state: AgentState, reason: str
) -> None:
    with answering(status, body) as endpoint:
        assert asked(endpoint) == AgentReadiness("2.0", state, reason)


def test_an_agent_in_shadow_is_told_apart() -> None:
    with answering(HTTPStatus.OK, b"ready\n") as endpoint:
        registration = AgentRegistration(1, 1, endpoint, "2.0", 0, is_shadow=True)
        told = ask_agents({1: registration}, {1: "localhost"}, HttpSettings(), 10.0)
    assert told == {1: AgentReadiness("2.0", AgentState.READY, is_shadow=True)}


def test_an_agent_whose_endpoint_is_malformed_leaves_the_others_told() -> None:
    with answering(HTTPStatus.OK, b"ready\n") as endpoint:
        registered = {one: AgentRegistration(one, 1, at, "2.0", 0) for one, at in ((1, "[fe80::1:80"), (2, endpoint))}
        told = ask_agents(registered, dict.fromkeys(registered, "localhost"), HttpSettings(), 10.0)
    assert [told[one].state for one in (1, 2)] == [AgentState.UNASKED, AgentState.READY]


def test_somebody_else_at_an_agents_address_is_not_taken_for_an_agent() -> None:
    with answering(HTTPStatus.OK, b"<html>It works!</html>") as endpoint:
        assert asked(endpoint).state is AgentState.UNASKED


def test_an_agent_is_silent_if_nobody_listens_or_it_takes_connections_and_answers_nothing() -> None:
    away = asked("127.0.0.1:1")
    assert (away.state, away.reason.partition(": ")[2]) == (
        AgentState.SILENT,
        "nothing listens there, so it is not running",
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        frozen = asked(endpoint, timeout_s=0.2)  # nobody accepts, so nobody answers
        assert (frozen.state, "so it is frozen" in frozen.reason) == (AgentState.SILENT, True)
    with answering(HTTPStatus.OK, b"ready\n") as endpoint:
        assert asked(f"https://{endpoint}").state is AgentState.UNASKED


@pytest.mark.parametrize(("others_host", "state"), [("localhost", AgentState.READY), ("kafka-2", AgentState.UNASKED)])
def test_a_dead_brokers_agent_is_asked_on_loopback_if_all_brokers_are_on_this_host(
    others_host: str, state: AgentState
) -> None:
    with answering(HTTPStatus.OK, b"ready\n") as endpoint:
        dead = {1: AgentRegistration(1, 1, endpoint, "2.0", 0)}
        assert ask_agents(dead, {2: others_host}, HttpSettings(), 10.0)[1].state is state


@pytest.mark.parametrize("endpoint", ["127.0.0.1:19095", "https://localhost:19095"])
def test_another_hosts_loopback_is_not_asked(endpoint: str) -> None:
    told = asked(endpoint, "kafka-1.example.com")
    assert told.state is AgentState.UNASKED
    assert "remote.wal.agent.http.listener" in told.reason


@pytest.fixture(params=["closed", "mute"])
def silent_cluster(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port where nobody listens, or where connections are taken and nothing is said."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if request.param == "mute":
            held.listen(64)
        yield held.getsockname()[1]


@pytest.mark.real_connections
def test_a_cluster_that_does_not_answer_is_never_well(
    silent_cluster: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.properties"
    lines = {
        "node.id": "1",
        "process.roles": "broker",
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:1",
        "remote.wal.agent.bootstrap.servers": f"127.0.0.1:{silent_cluster}",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    monkeypatch.setattr(restart_questions, "TIMEOUT_S", 0.3)
    told = CliRunner().invoke(build_app(), ["doctor", "--before-restart", "--json", "--broker-config", str(file)])
    answer = json.loads(told.stdout)
    assert (told.exit_code, answer["exit_code"]) == (3, 3)
    assert {one["check"]: one["level"] for one in answer["checks"]} == dict.fromkeys(ROWS, "unknown")
    assert answer["checks"][0]["found"].startswith("reach the cluster: no broker answers")


def test_a_file_that_cannot_be_read_is_no_well_cluster(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("remote.wal.agent.bootstrap.server=a-key-that-is-wrong\n")
    told = CliRunner().invoke(build_app(), ["doctor", "--before-restart", "--json", "--broker-config", str(file)])
    assert told.exit_code == 6


def test_it_asks_again_until_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [replace(WELL, reassigned=DEAD), WELL]
    monkeypatch.setattr(restart_questions, "gather_restart_facts", lambda *_: answers.pop(0))
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\n")
    arguments = ["doctor", "--before-restart", "--wait", "60", "--json", "--broker-config", str(file)]
    assert CliRunner().invoke(build_app(), arguments).exit_code == 0
    assert answers == []


@pytest.mark.real_connections
def test_for_an_agents_restart_it_does_not_count_what_the_broker_would_switch_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RestartFacts] = []

    def judge(facts: RestartFacts) -> list[Finding]:
        asked.append(facts)
        return []

    file = tmp_path / "server.properties"
    lines = {**broker(1).raw, "remote.wal.agent.bootstrap.servers": "127.0.0.1:1"}
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    monkeypatch.setattr(restart_questions, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(before_restart, "judge_restart", judge)
    command = ["doctor", "--before-restart", "--json", "--broker-config", str(file)]
    for options in ([], ["--agent"]):
        assert CliRunner().invoke(build_app(), [*command, *options]).exit_code == 0
    assert [(one.broker_id, one.switches, one.restarts_agent) for one in asked] == [(1, True, False), (1, False, True)]

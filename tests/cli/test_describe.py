"""`remote-wal describe` tells how long objects are kept, whether or not the agents answer."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agent.http import fleet_pages as agents_module
from agent.http import http_asking
from cli.main import build_app
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import ClusterListing, DescribedTopic
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings

NOWHERE = "127.0.0.1:1"
HOUR_MS = 3_600_000
TOPICS = {
    "orders": TopicSettings(enable=True, wal_retention_ms=-2),
    "clicks": TopicSettings(enable=True),
    "off": TopicSettings(wal_retention_ms=5),
    "sales": TopicSettings(enable=True, archive=True, origin="pattern s.*"),
}


def agent(broker_id: int, retention_ms: int | None = None) -> AgentRegistration:
    return AgentRegistration(broker_id, 1, NOWHERE, "1", 0, False, {}, retention_ms)


def described(monkeypatch: pytest.MonkeyPatch, agents: Mapping[int, AgentRegistration], *options: str) -> Result:
    known = SettingsTable(TOPICS, agents=agents, orphaned={"gone": TopicSettings(enable=True)})
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: known)
    return CliRunner().invoke(build_app(), ["describe", "--bootstrap-server", NOWHERE, *options])


def test_a_topic_that_is_not_there_is_a_wrong_word(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: DescribedTopic(name, 0) for name in ("orders", "payments")}
    monkeypatch.setattr(KafkaCluster, "listing", lambda _self: ClusterListing("id", {}, names))
    told = described(monkeypatch, {}, "--topic", "paymnets")
    assert (told.exit_code, "there is no topic paymnets (is payments meant?)" in told.output) == (2, True), told.output


def test_what_topics_and_agents_say_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads(described(monkeypatch, {1: agent(1, HOUR_MS), 2: agent(2)}, "--json").stdout)
    assert told["wal_retention"] == {
        "agents": {"1": {"ms": HOUR_MS}, "2": {"ms": None}},
        "topics": {"clicks": None, "orders": -2, "sales": None},
    }
    assert told["orphaned_settings"] == ["gone"]
    origins = {topic: {key: one["from"] for key, one in keys.items()} for topic, keys in told["topic_settings"].items()}
    assert origins["sales"] == {
        "remote.wal.storage.enable": "pattern s.*",
        "remote.wal.link.policy": "default",
        "remote.wal.archive.enable": "pattern s.*",
        "remote.wal.durable.enable": "default",
        "remote.wal.pack.enable": "default",
    }
    assert told["topic_settings"]["orders"]["remote.wal.retention.ms"] == {"value": "-2", "from": "topic"}


def test_agents_that_go_by_the_same_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = {number: agent(number, HOUR_MS) for number in (1, 2)} | {3: agent(3)}
    monkeypatch.setenv("COLUMNS", "200")
    told = described(monkeypatch, agents).stdout.splitlines()
    assert told[-8:] == [
        "Agents 1, 2 keep objects for 60 min.",
        "Agents 3 keep objects for the local retention.",
        "Of orders, for the local retention.",
        "clicks: remote.wal.storage.enable=true (topic)",
        "off: remote.wal.storage.enable=false (topic), remote.wal.retention.ms=5 (topic)",
        "orders: remote.wal.storage.enable=true (topic), remote.wal.retention.ms=-2 (topic)",
        "sales: remote.wal.storage.enable=true (pattern s.*), remote.wal.archive.enable=true (pattern s.*)",
        "gone: settings of a deleted topic, which count for no other. To remove them: remote-wal topics reset gone",
    ]


def test_with_the_brokers_file_agents_are_asked_as_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(url: str, _timeout_s: float, headers: Mapping[str, str], context: object) -> None:
        assert context is not None
        asked.append((url, headers.get("Authorization")))
        raise OSError("refused")

    monkeypatch.setattr(http_asking, "ask_directly", answer)
    (tmp_path / "token").write_text("s3cret")
    file = tmp_path / "server.properties"
    file.write_text(
        f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:1\nremote.wal.agent.http.token.file={tmp_path / 'token'}\n"
    )
    agents = {1: replace(agent(1), http_endpoint="https://kafka-1:19095")}
    assert described(monkeypatch, agents, "--broker-config", str(file)).exit_code == 3
    assert described(monkeypatch, agents).exit_code == 3
    assert asked == [("https://kafka-1:19095/describe", "Bearer s3cret"), ("https://kafka-1:19095/describe", None)]


def test_why_bytes_go_inline_is_shown_by_topic_and_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    why = {"minute": 0.255, "hour": None, "reasons": {"load": 7}, "plain": "too little comes", "numbers": "30 KB"}
    pages: dict[str, Any] = {
        f"kafka-{one}:19095": {"broker_id": one, "partitions": [], "why": {"orders": why}} for one in (1, 2)
    }
    pages["kafka-2:19095"]["why"] |= {"clicks": why}
    monkeypatch.setattr(agents_module, "ask_agent", lambda endpoint, *_: pages[endpoint])
    agents = {one: replace(agent(one), http_endpoint=f"kafka-{one}:19095") for one in (1, 2)}
    for columns in ("80", "150"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = described(monkeypatch, agents, "--why", "--topic", "orders").stdout
        assert [part in shown for part in ("orders", "25.5 %", "none")] == [True] * 3
        page = "More on this: docs/operations.md, Why bytes go inline"
        assert f"orders, led by broker 1, 2: too little comes\n{page}\n" in shown
        assert "clicks" not in shown
    in_numbers = described(monkeypatch, agents, "--why", "--verbose").stdout
    assert "clicks, led by broker 2: too little comes; 30 KB\n" in in_numbers


@pytest.mark.parametrize("options", [(), ("--why",)])
def test_what_the_broker_of_a_silent_agent_leads_is_told_first_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    why = {"minute": 1.0, "hour": 1.0, "reasons": {}, "plain": "it is linked: nothing to do", "numbers": ""}
    page = {"broker_id": 1, **WELL, "why": {"orders": why}}

    def answer(endpoint: str, *_: object) -> dict[str, Any]:
        if endpoint != "kafka-1":
            raise ConnectionRefusedError
        return {**page}

    monkeypatch.setattr(agents_module, "ask_agent", answer)
    monkeypatch.setenv("COLUMNS", "200")
    agents = {one: replace(agent(one), http_endpoint=f"kafka-{one}") for one in (1, 2)}
    shown = described(monkeypatch, agents, *options)
    assert shown.exit_code == 3, shown.output
    assert shown.stdout.splitlines()[0] == (
        "broker 2: its agent does not answer (kafka-2: nothing listens there, so it is not running): what it leads is "
        "not shown here, and may not replicate: remote-wal status"
    )


def test_an_agent_in_shadow_is_told_with_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = {"dollars": {"saved": -2.5}, "producers_slowed": "unknown: why"}
    page = {
        "broker_id": 1, "partitions": [], "storage_ready": True, "hydration_paused": False, "metadata_pending": 0,
        "requests": {"put": 1, "get": 0}, "shadow": shadow,
    }  # fmt: skip
    monkeypatch.setattr(agents_module, "ask_agent", lambda *_: page)
    monkeypatch.setenv("COLUMNS", "300")
    for options in ((), ("--why",)):
        told = " ".join(described(monkeypatch, {1: agent(1)}, *options).stdout.split())
        for text in (
            "Agent 1 is in shadow",
            "links would have cost $2.50 more",
            "unknown: why",
        ):
            assert text in told


WELL = {
    "partitions": [], "storage_ready": True, "hydration_paused": False, "metadata_pending": 0,
    "requests": {"put": 1, "get": 0},
}  # fmt: skip


@pytest.mark.parametrize("options", [("--json",), (), ("--why",), ("--objects", "--json")])
def test_the_agent_of_a_decommissioned_broker_is_neither_asked_nor_missed(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    def answer(endpoint: str, _asking: object, path: str = "/describe", _timeout_s: float = 0.0) -> dict[str, Any]:
        assert endpoint == "kafka-1:19095"
        return {"objects": [], "totals": []} if path == "/objects" else {"broker_id": 1, **WELL}

    monkeypatch.setattr(agents_module, "ask_agent", answer)
    agents = {
        0: replace(agent(0, HOUR_MS), is_gone=True),
        1: replace(agent(1), http_endpoint="kafka-1:19095"),
    }
    shown = described(monkeypatch, agents, *options)
    assert shown.exit_code == 0, shown.output
    if options == ("--json",):
        told = json.loads(shown.stdout)
        assert (told["silent"], told["wal_retention"]["agents"].keys()) == ({}, {"1"})


def test_an_agent_that_waits_for_formatted_log_directories_is_told_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = {"kafka-1": {"broker_id": 1, **WELL}, "kafka-2": {"broker_id": 2, "partitions": []}}
    monkeypatch.setattr(agents_module, "ask_agent", lambda endpoint, *_: dict(pages[endpoint]))
    monkeypatch.setenv("COLUMNS", "200")
    agents = {1: replace(agent(1), http_endpoint="kafka-1"), 2: replace(agent(2), http_endpoint="kafka-2")}
    shown = described(monkeypatch, agents)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert ["1", "ready", "on", "1", "0", "0"] in map(str.split, lines)
    assert "agent 2 is not relaying yet" in lines


@pytest.mark.parametrize("options", [("--json",), (), ("--why",)])
def test_a_broker_that_does_not_answer_its_agent_is_told_as_it_has_no_rows(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    away = "broker 2 has not answered its agent for 31 s (refused): it leads nothing"
    pages = {f"kafka-{one}": {"broker_id": one, **WELL} for one in (1, 2)}
    pages["kafka-2"]["broker_away"] = away
    monkeypatch.setattr(agents_module, "ask_agent", lambda endpoint, *_: dict(pages[endpoint]))
    monkeypatch.setenv("COLUMNS", "200")
    agents = {one: replace(agent(one), http_endpoint=f"kafka-{one}") for one in (1, 2)}
    shown = described(monkeypatch, agents, *options)
    assert (shown.exit_code, away in shown.stdout) == (1, True), shown.output


def test_programs_are_told_too_that_no_agent_tells_of_its_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = described(monkeypatch, {1: agent(1)}, "--objects", "--json")
    told = json.loads(shown.stdout)
    assert shown.exit_code == told["exit_code"] == 3
    assert told["error"] == "no agent told of its objects"
    assert told["silent"].keys() == {"1"}
    assert "agent 1: 127.0.0.1:1: " in shown.stderr

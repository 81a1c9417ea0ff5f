"""What doctor says of facts: each fault is found, and nothing is found where there is none."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.settings_file import agent_settings
from cli.fleet.doctor import exit_code
from doctor.diagnosis import CHECKS, diagnose
from doctor.facts import (
    AgentResponse,
    BrokerTlsFacts,
    ClockReading,
    Cluster,
    EnabledTopic,
    Facts,
    Host,
    MetadataTopic,
    StepFailure,
    Store,
    Unknown,
)
from doctor.file_checks import judge_file
from doctor.findings import Finding, Level, Verdict
from kafka_log.broker_files.server_properties import parse_broker_properties
from metadata_topic.settings.wal_retention import KeptFor
from metadata_topic.topic.topic import MetadataTopicSettings

FILE = Path("/etc/kafka/server.properties")
HOUR_MS = 3_600_000
WEEK_MS = 168 * HOUR_MS
AGREEING = ClockReading(10_000, 10_100, 10_050, 1000)
LATE = ClockReading(1_000_000, 1_000_100, 990_000, 1000)
DEAD = Unknown("no answer")
PROPERTIES = {
    "node.id": "1",
    "log.dirs": "/data/kafka",
    "listeners": "CLIENT://:9092,WAL://127.0.0.1:19901,BYPASS://10.0.0.1:19096",
    "advertised.listeners": "CLIENT://kafka-1:9092,WAL://127.0.0.1:19901",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,WAL:PLAINTEXT,BYPASS:SSL",
    "listener.name.bypass.ssl.client.auth": "required",
    "inter.broker.listener.name": "WAL",
    "remote.log.wal.storage.system.enable": "true",
    "remote.wal.agent.peers": "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
    "remote.wal.agent.bypass": "1@10.0.0.1:19096,2@10.0.0.2:19096,3@10.0.0.3:19096",
    "remote.wal.agent.ssl.certificate.file": "/tls/agent.pem",
    "remote.wal.agent.ssl.key.file": "/tls/agent.key",
    "remote.wal.agent.ssl.ca.file": "/tls/ca.pem",
}


OWN_LISTENERS = "CLIENT://kafka-1:9092,WAL://127.0.0.1:19901"
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
PLAINTEXT_ACCEPTED = {
    "remote_wal_agent_bypass_security_protocol": "PLAINTEXT",
    "remote_wal_agent_bypass_plaintext_accepted": "true",
}


def kept_all(local_ms: int | None, **changes: Any) -> EnabledTopic:
    """A topic whose objects are kept for as long as its log."""
    kept = None if local_ms is None else KeptFor(local_ms, local_ms)
    return replace(EnabledTopic(local_ms, True, kept=kept, metadata_ms=local_ms), **changes)


def kept_for_an_hour(**changes: Any) -> EnabledTopic:
    """A topic with Kafka's and our defaults."""
    kept = KeptFor(HOUR_MS, 24 * HOUR_MS)
    return replace(EnabledTopic(WEEK_MS, True, kept=kept, metadata_ms=kept.lagging_ms), **changes)


def protocols(bypass: str) -> dict[str, str]:
    return {"listener_security_protocol_map": f"CLIENT:PLAINTEXT,WAL:PLAINTEXT,BYPASS:{bypass}"}


COMPACTED = {"cleanup.policy": "compact"}


def facts_of(**properties: str) -> Facts:
    """A cluster in which all is well, but for these properties, in Python's spelling."""
    raw = PROPERTIES | {key.replace("_", "."): value for key, value in properties.items()}
    broker = parse_broker_properties(raw, FILE)
    config = MetadataTopicSettings().metadata_topic_config()
    return Facts(
        broker=broker,
        settings=agent_settings(broker, FILE),
        cluster=Cluster(frozenset({1, 2, 3}), MetadataTopic(config, 3), COMPACTED),
        topics={"orders": kept_all(HOUR_MS)},
        store=Store({}, True, AGREEING, frozenset()),
        peers={2: None, 3: None},
        agents={broker_id: AgentResponse("abc") for broker_id in (1, 2, 3)},
        host=Host(1000, 8192, 65536, "the agent"),
        bypass={2: None, 3: None},
    )


def judged(facts: Facts) -> dict[str, Finding]:
    return {finding.check: finding for finding in diagnose(facts)}


def topic(replicas: int = 3, **config: str) -> Cluster:
    changes = {key.replace("_", "."): value for key, value in config.items()}
    metadata_topic = MetadataTopic(MetadataTopicSettings().metadata_topic_config() | changes, replicas)
    return Cluster(frozenset({1, 2, 3}), metadata_topic, COMPACTED)


def store(failures: Mapping[str, StepFailure] | None = None, **changes: Any) -> Store:
    return replace(Store(failures or {}, True, AGREEING, frozenset()), **changes)


_ZONED_FACTS = facts_of(broker_rack="az1", remote_wal_buckets="az1=one,az2=two")
_REGIONAL_FACTS = facts_of(remote_log_wal_storage_manager_class_name="plugin.s3.S3WalStorageManager")
REGIONAL = {"broker": _REGIONAL_FACTS.broker, "settings": _REGIONAL_FACTS.settings}
KEPT = EnabledTopic(1000, has_long_term_tier=True, replicas=3)
ONE_REPLICA = replace(KEPT, replicas=1)
ZONED = {"broker": _ZONED_FACTS.broker, "settings": _ZONED_FACTS.settings}
DENIED = {"delete": StepFailure("access", "denied")}


def test_where_all_is_well_nothing_is_found() -> None:
    findings = diagnose(facts_of(broker_rack="az1", replica_selector_class=RACK_AWARE))
    assert [finding for finding in findings if finding.level is not Level.OK] == []
    assert len({finding.check for finding in findings}) == len(CHECKS)
    assert exit_code(findings) == 0


FAULTS = [
    ("metadata-topic-retention", Level.ERROR, {"cluster": topic(retention_ms="3600000")}, "3660000"),
    ("metadata-topic-retention", Level.ERROR, {"topics": {"t": kept_all(-1)}}, "need -1"),
    ("metadata-topic-retention", Level.ERROR, {"cluster": topic(retention_bytes="1000")}, "retention.bytes"),
    ("metadata-topic-retention", Level.UNKNOWN, {"topics": {"t": kept_all(None)}}, "t is not known"),
    (
        "metadata-topic-message-size",
        Level.ERROR,
        {"cluster": topic(max_message_bytes="500000")},
        "max.message.bytes is 500000",
    ),
    (
        "settings-topic-cleanup",
        Level.ERROR,
        {"cluster": replace(topic(), settings_config={"cleanup.policy": "compact,delete"})},
        "settings that count are removed by age",
    ),
    ("metadata-topic-cleanup", Level.ERROR, {"cluster": topic(cleanup_policy="compact,delete")}, "compact,delete"),
    ("metadata-topic-replication", Level.WARNING, {"cluster": topic(2)}, "replication factor 2"),
    ("metadata-topic-replication", Level.ERROR, {"cluster": topic(1, min_insync_replicas="1")}, "factor 1"),
    ("metadata-topic-replication", Level.ERROR, {"cluster": topic(2, min_insync_replicas="1")}, "replicas 1"),
    ("metadata-topic-replication", Level.ERROR, {"cluster": topic(min_insync_replicas="1")}, "replicas 1"),
    ("topics-visible", Level.WARNING, {"topics": {"t": kept_all(HOUR_MS, is_hidden=True)}}, "t: hidden"),
    ("topics-visible", Level.UNKNOWN, {"topics": DEAD}, "no answer"),
    (
        "long-term-tier",
        Level.INFORMATION,
        {"topics": {"t": kept_all(1, has_long_term_tier=False)}},
        "on the brokers alone",
    ),
    ("broker-tls", Level.ERROR, {"broker_tls": BrokerTlsFacts(("replica-2",), None)}, "does not name replica-2"),
    ("broker-tls", Level.ERROR, {"broker_tls": BrokerTlsFacts((), "closed")}, "WAL: closed"),
    ("broker-tls", Level.ERROR, {"broker_tls": Unknown("wrong password")}, "wrong password"),
    ("broker-tls", Level.OK, {"broker_tls": BrokerTlsFacts((), None)}, "WAL takes this agent's certificate"),
    ("wal-retention", Level.INFORMATION, {"topics": {"t": kept_for_an_hour()}}, "objects of t are kept for 1 h"),
    ("wal-retention", Level.UNKNOWN, {"topics": {"t": kept_all(None)}}, "t is not known"),
    ("agents-registered", Level.WARNING, {"agents": {2: DEAD}}, "broker 2: no answer"),
    (
        "agents-registered",
        Level.ERROR,
        {"agents": {1: Unknown("a: nothing listens there, so it is not running")}},
        "not",
    ),
    (
        "agents-registered",
        Level.WARNING,
        {"agents": {1: Unknown("a: HTTP Error 401: Unauthorized")}},
        "broker 1: a: HTTP",
    ),
    ("broker", Level.ERROR, {"broker_silence": "127.0.0.1:9092: connection refused"}, "127.0.0.1:9092: connection re"),
    (
        "missing-records",
        Level.WARNING,
        {"agents": {2: AgentResponse("abc", ("orders-0 5 to 9",)), 1: DEAD}},
        "orders-0 5 to 9",
    ),
    ("missing-records", Level.UNKNOWN, {"agents": {2: AgentResponse("abc"), 1: DEAD}}, "1 of 2 agents"),
    ("agent-peers", Level.ERROR, {"peers": {2: None, 3: "refused"}}, "broker 3: refused"),
    ("agent-peers", Level.ERROR, {"peers": {2: None}}, "brokers 3"),
    ("bypass-peers", Level.WARNING, {"bypass": {2: None, 3: "refused"}}, "broker 3: refused"),
    ("store-settings", Level.ERROR, {"store": store({"open": StepFailure("config", "no bucket")})}, "no bucket"),
    ("store-buckets", Level.WARNING, {**ZONED, "other_buckets": {"two": store(DENIED)}}, "two: delete: denied"),
    (
        "store-zones",
        Level.WARNING,
        {**ZONED, "topics": {"orders": ONE_REPLICA, "t": KEPT}},
        "one zone alone: orders. They",
    ),
    ("store-zones", Level.WARNING, {"topics": {"orders": replace(KEPT, is_durable=True)}}, "one zone alone: orders"),
    ("store-zones", Level.OK, {**ZONED, "topics": {"t": KEPT}}, "no topic is durable or has one replica"),
    ("store-zones", Level.OK, {**REGIONAL, "topics": {"orders": ONE_REPLICA}}, "no store of one zone"),
    ("store-buckets", Level.UNKNOWN, {**ZONED, "other_buckets": {"two": DEAD}}, "no answer"),
    ("store-permissions", Level.ERROR, {"store": store({"delete": StepFailure("access", "denied")})}, "denied"),
    ("store-permissions", Level.UNKNOWN, {"store": store({"open": StepFailure("config", "")})}, "not be opened"),
    ("store-conditional-put", Level.ERROR, {"store": store(refuses_overwriting=False)}, "overwrite"),
    ("store-shared", Level.WARNING, {"store": store(other_clusters=frozenset({"xyz"}))}, "xyz"),
    ("store-versions", Level.WARNING, {"store": store(keeps_versions=True)}, "keeps versions: what agents delete"),
    ("store-versions", Level.INFORMATION, {"store": store(keeps_versions=Unknown("denied"))}, "denied"),
    ("store-shared", Level.INFORMATION, {"store": store(keys_looked_at=2000, looked_at_all=False)}, "2,000"),
    ("clock-store", Level.WARNING, {"store": store(clock=LATE)}, "the object store is 9000 ms behind"),
    ("inotify-watches", Level.WARNING, {"host": Host(9000, 8192, 65536, "")}, "9000 partitions"),
    ("certificates", Level.WARNING, {"certificates": {"a": 300.0, "b": 20.9}}, "b ends in 20.9 days"),
    ("certificates", Level.ERROR, {"certificates": {"a": 300.0, "b": -0.1}}, "b has expired"),
    ("certificates", Level.ERROR, {"certificates": {"a": 300.0, "b": DEAD}}, f"b: {DEAD.reason}"),
    ("leader-history", Level.WARNING, {"host": Host(1000, 8192, 65536, "", DEAD)}, "is held"),
    ("open-files", Level.WARNING, {"host": Host(1, 8192, 1100, "it")}, "it may open 1100"),
    ("open-files", Level.ERROR, {"host": Host(1, 8192, 1024, "it")}, "it may open 1024"),
]


@pytest.mark.parametrize(("check", "level", "changes", "text"), FAULTS, ids=lambda value: str(value)[:30])
def test_a_fault_is_found_by_its_check_alone(check: str, level: Level, changes: dict[str, Any], text: str) -> None:
    findings = judged(replace(facts_of(), **changes))
    assert findings[check].level is level
    assert text in findings[check].found
    if level in (Level.WARNING, Level.ERROR):
        assert findings[check].change


@pytest.mark.parametrize(
    ("check", "level", "properties"),
    [
        ("store-buckets", Level.OK, {"broker_rack": "az1", "remote_wal_buckets": "az1=one,az2=two"}),
        ("store-buckets", Level.ERROR, {"broker_rack": "az9", "remote_wal_buckets": "az1=one,az2=two"}),
        ("store-buckets", Level.ERROR, {"remote_wal_buckets": "az1=one,az2=two"}),
        ("system-enable", Level.INFORMATION, {"remote_log_wal_storage_system_enable": "false"}),
        ("fetch-delay", Level.WARNING, {"replica_lag_time_max_ms": "2000"}),
        ("fetch-delay", Level.ERROR, {"replica_lag_time_max_ms": "1500"}),
        ("uncommitted-ttl", Level.WARNING, {"remote_wal_uncommitted_ttl_ms": "20000"}),
        ("uncommitted-ttl", Level.ERROR, {"rsm_wal_config_total_timeout_ms": "600000"}),
        ("clock-store", Level.OK, {"remote_wal_uncommitted_ttl_ms": "1000"}),
        ("listeners", Level.ERROR, {"advertised_listeners": "CLIENT://kafka-1:9092,WAL://127.0.0.1:19902"}),
        ("listeners", Level.ERROR, {"advertised_listeners": "CLIENT://kafka-1:9092,WAL://10.0.0.1:19901"}),
        ("listeners", Level.ERROR, {"listeners": "CLIENT://:19901,WAL://127.0.0.1:19900"}),
        ("listeners", Level.OK, {"listeners": "CLIENT://:9092,WAL://127.0.0.1:9091"}),
        ("listeners", Level.INFORMATION, {"listeners": "CLIENT://:9092,WAL://0.0.0.0:9091"}),
        ("listeners", Level.WARNING, {"listeners": "CLIENT://:9092,WAL://:19901"}),
        ("bypass-listener", Level.INFORMATION, {"remote_wal_agent_bypass": ""}),
        ("bypass-listener", Level.WARNING, {"remote_wal_agent_bypass": "2@10.0.0.2:19096"}),
        ("bypass-listener", Level.ERROR, {"remote_wal_agent_bypass": "1@10.0.0.1:19097"}),
        ("bypass-listener", Level.ERROR, {"listener_name_bypass_ssl_client_auth": "requested"}),
        ("bypass-listener", Level.ERROR, protocols("PLAINTEXT")),
        ("bypass-listener", Level.WARNING, protocols("PLAINTEXT") | PLAINTEXT_ACCEPTED),
        ("bypass-listener", Level.ERROR, {"listeners": f"{OWN_LISTENERS},BYPASS://127.0.0.1:19096"}),
        ("bypass-listener", Level.WARNING, {"advertised_listeners": f"{OWN_LISTENERS},BYPASS://10.0.0.1:19096"}),
        ("fetch-delay", Level.UNKNOWN, {"replica_lag_time_max_ms": "soon"}),
        ("follower-fetching", Level.INFORMATION, {}),
        ("follower-fetching", Level.INFORMATION, {"broker_rack": "az1"}),
        ("follower-fetching", Level.INFORMATION, {"replica_selector_class": RACK_AWARE}),
        ("follower-fetching", Level.OK, {"broker_rack": "az1", "replica_selector_class": RACK_AWARE}),
    ],
)
def test_a_setting_is_judged(check: str, level: Level, properties: dict[str, str]) -> None:
    assert judged(facts_of(**properties))[check].level is level


@pytest.mark.parametrize(
    ("client", "more", "level"),
    [
        ("SASL_PLAINTEXT", {}, Level.WARNING),
        ("PLAINTEXT", {"authorizer_class_name": "org.apache.kafka.Authorizer"}, Level.WARNING),
        ("PLAINTEXT", {}, Level.OK),
        ("SASL_PLAINTEXT", {"remote_wal_agent_peer_listener": "127.0.2.1:19090"}, Level.OK),
    ],
)
def test_agents_that_speak_plaintext_are_told_of_where_clients_must_log_in(
    client: str, more: dict[str, str], level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in [key for key in PROPERTIES if key.startswith("remote.wal.agent.ssl.")]:
        monkeypatch.delitem(PROPERTIES, key)
    spoken = {"listener_security_protocol_map": f"CLIENT:{client},WAL:PLAINTEXT,BYPASS:SSL"}
    monkeypatch.delitem(PROPERTIES, "remote.wal.agent.bypass")
    more = {"remote_wal_agent_peer_listener": "10.0.0.1:19090", **more}
    facts = facts_of(remote_wal_agent_plaintext_enable="true", **spoken, **more)
    assert judged(facts)["plaintext-peers"].level is level
    assert any("asks clients for a login" in found for _, found, _ in judge_file(facts.broker, facts.settings)) is (
        level is Level.WARNING
    )


@pytest.mark.parametrize(
    ("seen", "level"),
    [
        ({"replica-1": ("127.0.0.1",), "replica-2": ("127.0.0.1",)}, Level.OK),
        ({"replica-1": ("127.0.0.2",), "replica-2": ("127.0.0.1",)}, Level.OK),
        ({"replica-1": ("127.0.0.1",), "replica-2": ("10.0.0.2",)}, Level.WARNING),
        ({"replica-1": ("127.0.0.1",), "replica-2": DEAD}, Level.WARNING),
    ],
)
def test_names_that_brokers_advertise_must_lead_to_the_agent(seen: dict[str, Any], level: Level) -> None:
    """The broker's own name may lead to the broker, as where all brokers are on one host."""
    listeners = {"advertised_listeners": "CLIENT://kafka-1:9092,WAL://replica-1:19901"}
    listeners["listeners"] = f"CLIENT://:9092,WAL://{seen['replica-1'][0]}:19901"
    facts = replace(facts_of(**listeners), replica_hosts=seen)
    verdict = judged(facts)["listeners"]
    assert verdict.level is level
    assert level is Level.OK or "here replica-2 must lead to 127.0.0.1" in verdict.found


def test_where_the_broker_is_down_nothing_is_blamed_that_shows_only_while_it_runs() -> None:
    listeners = {"advertised_listeners": "CLIENT://kafka-1:9092,WAL://replica-1:19901"}
    tls = BrokerTlsFacts((), "127.0.0.1:19901: connection refused")
    seen = {"replica-1": DEAD, "replica-2": DEAD}
    facts = replace(facts_of(**listeners), replica_hosts=seen, broker_tls=tls, broker_silence="refused")
    found = diagnose(facts)
    assert (found[0].check, found[0].level) == ("broker", Level.ERROR)
    assert {judged(facts)[one].level for one in ("listeners", "broker-tls")} == {Level.UNKNOWN}


@pytest.mark.parametrize(
    ("broker_id", "change"),
    [
        (1, "start it again; if it is frozen, end it first (kill -9)"),
        (2, "start those that do not run, end (kill -9) and start those that are frozen"),
    ],
)
def test_agents_that_are_frozen_are_ended_before_they_are_started(broker_id: int, change: str) -> None:
    frozen = Unknown("a: it takes connections and answers nothing, so it is frozen, or busy")
    assert judged(replace(facts_of(), agents={broker_id: frozen}))["agents-registered"].change.startswith(change)


def test_a_clock_so_far_off_that_uploads_are_deleted_is_an_error() -> None:
    facts = replace(facts_of(remote_wal_uncommitted_ttl_ms="18000"), store=store(clock=LATE))
    assert judged(facts)["clock-store"].level is Level.ERROR


@pytest.mark.parametrize(
    ("remote_ms", "skew_ms"), [(9_000, 0), (8_999, -1), (10_000, 0), (10_100, 0), (10_101, 1), (70_100, 60_000)]
)
def test_skew_is_what_neither_the_round_trip_nor_whole_seconds_explain(remote_ms: int, skew_ms: int) -> None:
    assert ClockReading(10_000, 10_100, remote_ms, 1000).skew_ms == skew_ms


def test_where_nothing_can_be_got_every_check_still_says_something() -> None:
    facts = replace(
        facts_of(),
        cluster=DEAD,
        topics=DEAD,
        store=DEAD,
        agents=DEAD,
        host=Host(DEAD, DEAD, DEAD, ""),
    )
    findings = diagnose(facts)
    unknown = {finding.check for finding in findings if finding.level is Level.UNKNOWN}
    assert len(findings) == len(CHECKS)
    assert {"metadata-topic-retention", "store-permissions", "clock-store", "open-files", "agent-peers"} <= unknown
    assert all(finding.found for finding in findings)
    assert exit_code(findings) == 3


def test_a_check_that_breaks_takes_no_other_with_it() -> None:
    def broken_check(_facts: Facts) -> Verdict:
        raise ZeroDivisionError("planted")

    first, second = diagnose(facts_of(), {"broken-check": broken_check, "system-enable": CHECKS["system-enable"]})
    assert (first.check, first.level) == ("broken-check", Level.UNKNOWN)
    assert "planted" in first.found
    assert "ZeroDivisionError" not in first.found
    assert second.level is Level.OK


def test_the_exit_code_is_that_of_the_worst() -> None:
    def code(*levels: Level) -> int:
        return exit_code([Finding("x", level, "") for level in levels])

    told = {Level.OK: 0, Level.INFORMATION: 0, Level.WARNING: 1, Level.UNKNOWN: 3, Level.ERROR: 6}
    assert {level: code(level) for level in Level} == told
    assert code(Level.UNKNOWN, Level.WARNING) == 1
    assert code(Level.ERROR, Level.WARNING, Level.OK) == 6


def retention_of(**topics: EnabledTopic) -> Finding:
    return judged(replace(facts_of(), topics=topics))["wal-retention"]


def test_what_the_wal_keeps_is_told() -> None:
    assert retention_of(t=kept_for_an_hour()).found == (
        "objects of t are kept for 1 h, with a replica out of sync for 24 h: recover gives back no more than that"
    )


def test_a_topic_that_keeps_all_of_it_keeps_what_others_have_in_the_same_objects() -> None:
    found = retention_of(t=kept_for_an_hour(), all=kept_all(WEEK_MS)).found
    assert found.endswith("; all: all of local retention, and what shares objects with them stays as long")


def test_where_all_comes_back_that_is_well() -> None:
    assert retention_of(t=kept_all(WEEK_MS)).level is Level.OK


def test_what_the_archive_has_comes_back_however_short_the_wal_keeps_it() -> None:
    assert retention_of(t=kept_for_an_hour(is_archived=True)).level is Level.OK


def test_the_metadata_topic_must_remember_objects_for_as_long_as_a_lagging_replica_is_waited_for() -> None:
    short = replace(facts_of(), cluster=topic(retention_ms=str(23 * HOUR_MS)), topics={"t": kept_for_an_hour()})
    assert judged(short)["metadata-topic-retention"].level is Level.ERROR
    enough = replace(short, cluster=topic(retention_ms=str(25 * HOUR_MS)))
    assert judged(enough)["metadata-topic-retention"].level is Level.OK


def test_an_agent_in_shadow_is_told_as_such_and_needs_neither_listeners_nor_peers_nor_a_store() -> None:
    facts = facts_of(
        remote_wal_agent_mode="shadow",
        remote_wal_agent_bypass="",
        advertised_listeners="CLIENT://kafka-1:9092,WAL://10.0.0.1:9093",
        broker_rack="az1",
        replica_selector_class=RACK_AWARE,
    )
    facts = replace(facts, store=DEAD, peers={2: "refused"})
    found = {name: one for name, one in judged(facts).items() if one.level is not Level.OK}
    assert set(found) == {"system-enable"}
    assert found["system-enable"].level is Level.INFORMATION
    assert "in shadow" in found["system-enable"].found

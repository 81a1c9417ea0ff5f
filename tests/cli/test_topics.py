"""`remote-wal topics enable`: what is written for a topic."""

import json
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import main as main_module
from cli.fleet import topics as topics_module
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import ClusterListing, DescribedBroker, DescribedPartition, DescribedTopic
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import OWN, AgentRegistration, LinkPolicy, TopicSettings


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], TopicSettings(enable=True)),
        (["--archive"], TopicSettings(enable=True, archive=True)),
        (["--archive", "--link-policy", "always"], TopicSettings(True, LinkPolicy.ALWAYS, None, True)),
        (["--no-archive"], TopicSettings(enable=True, archive=False)),
        (["--wal-retention-ms", "-2"], TopicSettings(enable=True, wal_retention_ms=-2)),
    ],
)
def test_a_topic_is_enabled_with_or_without_an_archive(
    monkeypatch: pytest.MonkeyPatch, options: list[str], expected: TopicSettings
) -> None:
    written: list[object] = []
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: SettingsTable())
    monkeypatch.setattr(topics_module, "_check_retention", lambda *_args, **_kinds: None)
    monkeypatch.setattr(topics_module, "_set", lambda wanted, *_, **__: written.append(wanted))
    result = CliRunner().invoke(
        main_module.build_app(), ["topics", "enable", "orders", "--bootstrap-server", "nowhere:1", *options]
    )
    assert result.exit_code == 0, result.output
    assert written == [{"orders": expected}]


def test_the_answer_names_every_setting_that_is_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SimpleNamespace(put=lambda *_: None, close=lambda: None)
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: SettingsTable())
    monkeypatch.setattr(settings_topic, "SettingsWriter", lambda _client: writer)
    monkeypatch.setattr(topics_module, "_check_retention", lambda *_args, **_kinds: None)
    monkeypatch.setattr(topics_module, "_existing", lambda wanted, _client: dict.fromkeys(wanted))
    words = ["topics", "enable", "orders", "--wal-retention-ms", "-2", "--bootstrap-server", "nowhere:1"]
    told = CliRunner().invoke(main_module.build_app(), words).stdout
    assert told.startswith("orders: remote.wal.storage.enable=true, remote.wal.retention.ms=-2\ncost: ")


HOLDING = AgentRegistration(1, 1, "", "1", 0, gateway=("clients", "durable"))
ALL_HELD = AgentRegistration(1, 1, "", "1", 0, gateway=("clients", "durable", "pipelined"))
BOTH_HELD = [ALL_HELD, replace(ALL_HELD, broker_id=2)]


@pytest.mark.parametrize(
    ("agents", "waits"),
    [
        (BOTH_HELD, False),
        ([*BOTH_HELD, replace(ALL_HELD, broker_id=3, gateway=(), is_gone=True)], False),
        ([ALL_HELD, replace(ALL_HELD, broker_id=2, gateway=("clients", "durable"))], True),
        ([*BOTH_HELD, replace(ALL_HELD, broker_id=3, gateway=())], True),
        ([*BOTH_HELD, replace(ALL_HELD, broker_id=3, is_gone=True), replace(HOLDING, broker_id=4)], True),
        ([ALL_HELD], True),
        ([], True),
    ],
)
def test_that_producers_wait_is_told_unless_agents_hold_the_answers_beside_all_brokers(
    monkeypatch: pytest.MonkeyPatch, agents: list[AgentRegistration], waits: bool
) -> None:
    writer = SimpleNamespace(put=lambda *_: None, close=lambda: None)
    known = SettingsTable(agents={agent.broker_id: agent for agent in agents})
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: known)
    monkeypatch.setattr(settings_topic, "SettingsWriter", lambda _client: writer)
    monkeypatch.setattr(topics_module, "_existing", lambda wanted, _client: dict.fromkeys(wanted))
    monkeypatch.setattr(KafkaCluster, "brokers", lambda _self: [DescribedBroker(1, None), DescribedBroker(2, None)])
    words = ["topics", "enable", "orders", "--link-policy", "always", "--bootstrap-server", "nowhere:1"]
    told = CliRunner().invoke(main_module.build_app(), words).stdout
    assert ("wait longer" in told, "waits for all" in told, "No producer waits" in told) == (waits, waits, not waits)


KEPT = TopicSettings(True, LinkPolicy.COST, 40, archive=True, wal_retention_ms=-2)


@pytest.mark.parametrize(
    ("options", "known", "expected"),
    [
        (["--link-policy", "always"], SettingsTable({"orders": KEPT}),
         replace(KEPT, link_policy=LinkPolicy.ALWAYS)),
        (["--no-archive"], SettingsTable({"orders": KEPT}), replace(KEPT, archive=False)),
        ([], SettingsTable({"orders": TopicSettings(origin=OWN)}), TopicSettings(True)),
        ([], SettingsTable({"orders": replace(KEPT, origin="pattern o.*")}), KEPT),
        ([], SettingsTable(patterns={"o.*": replace(KEPT, durable=True)}), replace(KEPT, durable=True)),
        ([], SettingsTable(orphaned={"orders": KEPT}), TopicSettings(True)),
        (["--pattern"], SettingsTable({"orders": KEPT}), TopicSettings(True)),
        (["--pattern", "--no-archive"], SettingsTable(patterns={"orders": KEPT}),
         replace(KEPT, archive=False)),
    ],
)  # fmt: skip
def test_to_enable_again_keeps_what_is_not_named(
    monkeypatch: pytest.MonkeyPatch, options: list[str], known: SettingsTable, expected: TopicSettings
) -> None:
    written: list[object] = []
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: known)
    monkeypatch.setattr(topics_module, "_check_retention", lambda *_args, **_kinds: None)
    for name in ("_set", "_set_patterns"):
        monkeypatch.setattr(topics_module, name, lambda wanted, *_, **__: written.append(wanted))
    words = ["topics", "enable", "orders", "--bootstrap-server", "nowhere:1", *options]
    result = CliRunner().invoke(main_module.build_app(), words)
    assert (result.exit_code, written) == (0, [{"orders": expected}]), result.output


ARCHIVED = TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS, archive=True)
BY_PATTERN = TopicSettings(enable=True, durable=True, pack=False)
KNOWN = SettingsTable({"orders": ARCHIVED}, patterns={"b.*": BY_PATTERN}, orphaned={"deleted": ARCHIVED})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("enable orders-.* --pattern --link-policy always", {"orders-.*": TopicSettings(True, LinkPolicy.ALWAYS)}),
        ("disable orders-.* --pattern", {"orders-.*": None}),
        ("disable orders", {"orders": TopicSettings(origin=OWN)}),
        ("disable by-pattern", {"by-pattern": TopicSettings(origin=OWN, pack=False)}),
        ("reset orders", {"orders": None}),
    ],
)
def test_patterns_and_topics_are_told_apart_and_off_is_a_setting(
    monkeypatch: pytest.MonkeyPatch, command: str, expected: dict[str, TopicSettings | None]
) -> None:
    written: dict[str, object] = {}
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: KNOWN)
    monkeypatch.setattr(topics_module, "_set", lambda wanted, *_, **__: written.update(topics=wanted))
    monkeypatch.setattr(topics_module, "_set_patterns", lambda wanted, *_, **__: written.update(patterns=wanted))
    words = ["topics", *command.split(), "--bootstrap-server", "nowhere:1"]
    result = CliRunner().invoke(main_module.build_app(), words)
    assert result.exit_code == 0, result.output
    assert written == {"patterns" if "--pattern" in command else "topics": expected}


OF_ORDERS = DescribedTopic("orders", 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["orders", "--wal-retention-ms", "60000"], [{"orders": replace(ARCHIVED, wal_retention_ms=60_000)}]),
        (["orders", "--link-policy", "cost"], [{"orders": replace(ARCHIVED, link_policy=LinkPolicy.COST)}]),
        (["orders", "--link-policy", "never"], []),
        (["orders", "--durable"], [{"orders": replace(ARCHIVED, durable=True)}]),
        (["orders"], []),
        (["deleted", "--link-policy", "always"], []),
        (
            ["by-pattern", "--link-policy", "always"],
            [{"by-pattern": replace(BY_PATTERN, link_policy=LinkPolicy.ALWAYS)}],
        ),
        (["by-pattern", "--wal-retention-ms", "60000"], []),
        (["orders", "--durable", "--wal-retention-ms", "60000"], []),
        (
            ["orders", "--durable", "--wal-retention-ms", "-1"],
            [{"orders": replace(ARCHIVED, durable=True, wal_retention_ms=-1)}],
        ),
        (["orders", "unknown", "--wal-retention-ms", "60000"], []),
        (["orders", "--wal-retention-ms", "-3"], []),
    ],
)
def test_a_setting_is_changed_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: list[object]
) -> None:
    written: list[object] = []
    monkeypatch.setattr(topics_module, "_set", lambda wanted, *_, **__: written.append(wanted))
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: KNOWN)
    monkeypatch.setattr(topics_module, "_check_durable", lambda _names, _agents, _client: None)
    result = CliRunner().invoke(
        main_module.build_app(), ["topics", "set", *arguments, "--bootstrap-server", "nowhere:1"]
    )
    assert (result.exit_code, written) == (0 if expected else 2, expected), result.output


def test_who_sets_what_a_topic_without_settings_keeps_is_told_to_enable_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: KNOWN)
    words = ["topics", "set", "other", "--wal-retention-ms", "-2", "--bootstrap-server", "nowhere:1"]
    result = CliRunner().invoke(main_module.build_app(), words)
    assert (result.exit_code, "remote-wal topics enable other" in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["orders", "--off"], {"orders": replace(ARCHIVED, pack=False)}),
        (["new", "--off"], {"new": TopicSettings(pack=False)}),
        (["orders", "--on"], {"orders": ARCHIVED}),
        (["by-pattern", "--on"], {"by-pattern": replace(BY_PATTERN, pack=True)}),
        (["b.*", "--on", "--pattern"], {"b.*": replace(BY_PATTERN, pack=True)}),
    ],
)
def test_a_topic_is_left_unpacked_whether_or_not_it_is_enabled(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: dict[str, TopicSettings]
) -> None:
    written: list[object] = []
    monkeypatch.setattr(topics_module, "_set", lambda wanted, *_, **__: written.append(wanted))
    monkeypatch.setattr(topics_module, "_set_patterns", lambda wanted, *_, **__: written.append(wanted))
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: KNOWN)
    command = ["topics", "pack", *arguments, "--bootstrap-server", "nowhere:1"]
    result = CliRunner().invoke(main_module.build_app(), command)
    assert (result.exit_code, written) == (0, [expected]), result.output


@pytest.mark.parametrize(
    ("policy", "kept_ms", "is_taken"), [("compact", -2, False), ("compact", -1, True), ("delete", -2, True)]
)
@pytest.mark.parametrize("command", ["enable orders", "set orders", "enable ord.* --pattern"])
def test_objects_that_would_be_kept_without_bound_are_refused(
    monkeypatch: pytest.MonkeyPatch, command: str, policy: str, kept_ms: int, is_taken: bool
) -> None:
    written: list[object] = []
    for name in ("_set", "_set_patterns"):
        monkeypatch.setattr(topics_module, name, lambda wanted, *_, **__: written.append(wanted))
    monkeypatch.setattr(KafkaCluster, "listing", lambda _self: ClusterListing("c", {}, {"orders": OF_ORDERS}))
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: KNOWN)
    known = SettingsTable({"orders": ARCHIVED})
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: known)
    config = {"cleanup.policy": policy}
    monkeypatch.setattr(
        KafkaCluster,
        "topic_configurations",
        lambda _self, names: SimpleNamespace(get_all=lambda _missing: dict.fromkeys(names, config)),
    )
    arguments = ["topics", *command.split(), "--wal-retention-ms", str(kept_ms), "--bootstrap-server", "nowhere:1"]
    result = CliRunner().invoke(main_module.build_app(), arguments)
    assert bool(written) == is_taken
    assert is_taken or "grow without bound" in str(result.exception)


@pytest.mark.parametrize("command", ["enable", "set"])
def test_help_tells_for_whom_links_for_every_byte_are_slow(command: str) -> None:
    told = CliRunner().invoke(main_module.build_app(), ["topics", command, "--help"]).output
    words = " ".join(told.split())
    assert "always: links for every byte, so that a producer that sends many small requests with acks=all" in words
    assert "(librdkafka) waits a round of the store for each of them" in words


def test_topics_patterns_and_what_deleted_topics_left_are_listed_for_people_and_for_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pattern = TopicSettings(True, LinkPolicy.COST, 40, origin="pattern logs-.*")
    known = SettingsTable({"orders": ARCHIVED}, {"logs-.*": pattern}, orphaned={"gone": ARCHIVED})
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: known)
    words = ["topics", "list", "--bootstrap-server", "nowhere:1"]
    told = json.loads(CliRunner().invoke(main_module.build_app(), [*words, "--json"]).stdout)
    shared = {
        "remote.wal.storage.enable": True,
        "remote.wal.retention.ms": None,
        "remote.wal.durable.enable": False,
        "remote.wal.pack.enable": True,
    }
    assert told == {
        "topics": [
            {
                **shared,
                "name": "orders",
                "remote.wal.link.policy": "always",
                "remote.wal.link.latency.bound.ms": None,
                "remote.wal.archive.enable": True,
                "from": OWN,
            }
        ],
        "patterns": [
            {
                **shared,
                "name": "logs-.*",
                "remote.wal.link.policy": "cost",
                "remote.wal.link.latency.bound.ms": 40,
                "remote.wal.archive.enable": False,
                "from": "pattern logs-.*",
            }
        ],
        "exit_code": 0,
        "orphaned": ["gone"],
    }
    for columns in (80, 150):  # a narrow terminal leaves columns out, and cuts none
        shown = CliRunner().invoke(main_module.build_app(), words, env={"COLUMNS": str(columns)}).stdout
        assert all(word in shown for word in ("orders", "pattern logs-.*", "remote-wal topics reset gone"))
        assert ("40 ms" in shown) is (columns == 150)


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        ([HOLDING, replace(HOLDING, broker_id=2)], None),
        ([HOLDING], "no agent has registered for broker 2"),
        ([HOLDING, replace(HOLDING, broker_id=2, gateway=())], "answers are not held beside broker 2"),
        ([HOLDING, replace(HOLDING, broker_id=2), replace(HOLDING, broker_id=3, gateway=(), is_gone=True)], None),
        ([HOLDING, replace(HOLDING, broker_id=2), replace(HOLDING, broker_id=3, gateway=())], "beside broker 3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [["enable", "orders"], ["set", "orders"]])
def test_no_topic_is_called_durable_while_an_agent_holds_no_answers(
    monkeypatch: pytest.MonkeyPatch, command: list[str], agents: list[AgentRegistration], told: str | None
) -> None:
    written: list[object] = []
    known, enabled = {agent.broker_id: agent for agent in agents}, {"orders": TopicSettings(True)}
    monkeypatch.setattr(topics_module, "_set", lambda wanted, *_, **__: written.append(wanted))
    monkeypatch.setattr(settings_topic, "read_settings", lambda _client: SettingsTable(enabled, agents=known))
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: SettingsTable(enabled, agents=known))
    brokers = [DescribedBroker(1, None), DescribedBroker(2, None)]
    monkeypatch.setattr(KafkaCluster, "brokers", lambda _self: brokers)
    monkeypatch.setattr(KafkaCluster, "listing", lambda _self: ClusterListing("id", {}, {}))
    words = ["topics", *command, "--durable", "--bootstrap-server", "nowhere:1"]
    result = CliRunner().invoke(main_module.build_app(), words)
    assert result.stdout == "", "programs read it, and `_set` is played"
    for consequence in ("use a regional store", "change of leaders may lose"):
        assert (consequence in result.stderr) is (told is None)
    assert bool(written) is (told is None), result.output
    assert (result.exit_code == 0) is (told is None)
    assert told is None or told in f"{result.output}{result.exception}"


class WithTransaction(KafkaCluster):
    """orders-1 has an open transaction."""

    def brokers(self) -> list[DescribedBroker]:
        return [DescribedBroker(1, None)]

    def listing(self, topic: str | None = None) -> ClusterListing:
        partitions = tuple(DescribedPartition(one, 1, (1,), (1,)) for one in range(2))
        names = ("orders", "payments", "__consumer_offsets")
        return ClusterListing("id", {}, {name: DescribedTopic(name, 0, partitions=partitions) for name in names})

    def offsets(self, partitions: Iterable[tuple[str, int]], at: int, *, is_stable: bool = False) -> Any:
        ends = {where: 7 if is_stable and where == ("orders", 1) else 10 for where in partitions}
        return SimpleNamespace(get_all=lambda: ends)


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        (["enable", "orders", "--durable"], True),
        (["enable", "payments", "orders", "--durable"], True),
        (["set", "orders", "--durable"], True),
        (["enable", "ord.*", "--durable", "--pattern"], True),
        (["enable", "pay.*", "--durable", "--pattern"], False),
        (["enable", "payments", "--durable"], False),
        (["enable", "orders", "--no-durable"], False),
        (["enable", "kept", "--durable"], False),
    ],
)
def test_no_topic_becomes_durable_while_a_transaction_is_open_in_it(
    monkeypatch: pytest.MonkeyPatch, words: list[str], is_refused: bool
) -> None:
    written: list[object] = []
    enabled = {"orders": TopicSettings(True), "kept": TopicSettings(True, durable=True)}
    for writer in ("_set", "_set_patterns"):
        monkeypatch.setattr(topics_module, writer, lambda wanted, *_, **__: written.append(wanted))
    known = SettingsTable(enabled, agents={1: HOLDING})
    monkeypatch.setattr(settings_topic, "read_settings", lambda _client: known)
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: known)
    monkeypatch.setattr("kafka_cluster.cluster.KafkaCluster", WithTransaction)
    result = CliRunner().invoke(main_module.build_app(), ["topics", *words, "--bootstrap-server", "nowhere:1"])
    assert bool(written) is not is_refused, result.output
    told = f"{result.output}{result.exception}"
    assert ("a transaction is open in orders-1, and durable topics take none" in told) is is_refused

"""recover and verify as commands, with a store in a directory and the controllers' log in the place of a cluster."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.main import build_app, main
from cli.recovery import recovery_sources
from cli.recovery.recovery_sources import BrokersCluster, open_stores
from cli.recovery.recovery_table import LogRow
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import TOPIC_AUTHORIZATION_FAILED, ClusterListing, DescribedTopic
from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.broker_files.meta_properties import read_meta_properties
from kafka_log.topic_partition import TopicId, topic_id_to_text
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.errors import MetadataTopicError, TopicAbsentError
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_table import AGENTS, TOPICS, SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.topic.topic import SETTINGS_TOPIC
from plugin.remote_wal_storage_manager import StorageContext
from plugin.s3 import S3WalStorageManager
from plugin.store_loop import ask
from recovery import cluster_view
from recovery.logs import log_directory_target
from recovery.logs.restore import GoneHead
from recovery.metadata.inventory import Inventory, from_objects
from tests.faulty_store import DEFAULT_BUCKET, Fault, FaultyFront, FaultyServer
from tests.kafka_log.batches import batch
from tests.kafka_log.kraft_records import DIRECTORY, message, metadata_batch, tagged, text
from tests.recovery.ruins import CLUSTER, ORDERS, PAYMENTS, Ruins
from tests.recovery.stored_objects import records

LONGER_THAN_AN_AGENT_WAITS_S = 1.6
NOTHING_STORED = "nothing stored; other replicas"


@pytest.fixture
def ruins(tmp_path: Path) -> Ruins:
    ruins = Ruins(tmp_path)
    ruins.write()
    return ruins


def _told(result: Result, exit_code: int = 0) -> dict[str, Any]:
    assert result.exit_code == exit_code, (result.output, result.exception)
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def test_an_erased_broker_is_filled_before_it_starts_and_one_with_logs_is_left_alone(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))
    ruins.log_dir.mkdir()
    (ruins.log_dir / "lost+found").mkdir()
    told = _told(ruins.run("recover", "--if-empty", "--json"))
    assert [log["status"] for log in told["logs"]] == ["whole", "whole"]
    # From now on it does not even look for the cluster or the store.
    shutil.rmtree(ruins.directory / "controller")
    shutil.rmtree(ruins.store)
    (ruins.directory / "controller").mkdir()
    again = ruins.run("recover", "--if-empty")
    assert again.exit_code == 0, again.output
    assert "nothing is to be restored" in again.stderr


def test_an_unfinished_recovery_counts_as_erased(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))
    ruins.log_dir.mkdir()
    _told(ruins.run("recover", "--json"))
    (ruins.log_dir / ".remote-wal-recovery").mkdir()
    told = _told(ruins.run("recover", "--if-empty", "--json"))
    assert [log["status"] for log in told["logs"]] == ["whole", "whole"]
    (ruins.log_dir / ".remote-wal-recovery").mkdir()
    (ruins.log_dir / "recovery-point-offset-checkpoint").touch()
    assert ruins.run("recover", "--if-empty").exit_code == 4, "a broker ran on it: it is refused as it is not empty"


def test_a_directory_has_one_id(ruins: Ruins) -> None:
    refused = ruins.run("recover", "--directory-id", "/a=1", "--directory-id", "/a=2")
    assert (refused.exit_code, "is given more than once" in refused.stderr) == (2, True), refused.output


def test_without_its_disk_an_empty_log_directory_is_refused_where_one_is_required(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruins.log_dir.mkdir()
    monkeypatch.setattr(log_directory_target, "is_mount", lambda _path: False)
    refused = ruins.run("recover", "--if-empty", "--require-mount")
    assert refused.exit_code == 4
    assert "mounted below /" in refused.stderr
    assert list(ruins.log_dir.iterdir()) == []


def test_a_new_broker_without_replicas_has_nothing_to_be_restored(ruins: Ruins) -> None:
    ruins.write(node_id=9)
    ruins.log_dir.mkdir()
    assert ruins.run("recover").exit_code == 1
    step = ruins.run("recover", "--if-empty")
    assert step.exit_code == 0, step.output
    assert "no replica on broker 9" in step.stderr
    assert list(ruins.log_dir.iterdir()) == []


def test_if_empty_finds_the_log_directories_itself(ruins: Ruins) -> None:
    assert ruins.run("recover", "--if-empty", "--log-dir", str(ruins.log_dir)).exit_code == 2


def test_a_broker_is_rebuilt_from_objects_and_the_controllers_log(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))
    ruins.upload(2, records(ORDERS, 1, 5, 9))

    told = _told(ruins.run("recover", "--json"))

    assert [(log["log"], log["status"], log["end_offset"]) for log in told["logs"]] == [
        ("orders-0", "whole", 10),
        ("payments-2", "whole", 3),
    ]
    assert told["recovery_point_ms"] == 1_700_000_000_002
    assert (ruins.log_dir / "orders-0" / f"{0:020}.log").read_bytes() == records(ORDERS, 0, 0, 4)[3] + records(
        ORDERS, 1, 5, 9
    )[3]
    assert read_leader_epochs(ruins.log_dir / "orders-0").entries == ((0, 0), (1, 5))
    identity = read_meta_properties(ruins.log_dir)
    assert (identity.cluster_id, identity.node_id) == (CLUSTER, 1)
    assert identity.directory_id == topic_id_to_text(TopicId(DIRECTORY)), "as the controllers know it"


@pytest.mark.parametrize(
    "payments",
    [{"in_sync": (1,)}, {"in_sync": (), "eligible": (1,)}, {"in_sync": (), "last_known": (1,)}, {"in_sync": ()}],
    ids=["in sync", "eligible", "last known", "nobody known"],
)
def test_where_the_broker_is_the_last_replica_in_sync_nothing_is_restored_unasked(
    ruins: Ruins, payments: dict[str, tuple[int, ...]]
) -> None:
    ruins.write(payments=payments)
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))

    [refusal] = _told(ruins.run("recover", "--dry-run", "--json"))["would_be_refused"]
    refused = ruins.run("recover", "--json")
    assert refused.exit_code == 4
    assert refusal in refused.stderr
    assert "payments-2 to offset 3" in refusal
    assert not ruins.log_dir.exists()

    told = _told(ruins.run("recover", "--json", "--lead-with-what-is-restored"))
    assert (told["only_in_sync_here"], told["complete"]) == (["payments-2"], True)


def test_a_log_that_is_not_selected_would_be_led_from_offset_0_and_is_refused_too(ruins: Ruins) -> None:
    """The broker starts with an empty log in the place of each one that is not restored."""
    ruins.write(payments={"in_sync": (1,)})
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))

    dry = _told(ruins.run("recover", "--dry-run", "--json", "--topic", "orders"))
    assert dry["only_in_sync_here"] == ["payments-2"]
    assert "payments-2 to offset 0" in dry["would_be_refused"][0]
    assert ruins.run("recover", "--json", "--topic", "orders").exit_code == 4
    assert not ruins.log_dir.exists()

    told = _told(ruins.run("recover", "--json", "--topic", "orders", "--lead-with-what-is-restored"))
    assert [log["log"] for log in told["logs"]] == ["orders-0"]


def _set(ruins: Ruins, *settings: tuple[int, str, str, str]) -> None:
    """Let the controllers' log have settings: a kind of resource, its name, and the key and value."""
    configs = (message(4, 0, bytes([kind]) + b"".join(map(text, its)) + tagged()) for kind, *its in settings)
    log = ruins.directory / "controller" / "__cluster_metadata-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes() + metadata_batch(4, *configs))


def _with_a_tier(ruins: Ruins) -> None:
    _set(ruins, (2, "orders", "remote.storage.enable", "true"))
    ruins.upload(1, records(ORDERS, 3, 5, 9))


def test_what_was_set_for_brokers_at_runtime_counts_before_server_properties(ruins: Ruins) -> None:
    ruins.write(more="log.retention.ms=1\n")
    for first in (0, 8):
        ruins.upload(first, records(ORDERS, 0, first, first + 4))
    [log] = _told(ruins.run("recover", "--dry-run", "--json", "--topic", "orders"))["logs"]
    assert (log["start_offset"], log["gap"]) == (8, None), "what was before has expired"
    _set(ruins, (4, "", "log.retention.ms", "5"), (4, "1", "log.retention.ms", "-1"), (4, "2", "log.retention.ms", "5"))
    [log] = _told(ruins.run("recover", "--dry-run", "--json", "--topic", "orders"), exit_code=1)["logs"]
    assert (log["start_offset"], log["gap"] is None) == (0, False)


def test_after_the_loss_of_all_brokers_a_tiered_log_comes_back_and_its_tier_is_said_to_be_unknown(ruins: Ruins) -> None:
    _with_a_tier(ruins)

    assert _told(ruins.run("recover", "--dry-run", "--json"), exit_code=1)["would_be_refused"] == []
    told = _told(ruins.run("recover", "--json"), exit_code=1)
    assert [(log["start_offset"], log["end_offset"], log["lacks_tier_epochs"]) for log in told["logs"]] == [
        (5, 10, True),
        (0, 0, False),
    ]
    assert (ruins.log_dir / "orders-0").is_dir()
    shutil.rmtree(ruins.log_dir)
    table = ruins.run("recover")
    assert (table.exit_code, "Kafka deletes its older records from the tier" in table.stdout) == (1, True)


def test_settings_that_cannot_be_read_are_named_because_topics_may_be_hidden(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))
    cluster_id, view = cluster_view.read_kraft_view(ruins.directory / "controller", None)
    monkeypatch.setattr(cluster_view, "ask_cluster", lambda _client: (cluster_id, view))
    reason: type[MetadataTopicError] = MetadataTopicError

    def unread(_client: object, memory: object) -> SettingsTable:
        raise reason("read settings", "settings", "denied")

    monkeypatch.setattr(settings_topic, "read_settings", unread)

    def run(command: str, *options: str) -> Result:
        config = str(ruins.directory / "server.properties")
        asked = [command, "--broker-config", config, "--bootstrap-server", "nowhere:1", "--from-objects", *options]
        return CliRunner().invoke(build_app(), asked)

    verified = _told(run("verify", "--json"), exit_code=1)
    assert [(one["kind"], one["subject"]) for one in verified["findings"]] == [("unknown_topic", SETTINGS_TOPIC)]
    ruins.log_dir.mkdir()
    assert "nobody looked for topics" in run("recover", "--dry-run").stdout
    _told(run("recover", "--dry-run", "--json", "--topic", "orders"))
    told = _told(run("recover", "--json"), exit_code=1)
    assert [log["status"] for log in told["logs"]] == ["whole"] * 2
    ruins.write(node_id=9)
    shutil.rmtree(ruins.log_dir)
    ruins.log_dir.mkdir()
    assert run("recover", "--if-empty").exit_code != 0, "it may have a replica of a hidden topic"
    reason = TopicAbsentError
    assert run("recover", "--if-empty").exit_code == 0, "no agent has ever started"


def test_a_topic_that_the_cluster_hides_is_named_and_the_others_are_restored(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))
    cluster_id, view = cluster_view.read_kraft_view(ruins.directory / "controller", None)
    hiding = replace(view, left_out={"secret": "denied"})
    monkeypatch.setattr(cluster_view, "ask_cluster", lambda _client: (cluster_id, hiding))
    monkeypatch.setattr(cluster_view, "with_hidden", lambda view, *_: view)
    monkeypatch.setattr(settings_topic, "read_settings", lambda _client, memory: SettingsTable())

    def run(command: str, *options: str) -> Result:
        config = str(ruins.directory / "server.properties")
        asked = [command, "--broker-config", config, "--bootstrap-server", "nowhere:1", "--from-objects", *options]
        return CliRunner().invoke(build_app(), asked)

    verified = _told(run("verify", "--json"), exit_code=1)
    assert [(one["kind"], one["subject"]) for one in verified["findings"]] == [("unknown_topic", "secret")]
    ruins.log_dir.mkdir()
    assert "secret: nothing of it is restored: denied" in run("recover", "--dry-run").stdout
    told = _told(run("recover", "--json"), exit_code=1)
    assert ([log["status"] for log in told["logs"]], told["left_out_topics"]) == (["whole"] * 2, {"secret": "denied"})
    assert _told(run("recover", "--dry-run", "--json", "--topic", "orders"))["left_out_topics"] == {}
    ruins.write(node_id=9)
    shutil.rmtree(ruins.log_dir)
    ruins.log_dir.mkdir()
    assert run("recover", "--if-empty").exit_code != 0, "it may have a replica of that topic"


def test_commands_that_need_stores_alone_ask_nothing_of_topics(ruins: Ruins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_sources, "client_of", lambda *_: KafkaClientConfig("nowhere:1"))
    monkeypatch.setattr(
        KafkaCluster, "listing", lambda _: ClusterListing("cluster-1", {}, {"orders": DescribedTopic("orders", 0)})
    )

    def refuse(*_: object) -> None:
        raise KafkaClusterError("describe", "orders", "denied", code=TOPIC_AUTHORIZATION_FAILED)

    for question in ("topics", "offsets", "topic_configurations"):
        monkeypatch.setattr(KafkaCluster, question, refuse)
    with open_stores(BrokersCluster(ruins.directory / "server.properties")) as stores:
        assert stores.cluster_id == "cluster-1"


def test_a_log_is_refused_where_a_living_cluster_cannot_say_which_leader_epochs_are_on_its_tier(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka would delete from the tier what is of epochs older than the restored log's first one."""
    _with_a_tier(ruins)
    living = cluster_view.read_kraft_view(ruins.directory / "controller", None)
    monkeypatch.setattr(cluster_view, "ask_cluster", lambda _client: living)
    monkeypatch.setattr(cluster_view, "with_hidden", lambda view, *_: view)
    monkeypatch.setattr(settings_topic, "read_settings", lambda _client, memory: SettingsTable())
    monkeypatch.setattr(cluster_view, "read_tier", lambda *_arguments: None)
    config = str(ruins.directory / "server.properties")

    def recover(*options: str) -> Result:
        asked = ["recover", "--broker-config", config, "--bootstrap-server", "nowhere:1", "--from-objects", "--json"]
        return CliRunner().invoke(build_app(), [*asked, *options])

    [refusal] = _told(recover("--dry-run"), exit_code=1)["would_be_refused"]
    refused = recover("--with-less-than-others")
    assert refused.exit_code == 4
    assert refusal in refused.stderr
    assert "orders-0 are on KIP-405's tier" in refusal
    assert not ruins.log_dir.exists()

    [orders, _] = _told(recover("--without-tier-epochs"), exit_code=1)["logs"]
    assert (orders["start_offset"], orders["end_offset"], orders["lacks_tier_epochs"]) == (5, 10, True)


@pytest.mark.parametrize(
    "payments",
    [{"in_sync": (2,), "last_known": (1,)}, {"in_sync": (), "eligible": (2,)}, {"in_sync": (1,), "eligible": (2,)}],
)
def test_where_another_replica_may_be_elected_the_broker_is_restored_beside_it(
    ruins: Ruins, payments: dict[str, tuple[int, ...]]
) -> None:
    ruins.write(payments=payments)
    ruins.upload(1, records(PAYMENTS, 2, 0, 2))
    assert _told(ruins.run("recover", "--json", "--topic", "payments"))["only_in_sync_here"] == []


@pytest.mark.parametrize(
    ("settings_at", "behind_ms", "start_offset", "exit_code"),
    [
        pytest.param("controller", 4_000_000, 10, 0, id="known, and older than the WAL keeps records"),
        pytest.param("log", 4_000_000, 10, 0, id="known by what is left of the broker's own log directory"),
        pytest.param("controller", 3_000_000, 0, 1, id="known, and lost before its time, however long ago that is"),
        pytest.param(None, 4_000_000, 0, 1, id="not known"),
    ],
)
def test_leftovers_are_known_by_the_settings_topic_beside_the_controllers_log(
    ruins: Ruins, settings_at: str | None, behind_ms: int, start_offset: int, exit_code: int
) -> None:
    """The WAL keeps records for an hour by the topic's own setting, which is the newer of two."""
    if settings_at is not None:
        log = ruins.directory / settings_at / "__remote_wal_topic_settings-0"
        log.mkdir(parents=True)
        older, newer = (TOPICS.encode(TopicSettings(True, wal_retention_ms=ms)) for ms in (-1, 3_600_000))
        agent = AGENTS.encode(AgentRegistration(1, 5, "", "1", 0, wal_retention_ms=60_000))
        (log / f"{0:020}.log").write_bytes(
            batch(0, payload=older, key=TOPICS.key("orders")) + batch(1, payload=agent, key=AGENTS.key(1))
        )
        (log / f"{2:020}.log").write_bytes(batch(2, payload=newer, key=TOPICS.key("orders")))
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    ruins.upload(1 + behind_ms, records(ORDERS, 0, 10, 14))
    [log_told] = _told(ruins.run("recover", "--dry-run", "--json", "--topic", "orders"), exit_code)["logs"]
    assert log_told["start_offset"] == start_offset


def test_a_dry_run_up_to_a_time_tells_where_the_logs_would_end_at_most(ruins: Ruins) -> None:
    for sequence, first in enumerate((0, 5, 10, 15)):
        later = records(ORDERS, 0, first, first + 4, timestamp_ms=1000 * sequence)
        ruins.upload(sequence, later)
    before = sorted(ruins.directory.rglob("*"))

    told = _told(ruins.run("recover", "--dry-run", "--json", "--to-timestamp", "1500"))

    ends = [(log["log"], log["end_offset"], log["status"], log["is_at_most"]) for log in told["logs"]]
    assert ends == [("orders-0", 10, "to the timestamp, at most", True), ("payments-2", 0, NOTHING_STORED, False)]
    assert sorted(ruins.directory.rglob("*")) == before
    restored = _told(ruins.run("recover", "--json", "--to-timestamp", "1500"))
    assert not any(log["is_at_most"] for log in restored["logs"])
    for key in ("end_offset", "size_bytes", "recovery_point_ms", "leader_epochs"):
        assert [log[key] for log in restored["logs"]] == [log[key] for log in told["logs"]]


def test_a_corrupt_object_without_another_copy_ends_the_log_and_is_an_exit_code(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    damaged = ruins.upload(2, records(ORDERS, 0, 5, 9))
    ruins.upload(3, records(ORDERS, 0, 10, 14))
    raw = bytearray(damaged.read_bytes())
    raw[150] ^= 1
    damaged.write_bytes(raw)

    told = _told(ruins.run("recover", "--json", "--topic", "orders"), exit_code=1)

    [log] = told["logs"]
    assert (log["end_offset"], log["gap"]) == (5, {"from_offset": 5, "to_offset": 10})
    assert len(log["failed_copies"]) == 1
    assert (ruins.log_dir / "meta.properties").exists(), "what there is can be served"


def test_a_log_that_lost_records_which_objects_hold_is_not_called_whole(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruins.upload(0, records(ORDERS, 0, 0, 4))

    def inventory(*arguments: Any) -> Inventory:
        found = from_objects(*arguments)
        found.held[ORDERS] = 1
        return found

    monkeypatch.setattr("recovery.metadata.inventory.from_objects", inventory)
    told = _told(ruins.run("recover", "--dry-run", "--json", "--topic", "orders"), exit_code=1)
    assert (told["held"], told["complete"]) == (["orders-0"], False)
    shown = ruins.run("recover", "--dry-run", "--topic", "orders").stdout
    assert "remote-wal held. They are left out, also if an unclean election has brought them back" in shown


def test_a_log_goes_on_behind_a_declared_gap_with_an_exit_code_of_its_own(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence, first in enumerate((0, 8, 15)):
        ruins.upload(sequence, records(ORDERS, 0, first, first + 4))
    assert _told(ruins.run("recover", "--dry-run", "--json", "--topic", "orders"), exit_code=1)["complete"] is False

    def inventory(*arguments: Any) -> Inventory:
        found = from_objects(*arguments)
        gaps = [DeclaredGap(ORDERS, begin, end, 0, GapReason.RETENTION) for begin, end in ((5, 8), (13, 15))]
        found.declared_gaps[ORDERS] = gaps
        return found

    monkeypatch.setattr("recovery.metadata.inventory.from_objects", inventory)
    [finding, _] = _told(ruins.run("verify", "--json"), exit_code=5)["findings"]
    assert (finding["kind"], finding["error"], finding["subject"]) == ("declared_gap", False, "orders-0")

    told = _told(ruins.run("recover", "--json", "--topic", "orders"), exit_code=5)

    [log] = told["logs"]
    assert (log["start_offset"], log["end_offset"], log["gap"]) == (0, 20, None)
    assert log["declared_gaps"] == [{"from_offset": 5, "to_offset": 8}, {"from_offset": 13, "to_offset": 15}]
    assert (told["complete"], log["status"]) == (False, "whole but for declared gaps")
    shutil.rmtree(ruins.log_dir)
    table = ruins.run("recover", "--topic", "orders")
    assert (table.exit_code, "5 to 7 missing" in table.stdout) == (5, True)


@pytest.mark.parametrize(
    ("is_expired", "told"), [(True, "whole; 0 to 9 expired meanwhile"), (False, "whole; 0 to 9 deleted meanwhile")]
)
def test_what_was_deleted_meanwhile_is_told_and_incomplete_unless_it_had_expired(is_expired: bool, told: str) -> None:
    head = GoneHead(0, 10, is_expired)
    row = LogRow("orders-0", 10, 20, 1, None, 1, (), "whole", gone_head=head)
    assert (row.told, row.is_complete) == (told, is_expired)
    assert not replace(row, gap=(20, 30), status="gap").is_complete
    assert replace(row, gap=(20, 30), status="gap").told.startswith("20 to 29 missing; 0 to 9 ")


def test_a_log_that_is_asked_for_without_its_lost_records_is_not_called_whole(
    ruins: Ruins, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    ruins.upload(2, records(ORDERS, 0, 5, 9))

    def inventory(*arguments: Any) -> Inventory:
        found = from_objects(*arguments)
        first, second = sorted(found.runs[ORDERS], key=lambda run: run.first_offset)
        found.runs[ORDERS], found.lost[ORDERS] = [second], [first]
        found.unreachable[first.stored_in.object_id] = "zone-b"
        return found

    monkeypatch.setattr("recovery.metadata.inventory.from_objects", inventory)
    [lacking] = _told(ruins.run("recover", "--dry-run", "--json", "--topic", "orders"), exit_code=1)["logs"]
    assert (lacking["gap"], lacking["unreachable_in"]) == ({"from_offset": 0, "to_offset": 5}, ["zone-b"])

    told = _told(ruins.run("recover", "--json", "--topic", "orders", "--after-last-gap"), exit_code=1)
    [log] = told["logs"]
    assert (log["start_offset"], log["end_offset"], log["gap"]) == (5, 10, None)
    assert log["lost"] == [{"from_offset": 0, "to_offset": 5}]
    assert (told["complete"], log["unreachable_in"]) == (False, ["zone-b"])


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda ruins: ruins.write(node_id=9), "knows of no such partition"),
        (lambda ruins: (ruins.directory / "controller" / "meta.properties").unlink(), "give --cluster-id"),
        (lambda ruins: ruins.write(more="remote.log.wal.storage.manager.class.name=no.such.Class\n"), "cannot import"),
    ],
    ids=["unknown broker", "unknown cluster", "unknown backend"],
)
def test_bad_input_is_a_clear_error_and_nothing_is_written(
    ruins: Ruins, break_it: Callable[[Ruins], None], message: str
) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    break_it(ruins)

    result = ruins.run("recover", "--json")

    assert result.exit_code == 1
    assert message in str(result.exception)
    assert not ruins.log_dir.exists()


@pytest.mark.parametrize("missing", ["in the file", "anywhere"])
def test_missing_credentials_are_one_clear_line_and_nothing_is_written(
    ruins: Ruins, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(ruins.directory / "nowhere"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(ruins.directory / "nowhere"))
    credentials = ruins.directory / "credentials"
    credentials.write_text("[other]\naws_access_key_id = planted-key\naws_secret_access_key = planted-secret\n")
    with FaultyServer(FaultyFront(), [DEFAULT_BUCKET]) as server:
        backend = (
            "remote.log.wal.storage.manager.class.name=plugin.s3.S3WalStorageManager\n"
            f"rsm.wal.config.bucket={DEFAULT_BUCKET}\nrsm.wal.config.region=us-east-1\n"
            f"rsm.wal.config.endpoint.url={server.endpoint_url}\nrsm.wal.config.allow.http=true\n"
        )
        in_file = f"rsm.wal.config.credentials.file={credentials}\n"
        ruins.write(backend=backend, more=in_file if missing == "in the file" else "")
        before = sorted(ruins.directory.rglob("*"))

        monkeypatch.setattr(sys, "argv", ["remote-wal", *ruins.arguments("recover")])
        with pytest.raises(SystemExit) as ended:
            main()

        told = capsys.readouterr()
        assert ended.value.code == 3
        assert told.out == ""
        *_, line = told.err.splitlines()
        assert "Traceback" not in told.err
        assert line.startswith("remote-wal: ")
        assert "credentials.file" in line
        assert "planted" not in line
        assert sorted(ruins.directory.rglob("*")) == before

        # It is the credentials, and nothing else, that was missing.
        credentials.write_text(credentials.read_text().replace("other", "default"))
        ruins.write(backend=backend, more=in_file)
        assert _told(ruins.run("recover", "--dry-run", "--json"))["objects"] == 0


@pytest.mark.parametrize(("told", "comes_back"), [("", True), ("rsm.wal.config.total.timeout.ms=2000\n", False)])
def test_a_store_that_takes_longer_than_an_agent_waits_is_waited_for_unless_the_file_says_otherwise(
    ruins: Ruins, told: str, comes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    part = records(ORDERS, 0, 0, 4)
    stored = ruins.upload(1, part)
    bucket = f"slow-{int(comes_back)}"  # what was stored stays in the process
    with FaultyServer(FaultyFront(), [bucket]) as server:
        settings = {"bucket": bucket, "region": "us-east-1", "allow.http": "true"}
        settings["endpoint.url"] = server.endpoint_url
        backend = "remote.log.wal.storage.manager.class.name=plugin.s3.S3WalStorageManager\n"
        backend += "".join(f"rsm.wal.config.{key}={value}\n" for key, value in settings.items())
        client = S3WalStorageManager()
        client.configure(settings, StorageContext(CLUSTER, 1))
        ask(client.requests.put(str(stored.relative_to(ruins.store)), [stored.read_bytes()], stored.stat().st_size))
        client.close()
        ruins.write(backend=backend, more=told)
        server.faults.add(Fault("latency", seconds=LONGER_THAN_AN_AGENT_WAITS_S))

        result = ruins.run("recover", "--json", "--topic", "orders")

    restored = ruins.log_dir / "orders-0" / f"{0:020}.log"
    assert restored.exists() is comes_back, result.output
    assert not comes_back or restored.read_bytes() == part[3]


def test_another_cluster_than_the_one_that_is_named_is_an_error(ruins: Ruins) -> None:
    result = ruins.run("recover", "--cluster-id", "another")

    assert result.exit_code == 1
    assert f"is of cluster {CLUSTER}, not another" in str(result.exception)


@pytest.mark.parametrize("when", ["yesterday", "2025-01-01T00:00:00"])
def test_a_time_that_is_none_is_a_usage_error(ruins: Ruins, when: str) -> None:
    assert ruins.run("recover", "--to-timestamp", when).exit_code == 2


def test_verify_tells_a_monitor_that_all_is_well_and_when_it_is_not(ruins: Ruins) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))
    damaged = ruins.upload(2, records(ORDERS, 0, 5, 9))

    told = _told(ruins.run("verify", "--json"))
    assert (told["sound"], told["objects_read"], told["findings"]) == (True, 2, [])

    damaged.write_bytes(damaged.read_bytes()[:-1])
    (ruins.store / CLUSTER / "stray").write_text("x")
    told = _told(ruins.run("verify", "--json"), exit_code=1)
    assert {finding["kind"]: finding["error"] for finding in told["findings"]} == {
        "unreadable_object": True,
        "foreign_objects": False,
    }


def test_what_is_not_there_is_not_taken_for_compared_or_selected(ruins: Ruins, tmp_path: Path) -> None:
    ruins.upload(1, records(ORDERS, 0, 0, 4), records(PAYMENTS, 2, 0, 2))
    ruins.log_dir.mkdir()
    told = _told(ruins.run("verify", "--json", "--replica-log-dir", str(ruins.log_dir)), exit_code=1)
    assert [one["kind"] for one in told["findings"]] == ["nothing_compared"]
    for command in ("verify", "recover"):
        refused = ruins.run(command, "--partition", "0", "--partition", "99")
        assert refused.exit_code == 2
        assert "no topic has a partition 99" in refused.output

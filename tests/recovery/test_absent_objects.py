"""An absent object counts as deleted by agents only if they would delete it by what is known of the cluster."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.responses import DescribedPartition
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import AGENTS, TOPICS, SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from recovery.metadata.absent_objects import agents_judges
from tests.metadata_topic.fake_topic import FakeTopic
from tests.rlm.test_cluster_observer import FakeAdmin, id_of

ORDERS = TopicIdPartition(id_of("orders"), 0)
ENTRY = RemoteLogSegmentMetadataEntry(ORDERS, 0, 0, 4, 0, 0, 0)
HOUR_MS = 3_600_000
ONE_AGENT = {1: AgentRegistration(1, 1, "", "", 0, wal_retention_ms=HOUR_MS)}
PATIENT_AGENT = {2: AgentRegistration(2, 1, "", "", 0, wal_retention_ms=2 * HOUR_MS)}
ENABLED = {"orders": TopicSettings(enable=True)}
OF_THREE: dict[str, tuple[DescribedPartition, ...]] = {"orders": (DescribedPartition(0, 1, (1, 2, 3), (1, 2, 3)),)}


def is_released(
    admin: FakeAdmin,
    table: SettingsTable | FakeTopic | None,
    monkeypatch: pytest.MonkeyPatch,
    age_ms: int,
    told_start: int = 0,
    state: Path = Path("nowhere"),
    lost: Sequence[DeclaredGap] = (),
) -> bool:
    def read_settings(client: KafkaClientConfig, memory: SettingsMemory) -> SettingsTable:
        if isinstance(table, FakeTopic):
            return settings_topic.read_settings(client, consumer_factory=table.consumer, memory=memory)
        if table is None:
            raise MetadataTopicError("read", "settings", "lost")
        return table

    monkeypatch.setattr("rlm.lifecycle.cluster_observer.KafkaCluster", lambda *_: admin)
    monkeypatch.setattr("recovery.metadata.absent_objects.read_settings", read_settings)
    store = RemoteWalMetadataStore()
    begin = DeclaredGap(ORDERS, 0, told_start, 0, GapReason.LOG_START)
    store.apply(RemoteWalGapDeclaration(1, 1, 0, (begin,), 0), (0, 0))
    judges = agents_judges(KafkaClientConfig("127.0.0.1:1"), 1, lambda: 0, lambda: None, state)
    known = (RemoteWalMetadataStore(), store)
    for told, loss in zip(known, lost, strict=False):
        told.apply(RemoteWalGapDeclaration(1, 1, 1, (loss,), 0), (0, 1))
    return all(judge.releases([ENTRY], age_ms, {}) for judge in judges([ORDERS.topic_id], known, ArchiveStore()))


@pytest.mark.parametrize(
    ("table", "age_ms", "released"),
    [
        (SettingsTable(ENABLED, agents=ONE_AGENT), HOUR_MS, True),
        (SettingsTable(ENABLED, agents=ONE_AGENT), HOUR_MS - 1, False),
        (SettingsTable(ENABLED, agents=ONE_AGENT | PATIENT_AGENT), HOUR_MS, False),
        (SettingsTable({"orders": TopicSettings(enable=True, archive=True)}, agents=ONE_AGENT), HOUR_MS, False),
        (None, 1000 * HOUR_MS, False),
    ],
    ids=["expired", "young", "kept longer by another agent", "only the archive releases it", "settings unknown"],
)
def test_age_releases_by_what_every_agent_keeps(
    table: SettingsTable | None, age_ms: int, *, released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = FakeAdmin(partitions=OF_THREE, config={"retention.ms": str(100 * HOUR_MS)})
    assert is_released(admin, table, monkeypatch, age_ms) is released


@pytest.mark.parametrize(
    ("admin", "told_start", "released"),
    [
        (FakeAdmin(there={METADATA_TOPIC}), 0, True),
        (FakeAdmin(hidden={"orders"}), 5, False),
        (FakeAdmin(), 5, True),
        (FakeAdmin(), 0, False),  # the log begins at 7: segments may be lost on disk
    ],
    ids=["deleted", "hidden", "below the told start", "no agent told that start"],
)
def test_a_topic_or_its_begin_that_is_gone_releases_only_if_somebody_says_so(
    admin: FakeAdmin, told_start: int, *, released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_released(admin, SettingsTable(), monkeypatch, 0, told_start) is released


def test_what_either_store_holds_of_a_lost_logs_end_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [DeclaredGap(ORDERS, begin, begin + 5, 2 + begin, GapReason.LOST_LOCALLY) for begin in (0, 900)]
    admin = FakeAdmin(partitions=OF_THREE, config={"retention.ms": str(100 * HOUR_MS)})
    for lost in (losses, losses[::-1]):
        assert not is_released(admin, SettingsTable(ENABLED, agents=ONE_AGENT), monkeypatch, HOUR_MS, lost=lost)


def test_what_an_agent_remembers_of_a_lost_settings_topic_releases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, memory = FakeTopic(), SettingsMemory(tmp_path)
    topic.append(AGENTS.key(1), AGENTS.encode(ONE_AGENT[1]))
    for settings in (ENABLED["orders"], TopicSettings(enable=True, archive=True)):
        topic.append(TOPICS.key("orders"), TOPICS.encode(settings))
    settings_topic.read_settings(KafkaClientConfig("nowhere:1"), consumer_factory=topic.consumer, memory=memory)
    memory.save()
    topic.elect(2)
    admin = FakeAdmin(partitions=OF_THREE, config={"retention.ms": str(100 * HOUR_MS)})
    assert not is_released(admin, topic, monkeypatch, HOUR_MS, state=tmp_path)

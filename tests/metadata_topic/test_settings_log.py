"""The settings topic as a broker's files have it, when no broker is left to ask."""

from pathlib import Path

import pytest

from kafka_log.errors import MalformedFileError
from metadata_topic.settings.settings_table import AGENTS, RESTORED, TOPICS, Place
from metadata_topic.settings.settings_topic import read_settings_log
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.topic.topic import SETTINGS_TOPIC
from tests.topic_reader.written import Written, written_batch

AGENT = Written(AGENTS.key(1), AGENTS.encode(AgentRegistration(1, 5, "", "1", 0)))
ON, KEPT = TopicSettings(enable=True), TopicSettings(enable=True, wal_retention_ms=-1)
SET, KEEP = (Written(TOPICS.key("orders"), TOPICS.encode(value)) for value in (ON, KEPT))
RESTORING = Written(SET.key, TOPICS.encode(ON, Place("earlier", 3)))


def written(directory: Path, *records: Written, is_damaged: bool = False, torn_bytes: int = 0) -> Path:
    """A log that an agent wrote to, with these records, and then one that keeps a topic's records for ever."""
    first, second = written_batch(0, [AGENT, *records]), written_batch(1 + len(records), [KEEP])
    if is_damaged:
        second = second[:-1] + bytes([second[-1] ^ 1])
    (directory / f"{SETTINGS_TOPIC}-0").mkdir()
    (directory / f"{SETTINGS_TOPIC}-0" / f"{0:020}.log").write_bytes(first + second + second[:torn_bytes])
    return directory


@pytest.mark.parametrize("records", [[SET], [RESTORING, Written(RESTORED.key("earlier"), RESTORED.encode(4))]])
def test_it_is_read_to_its_end_which_a_power_cut_may_have_torn(tmp_path: Path, records: list[Written]) -> None:
    assert read_settings_log(tmp_path) is None
    table = read_settings_log(written(tmp_path, *records, torn_bytes=40))
    assert table is not None
    assert table.topics == {"orders": KEPT}


def test_what_stands_before_a_damaged_batch_is_not_taken_for_all_there_is(tmp_path: Path) -> None:
    with pytest.raises(MalformedFileError, match="offset 1 is damaged"):
        read_settings_log(written(tmp_path, is_damaged=True))


def test_a_log_into_which_agents_were_putting_back_what_was_lost_is_not_taken_for_all_there_is(tmp_path: Path) -> None:
    other = Written(TOPICS.key("payments"), RESTORING.value)
    assert read_settings_log(written(tmp_path, other)) is None

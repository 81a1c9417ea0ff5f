"""The settings topic as a broker's files have it, when no broker is left to ask."""

from pathlib import Path

import pytest

from kafka_log.errors import MalformedFileError
from metadata_topic.settings.settings_table import TOPICS
from metadata_topic.settings.settings_topic import read_settings_log
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.topic import SETTINGS_TOPIC
from tests.topic_reader.written import Written, written_batch

ON, KEPT = TopicSettings(enable=True), TopicSettings(enable=True, wal_retention_ms=-1)


def written(directory: Path, *, is_damaged: bool = False, torn_bytes: int = 0) -> Path:
    """A log that sets a topic, and then keeps its records for ever."""
    first, second = (
        written_batch(offset, [Written(TOPICS.key("orders"), TOPICS.encode(value))])
        for offset, value in enumerate((ON, KEPT))
    )
    if is_damaged:
        second = second[:-1] + bytes([second[-1] ^ 1])
    (directory / f"{SETTINGS_TOPIC}-0").mkdir()
    (directory / f"{SETTINGS_TOPIC}-0" / f"{0:020}.log").write_bytes(first + second + second[:torn_bytes])
    return directory


def test_it_is_read_to_its_end_which_a_power_cut_may_have_torn(tmp_path: Path) -> None:
    assert read_settings_log(tmp_path) is None
    table = read_settings_log(written(tmp_path, torn_bytes=40))
    assert table is not None
    assert table.topics == {"orders": KEPT}


def test_what_stands_before_a_damaged_batch_is_not_taken_for_all_there_is(tmp_path: Path) -> None:
    with pytest.raises(MalformedFileError, match="offset 1 is damaged"):
        read_settings_log(written(tmp_path, is_damaged=True))

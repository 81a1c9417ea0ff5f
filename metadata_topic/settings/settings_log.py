"""Reads `__remote_wal_topic_settings` from a broker's log directory, when no broker is left to ask."""

from pathlib import Path
from typing import Final

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.plain_records import PlainFile
from kafka_log.segment_files import list_segments, log_file_name
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.topic.topic import SETTINGS_TOPIC
from metadata_topic.topic.topic_follower import TopicRecord

_DIRECTORY: Final = f"{SETTINGS_TOPIC}-0"


def read_settings_log(log_dir: Path) -> SettingsTable | None:
    """Return the log's content; None if the topic is not in this directory.

    Records at its end may not be committed. Raises LogDirectoryError when it cannot be read, MalformedFileError when it
    is damaged or of another format: a setting behind the damage could be a longer retention.
    """
    directory = log_dir / _DIRECTORY
    if not directory.is_dir():
        return None
    content = SettingsMemory()
    try:
        for base_offset in list_segments(directory):
            file_path = directory / log_file_name(base_offset)
            file = PlainFile(file_path)
            for batch in file.batches:
                content.apply_all([TopicRecord(0, *record[:3]) for record in file.records(batch)])
            if file.damaged is not None:
                raise MalformedFileError(file_path, 0, f"the batch at offset {file.damaged.base_offset} is damaged")
    except OSError as error:
        raise LogDirectoryError(directory, str(error)) from error
    return content.table(is_read=True)

"""Reads `partition.metadata`, which says to which incarnation of a topic a directory belongs."""

from pathlib import Path

from kafka_log.errors import MalformedFileError
from kafka_log.topic_partition import TopicId, topic_id_from_text

FILE_NAME = "partition.metadata"


def parse_partition_metadata(text: str, path: Path) -> TopicId:
    """Parse the topic id in the lines "version: 0" and "topic_id: <base64>". Raises MalformedFileError."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "version: 0":
        raise MalformedFileError(path, 1, f"{lines[0] if lines else ''!r}, expected 'version: 0'")
    name, _, value = (lines[1] if len(lines) > 1 else "").partition(":")
    if name.strip() != "topic_id":
        raise MalformedFileError(path, 2, "expected 'topic_id: ...'")
    try:
        return topic_id_from_text(value.strip())
    except ValueError as error:
        raise MalformedFileError(path, 2, str(error)) from error


def read_partition_metadata(partition_dir: Path) -> TopicId:
    """Read the topic id of a partition directory.

    Raises MalformedFileError, and FileNotFoundError for a directory that the broker is still making.
    """
    path = partition_dir / FILE_NAME
    return parse_partition_metadata(path.read_text("ascii", errors="replace"), path)

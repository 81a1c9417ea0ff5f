"""The offsets in a stream's checkpoint: of which log each is, and who led it when the last record below was written.

A name outlives its topic, and an offset its record. So a topic's id stands beside its name, and the leader epoch beside
the offset, as in KIP-320.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

Json = dict[str, Any]
_FORMAT: Final = 1


class LogName(NamedTuple):
    topic: str
    topic_id: str
    partition: int


class ReadTo(NamedTuple):
    """Up to which offset a log was read, and the leader epoch of the record before that; -1: it was not stored yet."""

    offset: int
    leader_epoch: int


StreamOffsets = Mapping[LogName, ReadTo]


def to_json(offsets: StreamOffsets) -> Json:
    """Return a stream's offsets as JSON for Spark's checkpoint."""
    topics: dict[str, Json] = {}
    for name, read_to in offsets.items():
        of_topic = topics.setdefault(name.topic, {"id": name.topic_id, "partitions": {}})
        of_topic["partitions"][str(name.partition)] = list(read_to)
    return {"format": _FORMAT, "topics": topics}


def from_json(json: Json) -> StreamOffsets:
    """Parse a stream's offsets from Spark's checkpoint. Raises ValueError if it is of another format."""
    if json.get("format") != _FORMAT:
        raise ValueError(
            "the checkpoint is of another format than this version's; start the stream with a new checkpointLocation "
            "and startingOffsets"
        )
    return {
        LogName(topic, its["id"], int(number)): ReadTo(*read_to)
        for topic, its in json["topics"].items()
        for number, read_to in its["partitions"].items()
    }

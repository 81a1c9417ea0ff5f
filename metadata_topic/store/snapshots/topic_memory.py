"""What an agent remembers of the metadata topic in its state directory: its id, and how far it was read.

A snapshot in object storage remembers the same, but the store may not answer when the agent starts, and snapshots may
be lost with it. What cannot be read is told, and counts as nothing remembered.
"""

import json
from pathlib import Path
from typing import Final

import structlog

from kafka_log.topic_partition import TopicId
from metadata_topic.store.topic_continuity import RememberedTopic
from plugin.durable_files import write_durably

log = structlog.get_logger(__name__)

FILE_NAME: Final = "metadata-topic.json"


class TopicMemory:
    """One file. Blocks; one thread at a time."""

    def __init__(self, state_directory: Path) -> None:
        self._path = state_directory / FILE_NAME

    def load(self) -> RememberedTopic | None:
        """None when nothing is remembered."""
        try:
            known = json.loads(self._path.read_text())
            topic_id = known["topic_id"]
            return RememberedTopic(
                None if topic_id is None else TopicId(bytes.fromhex(topic_id)),
                {int(partition): int(end) for partition, end in known["ends"].items()},
                int(known["rebuilt_ms"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("metadata_topic_memory_unreadable", file=str(self._path), error=str(error),
                      hint="written anew; a topic lost meanwhile is noticed by snapshots alone")  # fmt: skip
            return None

    def save(self, topic: RememberedTopic) -> None:
        """In one piece: after a crash the file is the old one or the new one. Raises OSError."""
        fields = {
            "topic_id": None if topic.topic_id is None else topic.topic_id.hex(),
            "ends": {str(partition): end for partition, end in sorted(topic.ends.items())},
            "rebuilt_ms": topic.rebuilt_ms,
        }
        write_durably(self._path, json.dumps(fields))

"""Names of what Kafka stores: topics, topic ids and their partitions."""

import base64
import re
from typing import NamedTuple, NewType

TopicId = NewType("TopicId", bytes)
"""A topic's 16-byte UUID, as in Fetch frames and in partition.metadata."""

TOPIC_ID_BYTES = 16
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicIdPartition(NamedTuple):
    """A partition, named by its topic's id: a topic recreated under its name has another id."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{topic_id_to_text(self.topic_id)}-{self.partition}"


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows a topic of this name (org.apache.kafka.common.internals.Topic); then it is also safe in a
    path."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def topic_id_to_text(topic_id: TopicId) -> str:
    """Return Kafka's text form of a UUID: URL-safe base64 without padding (org.apache.kafka.common.Uuid)."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


def topic_id_from_text(text: str) -> TopicId:
    """Parse a UUID in Kafka's text form.

    Raises ValueError when the text is not the base64 form of 16 bytes.
    """
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(raw) != TOPIC_ID_BYTES:
        raise ValueError(f"a topic id has {TOPIC_ID_BYTES} bytes, {text!r} has {len(raw)}")
    return TopicId(raw)

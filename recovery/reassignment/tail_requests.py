"""Requests tails from the leaders' agents, and reads their answers, through the settings topic."""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.settings_records import TailRequest
from metadata_topic.settings.settings_table import TAIL_REQUESTS, TAILS_STORED
from metadata_topic.settings.settings_topic import SettingsReader, SettingsWriter
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.topic_follower import FollowSettings
from recovery.reassignment.plan import TopicPartition

_EAGER = FollowSettings(fetch_min_bytes=1, fetch_wait_ms=100, batch_wait_ms=50)


class TailRequests:
    """The tail requests of one run, in the settings topic; they are removed on exit."""

    def __init__(self, client: KafkaClientConfig, request_id: str, wall_ms: Callable[[], int]) -> None:
        self._request_id = request_id
        self._wall_ms = wall_ms
        self._reader = SettingsReader(client, settings=_EAGER)
        self._writer = SettingsWriter(client)
        self._asked: dict[TopicPartition, int] = {}

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._asked:
                gone = dict.fromkeys((where.topic, where.partition) for where in self._asked)
                self._writer.put(TAIL_REQUESTS, gone)
                self._writer.put(TAILS_STORED, gone)
        except KafkaClusterError:
            if error is None:
                raise
        finally:
            self._writer.close()
            self._reader.close()

    def topics(self, timeout_s: float = 30.0) -> Mapping[str, TopicSettings]:
        """Return all topics' settings. Raises MetadataTopicError when they cannot be read."""
        if not self._reader.wait_until_ready(timeout_s):
            raise MetadataTopicError(
                "read", "topic settings", f"not read to their end within {timeout_s:g} s", "did an agent ever start?"
            )
        return self._reader.topics

    def ask(self, log_ends: Mapping[TopicPartition, int], timeout_s: float) -> None:
        """Request that all records below these offsets are uploaded. Raises MetadataTopicError."""
        deadline_ms = self._wall_ms() + int(timeout_s * 1000)
        self._asked.update(log_ends)
        self._writer.put(
            TAIL_REQUESTS,
            {
                (where.topic, where.partition): TailRequest(self._request_id, end, deadline_ms)
                for where, end in log_ends.items()
            },
        )

    def stored(self) -> Iterable[TopicPartition]:
        """Yield the partitions whose tails are stored, according to the agents."""
        answers = self._reader.table.tails_stored
        for where, end in self._asked.items():
            answer = answers.get((where.topic, where.partition))
            if answer is not None and answer.request_id == self._request_id and answer.offset >= end:
                yield where

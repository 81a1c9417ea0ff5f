"""Answers requests for the upload of a partition's tail: `remote-wal reassign` sends one before it moves a partition.

A request is open until it is answered, withdrawn, or past its deadline. While it is open and the partition is led here,
its uploads are hurried (`RemoteWalLogManager.hurry`). It is answered once everything below the requested offset is
stored. Requests for partitions led elsewhere are kept, because leadership may come here; the leader answers. Each
request gets one answer, remembered by the request's id.

Belongs to the event loop.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.settings_records import TailRequest, TailStored, TopicPartitionName
from metadata_topic.settings.settings_table import TAILS_STORED
from metadata_topic.settings.settings_topic import SettingsWriter
from rlm.write_path.assignment import Assignment
from rlm.write_path.uploads.segment_queue import UploadedSegment
from rlm.write_path.uploads.upload_listener import UploadListener

log = structlog.get_logger(__name__)

Respond = Callable[[TopicPartitionName, TailStored], None]


class HurriedUploads(Protocol):
    """The subset of the write path that tail uploads need."""

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None: ...

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None: ...


class TailUploads(UploadListener):
    """The open requests to upload a partition's tail."""

    def __init__(self, broker_id: int, uploads: HurriedUploads, answer: Respond, wall_ms: Callable[[], int]) -> None:
        """`answer` is called with each response to a request; it must not block."""
        self._broker_id = broker_id
        self._uploads = uploads
        self._answer = answer
        self._wall_ms = wall_ms
        self._led: dict[TopicPartitionName, TopicIdPartition] = {}
        self._open: dict[TopicPartitionName, TailRequest] = {}
        self._answered: dict[TopicPartitionName, str] = {}

    def requested(self, requests: Mapping[TopicPartitionName, TailRequest]) -> None:
        """Set the requests: all those that are open in the settings topic."""
        for where in [known for known in self._open if known not in requests]:
            self._close(where)
        self._answered = {where: request for where, request in self._answered.items() if where in requests}
        for where, request in requests.items():
            if self._answered.get(where) != request.request_id:
                self._open[where] = request
        self._look(list(self._open))

    def assigned(self, assignments: Iterable[Assignment]) -> None:
        """Set the partitions that are led here."""
        self._led = {(one.topic, one.topic_id_partition.partition): one.topic_id_partition for one in assignments}
        self._look(list(self._open))

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """Respond to requests whose tail is stored with this object; renew the hurry of the others."""
        if self._open:
            stored = {item.topic_id_partition for item in segment.items}
            self._look([where for where in self._open if self._led.get(where) in stored])

    def hurried_log_settled(self, partition: TopicIdPartition) -> None:
        """Respond for a hurried log that was already stored to its end, for which no upload will be reported."""
        self._look([where for where in self._open if self._led.get(where) == partition], hurry=False)

    def _look(self, partitions: list[TopicPartitionName], hurry: bool = True) -> None:
        for where in partitions:
            request = self._open[where]
            if self._wall_ms() >= request.deadline_ms:
                self._close(where)
                continue
            led = self._led.get(where)
            uploaded = None if led is None else self._uploads.uploaded_offset(led)
            if led is None or uploaded is None:
                continue
            if uploaded < request.up_to:
                if hurry:
                    self._uploads.hurry(led)
                continue
            self._answered[where] = request.request_id
            self._close(where)
            log.info("tail_uploaded", topic=where[0], partition=where[1], offset=uploaded, wanted=request.up_to)
            self._answer(where, TailStored(request.request_id, self._broker_id, uploaded))

    def _close(self, where: TopicPartitionName) -> None:
        del self._open[where]
        if where in self._led:
            self._uploads.hurry(self._led[where], hurried=False)


class TailResponses:
    """Writes responses to tail requests to the settings topic. The client is made for the first one, because most
    agents never write any."""

    def __init__(self, client: KafkaClientConfig) -> None:
        self._client = client
        self._writer: SettingsWriter | None = None

    def __call__(self, where: TopicPartitionName, stored: TailStored) -> None:
        if self._writer is None:
            self._writer = SettingsWriter(self._client)
        self._writer.put_soon(TAILS_STORED, where, stored)

    def close(self) -> None:
        """Wait for responses that are being written. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

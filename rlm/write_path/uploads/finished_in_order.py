"""Publishes metadata of stored objects in the order of the objects' sequence, whichever upload ends first.

What the publisher does not take waits here and is retried: metadata of an upload is never dropped while the process
lives.
"""

import asyncio
from collections.abc import Callable

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.metadata_publisher import SegmentPublisher
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata

log = structlog.get_logger(__name__)

_PUBLISH_AGAIN_S = 0.5


class FinishedInOrder:
    """The waiting metadata of one agent incarnation. Event loop only, except `holds`."""

    def __init__(
        self,
        publisher: SegmentPublisher,
        first_sequence: int,
        not_publishable: Callable[[CombinedSegmentId, Exception], None],
    ) -> None:
        """`not_publishable` is called with a segment whose metadata can never be published."""
        self._publisher = publisher
        self._not_publishable = not_publishable
        self._next_sequence = first_sequence
        self._waiting: dict[int, RemoteWalCombinedLogSegmentMetadata | None] = {}
        self._awaited: dict[int, list[Callable[[], object]]] = {}
        """Callbacks for segments that the publisher has not taken yet."""
        self._lost: set[int] = set()
        """Segments whose metadata can never be published."""
        self._again: asyncio.TimerHandle | None = None

    def add(self, sequence: int, record: RemoteWalCombinedLogSegmentMetadata | None) -> None:
        """Record the end of an upload; None: the sequence number stays unused."""
        self._waiting[sequence] = record
        self._publish_or_try_again()

    def publish(self) -> bool:
        """Publish what is next in order, as far as the publisher takes it. Returns whether it refused none."""
        while self._next_sequence in self._waiting:
            ready = self._waiting[self._next_sequence]
            if ready is not None:
                try:
                    self._publisher.publish(ready)
                except PublicationBacklogFullError:
                    return False
                except Exception as error:  # any publisher may raise anything
                    self._lost.add(self._next_sequence)
                    self._awaited.pop(self._next_sequence, None)
                    self._not_publishable(ready.combined_segment_id, error)
                else:
                    for tell in self._awaited.pop(self._next_sequence, ()):
                        self._publisher.when_published(ready.combined_segment_id, tell)
            del self._waiting[self._next_sequence]
            self._next_sequence += 1
        return True

    def _publish_or_try_again(self) -> None:
        if not self.publish() and self._again is None:
            self._again = asyncio.get_running_loop().call_later(_PUBLISH_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        self._publish_or_try_again()

    def holds(self, segment_id: CombinedSegmentId) -> bool:
        """Whether the publisher has not taken it yet. On any thread."""
        return segment_id.sequence in self._waiting

    def await_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> bool:
        """Call `tell` once the segment is published, if it is held here. Returns whether it is.

        `tell` is never called for a segment that can never be published.
        """
        if segment_id.sequence in self._lost:
            return True
        if not self.holds(segment_id):
            return False
        self._awaited.setdefault(segment_id.sequence, []).append(tell)
        return True

    @property
    def unpublished(self) -> int:
        """How many stored objects have metadata that the publisher has not taken yet."""
        return sum(record is not None for record in self._waiting.values())

    def close(self) -> None:
        """Publish what is possible, for the last time."""
        if self._again is not None:
            self._again.cancel()
        if not self.publish():
            log.error("metadata_unpublished", segments=self.unpublished)

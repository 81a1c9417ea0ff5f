"""Which segments the metadata topic may be told of yet, though they were stored long ago. Blocks: for a thread.

An agent tells of its uploads' ends in the order in which it began them, and what an incarnation tells after a newer one
was registered is refused. So where the topic tells of an upload that ended after some moment, no more will come of that
agent that it began before. Of any other agent the objects are listed: what of them has no end in the topic may get one,
as its agent cannot write to the topic, or stood still.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.records.states import STARTED
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState


class ToldSegments(Protocol):
    """What is asked of the metadata store."""

    def state_of(self, combined_segment_id: CombinedSegmentId, /) -> RemoteLogSegmentState | None:
        """None when nothing is known of it."""

    def told_until_ms(self, broker_id: int, /) -> int | None:
        """When one of the broker's newest uploads ended, by its own clock; None when none is known."""

    def newest_registrations(self) -> list[RemoteWalNodeRegistration]:
        """Of every broker."""


class UntoldSegments:
    """See the module's theory."""

    def __init__(
        self, storage: RemoteWalStorageManager, told: ToldSegments, brokers: Callable[[], Iterable[int]]
    ) -> None:
        """`brokers` are those whose agents may have uploaded before the topic has their registration."""
        self._storage = storage
        self._told = told
        self._brokers = brokers

    def stored_ms(self, since_ms: int) -> list[int]:
        """When they were stored, by the store's clock; of those that began after `since_ms`, some or none.

        Raises RemoteStorageError: nothing is known then.
        """
        brokers = {*self._brokers(), *(one.broker_id for one in self._told.newest_registrations())}
        return [
            stored.last_modified_ms
            for broker_id in sorted(brokers)
            if (until_ms := self._told.told_until_ms(broker_id)) is None or until_ms < since_ms
            for stored in self._storage.list_log_segments(broker_id)
            if self._told.state_of(stored.combined_segment_id) in (None, STARTED)
        ]

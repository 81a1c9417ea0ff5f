"""Finds segments that were stored long ago but may still be published to the metadata topic. Blocks: for a thread.

An agent publishes its uploads' ends in the order in which it began them, and records of an incarnation are refused
after a newer one was registered. So if the topic has an upload of an agent that ended after some moment, nothing that
this agent began earlier will still come. Of any other agent the objects are listed: those without an end in the topic
may get one, because their agent cannot write to the topic, or was frozen.
"""

from collections.abc import Callable, Iterable

from metadata_topic.records.states import STARTED
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.store_loop import ask_each


class UnpublishedSegments:
    """Lists segments that were stored and whose metadata may still be published."""

    def __init__(
        self, storage: RemoteWalStorageManager, told: RemoteWalMetadataStore, brokers: Callable[[], Iterable[int]]
    ) -> None:
        """`brokers` are those whose agents may have uploaded before their registration is read from the topic."""
        self._storage = storage
        self._told = told
        self._brokers = brokers

    def stored_ms(self, since_ms: int) -> list[int]:
        """Return when such segments were stored, by the object store's clock, in ms.

        Uploads that began after `since_ms` may be missing. Raises RemoteStorageError: then nothing is known.
        """
        brokers = {*self._brokers(), *(one.broker_id for one in self._told.newest_registrations())}
        return [
            stored.last_modified_ms
            for broker_id in sorted(brokers)
            if (until_ms := self._told.newest_upload_ms(broker_id)) is None or until_ms < since_ms
            for stored in ask_each(self._storage.list_log_segments(broker_id))
            if self._told.state_of(stored.combined_segment_id) in (None, STARTED)
        ]

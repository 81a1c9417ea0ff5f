"""Tells the archive about the cluster: which topics are archived, whose objects this agent owns, what logs need.

In doubt, an object is kept. A topic is archived when its settings say so and some agent's archive is on, so its entries
wait for the archive whoever leads the partition. Leader epochs are given for led partitions only, because an election
may have cut off a follower's log. An archive object is released when its topic is deleted, or by the log's start as the
broker tells it. Records that the leader's log lacks prove nothing: it may have lost them, for instance with its disk,
and then its start proves nothing either (`metadata_topic.store.held_records`). The agent owns a broker's objects once
it has read the registration that says so, and its own broker's once it has read that of this incarnation, because
unread records of an older one may stand before it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from rlm.archive.archive_care import CareDuties
from rlm.lifecycle.cluster_observer import Observation
from rlm.lifecycle.release import ClusterView
from rlm.lifecycle.tiered_storage import LogEpochs
from rlm.write_path.assignment import Assignment


class ArchivedTopics:
    """Answers which topics are archived and which objects this agent owns. Updated in the event loop; any thread may
    read."""

    def __init__(
        self,
        own: CombinedSegmentId,
        store: RemoteWalMetadataStore,
        archive: ArchiveStore,
        settings: SettingsReader,
        archives_here: bool,
        clock: Callable[[], float],
    ) -> None:
        """`own` has this agent's broker and incarnation; `archives_here` says whether its own archive is on.

        `clock` also counts while the host sleeps, in seconds.
        """
        self._own = own
        self._store = store
        self._archive = archive
        self._settings = settings
        self._archives_here = archives_here
        self._observation = Observation(ClusterView(), frozenset())
        self._led: Mapping[TopicIdPartition, Path] = {}
        self._clock = clock
        self._epochs = self._new_epochs()

    def cluster_seen(self, observation: Observation) -> None:
        self._observation = observation

    def set_led(self, assignments: Sequence[Assignment]) -> None:
        """Set the partitions that are led here now."""
        led = {assignment.topic_id_partition: assignment.directory for assignment in assignments}
        if led != self._led:
            self._led = led
            self._epochs = self._new_epochs()

    def is_archived(self, topic_id: TopicId) -> bool:
        """Whether the topic's entries are kept until an archive has them, here or on another broker."""
        name = self._observation.names.get(topic_id)
        settings = self._settings.table.of(name, topic_id) if name is not None else None
        if settings is None or not (settings.enable and settings.archive):
            return False
        return self._archives_here or any(agent.archive for agent in self._settings.table.agents.values())

    def chain_of(self, partition: TopicIdPartition) -> LeaderEpochs | None:
        """Return the leader epochs of a log that is led here; None for others."""
        return self._epochs.of(partition)

    def duties(self, brokers: Collection[int]) -> CareDuties:
        """Return what to do for these brokers' archive objects: of those whose registrations were read."""
        own = self._own
        known = self._store.registration_of(own.broker_id)
        incarnations = {}
        if known is not None and known.incarnation == own.incarnation:
            for broker_id in brokers:
                registration = self._store.registration_of(broker_id)
                if registration is not None and registration.caretaker_broker_id == own.broker_id:
                    incarnations[broker_id] = registration.incarnation
        return CareDuties(incarnations, self._observation.view)

    def _new_epochs(self) -> LogEpochs:
        return LogEpochs(self._led.get, self._clock)


class ArchiveTier:
    """The archive as a long-term tier: expiration asks it what is archived. Any thread may ask."""

    def __init__(
        self,
        archive: ArchiveStore,
        is_archived: Callable[[TopicId], bool],
        chain_of: Callable[[TopicIdPartition], LeaderEpochs | None],
    ) -> None:
        """`is_archived` says whether the topic has the archive on and some agent archives it, here or elsewhere.

        `chain_of` returns a led partition's epochs; None for partitions led elsewhere.
        """
        self._archive = archive
        self._is_archived = is_archived
        self._chain_of = chain_of

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether every record of the entry that the log has is archived."""
        partition, epoch, last = entry.topic_id_partition, entry.leader_epoch, entry.last_offset
        chain = self._chain_of(partition)
        end = chain.end_of(epoch) if chain is not None else None
        if end is not None and end <= entry.first_offset:
            return False  # dead as a whole, or the chain is incomplete: the archive cannot decide
        return self._archive.covers(partition, epoch, entry.first_offset, last if end is None else min(last, end - 1))

    def waits_for(self, topic_id: TopicId, /) -> bool:
        """Whether the topic's entries may be released only once they are archived, whatever their age."""
        return self._is_archived(topic_id)

"""Says what is stored of topics, as `Source` names it: by the metadata topic, its snapshots, or the objects alone.

A living cluster is asked for topics' names, and the metadata topic is read. A later look only adds what the topic had
since; if offsets are missing then, or cannot be read, the store is listed again. Without a living cluster, the newest
snapshot of each agent counts, and the footers of younger objects; names come from a copy of the controllers' log, or a
topic is given by its id.
"""

import random
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from agent.own_metadata import own_metadata
from agent.settings_file import read_settings_file
from agent.stores import StoreSettings
from kafka_cluster.client_config import KafkaClientConfig, read_command_config
from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_from_text
from metadata_topic.records.records import MetadataRecord, PublishedSegment
from metadata_topic.store.archive.archive_recovery import record_from_object
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.fencing import Source as Place
from metadata_topic.store.snapshots.sparse_store import SparseStore
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.topic_session import newest_snapshot, read_metadata
from plugin.archive_storage import ArchiveStorage
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError, meant
from plugin.format.entry_column_batches import LogFilter
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StoredSegment
from plugin.segment_metadata import RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask_each
from recovery.cluster_view import ClusterView, TopicView, ask_cluster, is_empty, read_kraft_view
from recovery.errors import UnknownClusterError
from recovery.logs.log_directory_target import identity_in
from recovery.logs.log_plan import LogRuns
from recovery.logs.run_reader import RunReader
from recovery.metadata.inventory import Inventory, from_metadata, from_objects, look_until_steady, take_in_told
from recovery.metadata.topic_rebuild import read_snapshots
from recovery.patience import Patience
from topic_reader.stored_log import WENT_INLINE, KnownLog, StoredLog, report

_PATIENCE_S = 300.0
_FOOTERS_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Source:
    """Which stores and which cluster a topic is read from, and whether metadata or objects say what is stored."""

    broker_config: str | Path
    """A broker's server.properties, or a copy of it: it names the stores."""
    bootstrap_servers: str | None = None
    """A living cluster, whose metadata topic is read; None: no broker is asked."""
    command_config: str | Path | None = None
    """A Java client's properties for it."""
    cluster_metadata: str | Path | None = None
    """A metadata.log.dir, or a copy of its `__cluster_metadata-0`; None: that of `broker_config`, if it is there."""
    cluster_id: str | None = None
    """Needed where nothing else says it; what else says it must agree."""
    from_objects: bool = False
    """Whether the footers of all objects are read, and of snapshots only what leaders declared."""

    def __post_init__(self) -> None:
        """Raise ValueError for a field that would have no effect."""
        if self.command_config is not None and self.bootstrap_servers is None:
            raise ValueError("a command config is for a living cluster: give its bootstrap servers")
        if self.from_objects and self.bootstrap_servers is not None:
            raise ValueError("either a living cluster is asked, or objects alone are read")
        if self.cluster_metadata is not None and self.bootstrap_servers is not None:
            raise ValueError("either a living cluster is asked, or a copy of the controllers' log is read")


@dataclass(frozen=True)
class StoredTopics:
    """Topics to read, and how to open their stores; may be sent to another process."""

    stores: StoreSettings
    topics: Mapping[str, TopicView]
    client: KafkaClientConfig | None
    from_objects: bool
    state_directory: Path
    """Of this host's agent."""

    @classmethod
    def find(cls, source: Source, names: Collection[str]) -> Self:
        """Find these topics, each by name or id. Blocks.

        Raises UnknownClusterError, AgentSettingsError, BrokerPropertiesError, OSError.
        """
        with _file_of("broker_config", "brokerConfig"):
            broker, settings = read_settings_file(Path(source.broker_config))
        client = None
        if source.bootstrap_servers is not None:
            file = None if source.command_config is None else Path(source.command_config)
            with _file_of("command_config", "commandConfig"):
                client = read_command_config(source.bootstrap_servers, file)
            cluster_id, view = ask_cluster(client, names)
            if source.cluster_id not in (None, cluster_id):
                why = f"is cluster {cluster_id}, not {source.cluster_id}"
                raise UnknownClusterError("read topics", source.bootstrap_servers, why)
            for topic, why in view.left_out.items():
                raise UnknownClusterError(
                    "read topics", topic, why, "may this client describe it, and its configuration?"
                )
        else:
            cluster_id, view = _without_brokers(source, broker.metadata_log_dir)
        by_name = {topic.name: topic for topic in view.topics.values()}
        topics = {name: by_name.get(name) or _by_id(name, view.names or by_name) for name in names}
        stores, state_directory = StoreSettings.of(broker, settings, cluster_id), settings.process.state_directory
        return cls(stores, topics, client, source.from_objects, state_directory)

    @contextmanager
    def opened(self) -> Iterator["OpenTopics"]:
        """Open the stores while the context lasts. Raises RemoteStorageError."""
        with self.stores.opened() as (storage, archive):
            yield OpenTopics(self, storage, archive)


class OpenTopics:
    """Topics whose stores are open. For one thread."""

    def __init__(self, topics: StoredTopics, storage: RemoteWalStorageManager, archive: ArchiveStorage | None) -> None:
        self.topics = topics
        """May be replaced by what is found later, of the same stores."""
        self._storage = cast(RemoteWalStorageManager, _RemembersFooters(storage))
        self._archive = archive
        self._patience = Patience(threading.Event().wait, random.uniform, total_s=_PATIENCE_S)
        self._inventory: Inventory | None = None
        self._is_listed = False
        """Whether its look listed the store."""
        self._told: tuple[_ToldStore, ArchiveStore] | None = None
        """What the metadata topic told of the inventory's topics, up to the last look."""
        self._others: frozenset[TopicId] = frozenset()
        """Topics that had one of the names before."""
        self._logs: dict[tuple[TopicId, int, int | None], KnownLog] = {}

    def look(self, *, is_whole: bool = False) -> Inventory:
        """Return the inventory of what is stored now. Raises RemoteStorageError, MetadataTopicError.

        `is_whole`: list the store, even if an earlier inventory could be updated.
        """
        is_asked = self.topics.client is not None  # a snapshot is always older than the listing
        found = None if is_whole else self._taken_in()
        self._is_listed = found is None
        if found is None:
            found = look_until_steady(self._taken) if is_asked else self._taken()
        self._inventory, self._logs = found, {}
        return found

    def _taken_in(self) -> Inventory | None:
        """Return what the last look found with what was told since; None if all must be looked at."""
        client, before, known = self.topics.client, self._inventory, self._told
        if client is None or before is None or known is None or known[0].topic_ids != self._topic_ids:
            return None
        read_metadata(client, known=known)
        found = take_in_told(before, *known, known[0].told)
        known[0].told.clear()
        return found

    @property
    def _topic_ids(self) -> frozenset[TopicId]:
        return self._others | {view.topic_id for view in self.topics.topics.values()}

    def _taken(self) -> Inventory:
        wanted = LogFilter(self._topic_ids)
        topics, storage, archive, patience = self.topics, self._storage, self._archive, self._patience
        store: RemoteWalMetadataStore
        newest = newest_snapshot(storage.blobs, topics.stores.context.cluster_id)
        if topics.client is not None:
            store = told = _ToldStore(self._topic_ids)
            self._told = told, (archived := ArchiveStore())
            read_metadata(topics.client, newest, known=self._told)
            told.told.clear()
        elif topics.from_objects:
            return from_objects(storage, archive, patience=patience, wanted=wanted, snapshot=newest())
        elif (own := own_metadata(topics.state_directory, topics.stores.context.cluster_id, newest)) is not None:
            store, archived = own
        else:
            remembered = read_snapshots(storage, topics.stores.context.cluster_id)
            store, archived = remembered.store, remembered.archive
            for stored in ask_each(archive.list()) if archive is not None else ():
                if archive is not None and archived.state_of(stored.object_id) is None:
                    try:
                        archived.apply(record_from_object(archive, stored))
                    except (RemoteSegmentCorruptError, RemoteResourceNotFoundError):
                        continue  # a log that needs it has a gap
        return from_metadata(store, archived, storage, archive, patience=patience, wanted=wanted)

    def check_complete(self, *, fail_on_data_loss: bool) -> None:
        """Raise UnknownClusterError if nothing is stored; raise or log DataLossError if nothing of one topic is.

        Also checks what `check_readable` checks.
        """
        inventory = self._looked()
        if not inventory.objects and not inventory.lost_objects and not inventory.unanswered:
            cluster_id, hint = self.topics.stores.context.cluster_id, "are bucket, prefix and cluster id right?"
            raise UnknownClusterError("read topics", f"cluster {cluster_id}", "the store has no records of it", hint)
        if self.check_readable(fail_on_data_loss=fail_on_data_loss):
            stored, client = {one.topic_id for one in inventory.partitions()}, self.topics.client
            for topic, view in self.topics.topics.items():
                if view.topic_id in stored or not view.partitions:
                    continue
                if client is None or not is_empty(client, view):
                    report(topic, f"all its records {WENT_INLINE}", fail_on_data_loss=fail_on_data_loss)

    def check_readable(self, *, fail_on_data_loss: bool) -> bool:
        """Raise DataLossError, or log it and return False, if buckets, objects or the metadata are not wholly known."""
        inventory = self._looked()
        unreadable = (one.key for one in inventory.unreadable if not one.is_gone)
        if unknown := [*sorted(inventory.unanswered), *unreadable]:
            what = f"{len(unknown)} buckets or objects cannot be read and may hold records: {', '.join(unknown[:3])}"
            report("topics", what, fail_on_data_loss=fail_on_data_loss)
        for doubt in inventory.doubts:
            what = f"what elections cut off may be among the records: {doubt}; remote-wal metadata rebuild first"
            report("topics", what, fail_on_data_loss=fail_on_data_loss)
        return not (unknown or inventory.doubts)

    def partitions(self, topic: str) -> list[int]:
        """Return the topic's partitions: those of the cluster and those that are stored; either may be older."""
        view = self.topics.topics[topic]
        stored = {one.partition for one in self._looked().partitions() if one.topic_id == view.topic_id}
        return sorted(stored.union(view.partitions))

    def checked_partitions(self, topic: str, partitions: Sequence[int] = ()) -> Sequence[int]:
        """Return these partitions, or all. Raises UnknownClusterError for what is neither known nor stored."""
        known = self.partitions(topic)
        if missing := [str(one) for one in partitions if one not in known]:
            raise UnknownClusterError("read topics", topic, f"it has no partition {', '.join(missing)}")
        if not known:
            raise UnknownClusterError("read topics", topic, "nothing of it is stored", "is it this cluster's?")
        return partitions or known

    def log(self, topic: str, partition: int, settled_ms: int | None = None, topic_id: str | None = None) -> StoredLog:
        """Return the log of a partition. `settled_ms`: without combined segments that were written later.

        `topic_id`: the topic's id, if its name may have been given to a new topic since.
        """
        view = self.topics.topics[topic]
        if topic_id is not None and view.topic_id != (wanted := topic_id_from_text(topic_id)):
            view = TopicView(topic, wanted, {}, {})
            if wanted not in self._others:
                self._others |= {wanted}
                self._inventory, self._logs = None, {}

        def known(again: bool) -> KnownLog:
            if again:
                self.look(is_whole=True)
            key = view.topic_id, partition, settled_ms
            if key not in self._logs:
                self._logs[key] = self._known(view, partition, settled_ms)
            return self._logs[key]

        return StoredLog(f"{topic}-{partition}", known, RunReader(self._storage, self._archive, self._patience))

    def _known(self, view: TopicView, partition: int, settled_ms: int | None) -> KnownLog:
        inventory = self._looked()
        one = TopicIdPartition(view.topic_id, partition)
        runs = inventory.log_runs(one)
        if settled_ms is not None:
            settled = (
                run
                for run in inventory.runs.get(one, ())
                if run.stored_in.is_archived or run.stored_in.written_ms <= settled_ms
            )
            runs = LogRuns(settled, known_starts=inventory.known_starts.get(one, ()))
        replicas = view.partitions.get(partition)
        rules = inventory.log_rules(
            one,
            is_compacted="compact" in (view.config.get("cleanup.policy") or ""),
            log_start=None if replicas is None else replicas.log_start,
        )
        return KnownLog(f"{view.name}-{partition}", runs, rules, self._is_listed)

    def _looked(self) -> Inventory:
        return self.look() if self._inventory is None else self._inventory


class _ToldStore(SparseStore):
    """A store that keeps which records came since a look, and of objects without records of the topics no entries."""

    def __init__(self, topic_ids: frozenset[TopicId]) -> None:
        super().__init__()
        self.topic_ids = topic_ids
        self.told: list[MetadataRecord | None] = []

    def apply_all(self, records: Iterable[tuple[MetadataRecord | None, Place]]) -> None:
        """Apply a batch, and keep it in `told`."""
        kept = [(self._without_others(record), source) for record, source in records]
        self.told += [record for record, _ in kept]
        super().apply_all(kept)

    def _without_others(self, record: MetadataRecord | None) -> MetadataRecord | None:
        if not isinstance(record, PublishedSegment) or any(record.entry_block.count(one) for one in self.topic_ids):
            return record
        return record._replace(entry_block=b"")


class _RemembersFooters:
    """A storage manager that reads the footer of each object once, for streams that look again and again."""

    def __init__(self, storage: RemoteWalStorageManager) -> None:
        self._storage = storage
        self._known: dict[StoredSegment, RemoteWalCombinedLogSegmentMetadata] = {}

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        if stored not in self._known:
            found = await self._storage.fetch_segment_metadata(stored)
            if len(self._known) >= _FOOTERS_KEPT:
                self._known.clear()
            self._known[stored] = found
        return self._known[stored]

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)


@contextmanager
def _file_of(field: str, option: str) -> Iterator[None]:
    """Name the field of `Source`, and Spark's option, whose file cannot be read. Raises UnknownClusterError."""
    try:
        yield
    except OSError as error:
        raise UnknownClusterError("read", field, str(error), f"in Spark the option {option}") from error


def _without_brokers(source: Source, metadata_log_dir: Path) -> tuple[str, ClusterView]:
    if source.cluster_metadata is not None:
        return read_kraft_view(Path(source.cluster_metadata), source.cluster_id)
    if identity_in(metadata_log_dir) is not None:
        return read_kraft_view(metadata_log_dir, source.cluster_id)
    if source.cluster_id is None:
        hint = "give bootstrap_servers, cluster_metadata or cluster_id"
        raise UnknownClusterError("read topics", str(source.broker_config), "nothing says which cluster this is", hint)
    return source.cluster_id, ClusterView({})


def _by_id(text: str, known: Collection[str]) -> TopicView:
    try:
        return TopicView(text, topic_id_from_text(text), {}, {})
    except ValueError as error:
        hint = "" if known else "without a cluster, or cluster_metadata, give the topic's id"
        what = f"no topic of this name is known{meant(text, known)}"
        raise UnknownClusterError("read topics", text, what, hint) from error

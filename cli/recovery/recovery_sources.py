"""The inputs of recover and verify: the broker's settings, its stores, the cluster, and the stored objects."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import BrokerConfig, CommandConfig, Connection, agents_client
from cli.progress import Tell

if TYPE_CHECKING:
    from agent.settings.agent_settings import AgentSettings
    from kafka_cluster.client_config import KafkaClientConfig
    from kafka_log.broker_files.server_properties import BrokerProperties
    from metadata_topic.kip405.tiered_offsets import TieredOffsets
    from metadata_topic.store.snapshots.snapshot_keeper import NewestSnapshot
    from metadata_topic.topic.topic_session import TopicSession
    from plugin.archive_storage import ArchiveStorage
    from plugin.format.entry_column_batches import LogFilter
    from plugin.remote_wal_storage_manager import RemoteWalStorageManager
    from recovery.cluster_view import ClusterView
    from recovery.logs.run_reader import RunReader
    from recovery.metadata.inventory import Inventory
    from recovery.patience import Patience

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class BrokersCluster:
    """The options by which commands find a broker's stores and its cluster."""

    broker_config: BrokerConfig
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", help="Where the rest of the cluster is; else the broker's own settings say it."
        ),
    ] = None
    command_config: CommandConfig = None


@dataclass(frozen=True, slots=True)
class StoredLogs(BrokersCluster):
    """The options by which recover and verify find a broker's logs."""

    cluster_metadata: Annotated[
        Path | None,
        typer.Option(
            help="A metadata.log.dir (or a copy of its __cluster_metadata-0) to take topics and replicas from, for "
            "when no broker is left to ask. What is in objects then says this host's agent if it lives, else they do.",
            exists=True,
            file_okay=False,
        ),
    ] = None
    cluster_id: Annotated[str | None, typer.Option(help="The cluster's id, where nothing else tells it.")] = None
    from_objects: Annotated[
        bool,
        typer.Option(
            "--from-objects",
            help="Do without the metadata topic: read all objects' footers, and by a snapshot what was declared.",
        ),
    ] = False
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Only this topic; may be given several times."),
    ] = None
    partition: Annotated[
        list[int] | None, typer.Option("--partition", help="Only this partition of the topics.", min=0)
    ] = None


@dataclass(frozen=True, slots=True)
class Sources:
    """The inputs of a recovery: settings, stores, cluster and logs to restore."""

    broker: "BrokerProperties"
    cluster_id: str
    view: "ClusterView"
    inventory: "Inventory"
    storage: "RemoteWalStorageManager"
    archive: "ArchiveStorage | None"
    directory_ids: dict[Path, str]
    """Ids of the broker's log directories, as its agent registered them."""
    reader: "RunReader"
    """Reads runs from the stores; waits while they throttle or do not answer."""
    look_again: "Callable[[], Inventory]"
    """Takes the inventory again."""
    wall_ms: "Callable[[], int]"
    """The time up to which records have expired: now or, if no broker is left, when the newest object was written,
    because nothing expires without agents."""
    read_tier: "Callable[[], TieredOffsets | None] | None"
    """Reads what KIP-405's tier holds, or returns None if that cannot be read; None: there is no cluster to ask."""


@contextmanager
def open_sources(where: StoredLogs, tell: Tell) -> Iterator[Sources]:
    """Open all inputs; the stores are open inside the block. Raises errors of `OWN_PACKAGES`."""
    from agent.own_metadata import own_metadata
    from agent.settings_file import read_settings_file
    from agent.stores import StoreSettings
    from metadata_topic.topic.consumer import STALLED_S
    from metadata_topic.topic.topic_session import newest_snapshot
    from plugin.errors import meant
    from plugin.format.entry_column_batches import LogFilter
    from plugin.wall_clock import wall_ms
    from recovery.cluster_view import read_tier
    from recovery.logs.run_reader import RunReader
    from recovery.metadata.inventory import from_metadata, from_objects, look_until_steady

    broker, settings = read_settings_file(where.broker_config)
    tell("asking for topics and replicas")
    cluster_id, view, directory_ids = _cluster(broker, settings, where)
    if where.topic:
        view = replace(view, left_out={name: view.left_out[name] for name in view.left_out if name in where.topic})
    names = {*view.left_out, *(one.name for one in view.topics.values())}
    for topic in sorted({*(where.topic or ())} - names):
        raise typer.BadParameter(f"there is no topic {topic}{meant(topic, names)}", param_hint="--topic")
    chosen = [one for one in view.topics.values() if not where.topic or one.name in where.topic]
    for number in where.partition or ():
        if not view.left_out and not any(number in one.partitions for one in chosen):
            raise typer.BadParameter(f"no topic has a partition {number}", param_hint="--partition")
    with StoreSettings.of(broker, settings, cluster_id).opened() as (storage, archive):
        wanted = LogFilter(view.replicas_of(broker.node_id))

        def take_inventory() -> "Inventory":
            tell("listing objects")
            newest = newest_snapshot(storage.blobs, cluster_id)
            if where.from_objects or where.cluster_metadata is not None:
                progress, patience = progress_to(tell), patience_of(tell)
                own = None if where.from_objects else own_metadata(settings.process.state_directory, cluster_id, newest)
                if own is not None:
                    tell("taking what this host's agent knows")
                    return from_metadata(*own, storage, archive, progress, patience, wanted, is_recovery=True)
                snapshot = newest()
                if snapshot.image is None:
                    tell("no snapshot of the metadata was read: what leaders declared is not known")
                return look_until_steady(lambda: from_objects(storage, archive, progress, patience, wanted, snapshot))
            client = client_of(broker, settings, where)
            return look_until_steady(lambda: _by_metadata(client, newest, storage, archive, tell, wanted))

        def read_tiered() -> "TieredOffsets | None":
            tell("reading the tier's metadata")
            return read_tier(client_of(broker, settings, where), STALLED_S)

        reader = RunReader(storage, archive, patience_of(tell))
        inventory = take_inventory()
        clock = _stopped_clock(inventory) if where.cluster_metadata is not None else wall_ms
        tier = read_tiered if where.cluster_metadata is None else None
        yield Sources(
            broker, cluster_id, view, inventory, storage, archive, directory_ids, reader, take_inventory, clock, tier
        )


def _stopped_clock(inventory: "Inventory") -> "Callable[[], int]":
    from plugin.wall_clock import wall_ms

    newest_ms = wall_ms() if inventory.newest_ms is None else inventory.newest_ms
    return lambda: min(newest_ms, wall_ms())


def new_directory_id() -> str:
    """Return a new directory id as Kafka makes them: 16 random bytes in URL-safe base64, without a dash in front."""
    while True:
        text = secrets.token_urlsafe(16)
        if not text.startswith("-"):
            return text


def _cluster(
    broker: "BrokerProperties", settings: "AgentSettings", where: StoredLogs
) -> "tuple[str, ClusterView, dict[Path, str]]":
    from kafka_cluster.errors import KafkaClusterError
    from metadata_topic.records.errors import TopicAbsentError
    from metadata_topic.settings.settings_memory import SettingsMemory
    from metadata_topic.settings.settings_topic import read_settings
    from recovery.cluster_view import ask_cluster, read_kraft_view, with_directories, with_hidden, with_wal_retention

    if where.cluster_metadata is not None:
        cluster_id, view = read_kraft_view(where.cluster_metadata, where.cluster_id)
        return cluster_id, _with_surviving_settings(view, where.cluster_metadata, broker), {}
    client = client_of(broker, settings, where)
    cluster_id, view = ask_cluster(client)
    if where.cluster_id not in (None, cluster_id):
        raise typer.BadParameter(f"the cluster there is {cluster_id}, not {where.cluster_id}")
    ids: dict[Path, str] = {}
    try:
        known = read_settings(client, memory=SettingsMemory(settings.process.state_directory))
        view = with_hidden(view, client, known.topics)
        view = with_wal_retention(view, known.topics, known.agents.values())
        if broker.node_id in known.agents:
            ids = {Path(path): its for path, its in known.agents[broker.node_id].directory_ids.items()}
    except TopicAbsentError:
        pass  # no agent has ever started
    except KafkaClusterError as error:  # then the ids come from elsewhere, or are new ones
        view = replace(view, settings_unknown="" if where.topic else str(error))
    return cluster_id, with_directories(view, _surviving_kraft_log(broker, cluster_id)), ids


def _with_surviving_settings(view: "ClusterView", metadata_log_dir: Path, broker: "BrokerProperties") -> "ClusterView":
    """Add the WAL's retention, if a copy of the agents' settings topic has survived.

    It may be beside the controllers' log, if that is in a log directory of a broker with a replica, or among the
    broker's own remaining files.
    """
    from kafka_log.broker_files.cluster_metadata import DIRECTORY_NAME
    from kafka_log.errors import LogDirectoryError, MalformedFileError
    from metadata_topic.settings.settings_topic import read_settings_log
    from recovery.cluster_view import with_wal_retention
    from recovery.logs.log_settings import log_settings

    beside = metadata_log_dir.parent if metadata_log_dir.name == DIRECTORY_NAME else metadata_log_dir
    for log_dir in (beside, *broker.log_dirs):
        try:
            settings = read_settings_log(log_dir)
        except (LogDirectoryError, MalformedFileError):
            continue  # then how long the WAL keeps records is not known, and all that the log keeps is looked for
        if settings is not None:
            properties = view.properties_of(broker.node_id, broker.raw)
            retention_ms = log_settings({"cleanup.policy": "delete"}, properties).retention_ms
            defaults = {"retention.ms": str(-1 if retention_ms is None else retention_ms)}
            if (policy := properties.get("log.cleanup.policy")) is not None:
                defaults["cleanup.policy"] = policy
            return with_wal_retention(view, settings.topics, settings.agents.values(), defaults)
    return view


def _surviving_kraft_log(broker: "BrokerProperties", cluster_id: str) -> "ClusterView | None":
    """Read the broker's own metadata.log.dir, if it was not lost with the rest: it has the directories' ids."""
    from kafka_log.broker_files.cluster_metadata import read_cluster_metadata
    from kafka_log.errors import LogDirectoryError, MalformedFileError
    from recovery.cluster_view import from_kraft
    from recovery.logs.log_directory_target import identity_in

    identity = identity_in(broker.metadata_log_dir)
    if identity is None or identity.cluster_id != cluster_id:
        return None
    try:
        return from_kraft(read_cluster_metadata(broker.metadata_log_dir))
    except (LogDirectoryError, MalformedFileError):
        return None


def client_of(broker: "BrokerProperties", settings: "AgentSettings", where: BrokersCluster) -> "KafkaClientConfig":
    """Return the client configuration: by the options, else that of the broker's agent. Raises
    ClusterUnreachableError."""
    if where.bootstrap_server is None:
        return agents_client(broker, settings)
    command_config = where.command_config or settings.client.client_config
    return Connection(where.bootstrap_server, command_config).client_config()


def _by_metadata(
    client: "KafkaClientConfig",
    newest: "Callable[[], NewestSnapshot]",
    storage: "RemoteWalStorageManager",
    archive: "ArchiveStorage | None",
    tell: Tell,
    wanted: "LogFilter",
) -> "Inventory":
    from metadata_topic.topic.topic_session import read_metadata
    from recovery.metadata.inventory import from_metadata

    store, archived = read_metadata(client, newest, tell)
    progress, patience = progress_to(tell), patience_of(tell)
    return from_metadata(store, archived, storage, archive, progress, patience, wanted, is_recovery=True)


def patience_of(tell: Tell) -> "Patience":
    """Return for how long, and how, to retry when stores throttle or are unavailable."""
    import random
    import threading

    from recovery.patience import Patience

    return Patience(threading.Event().wait, random.uniform, tell)


def progress_to(tell: Tell) -> Callable[[str, int], None]:
    """Return a progress callback for readers of many objects."""
    return lambda what, done: tell(f"reading {what}: {done:,}")


@dataclass(frozen=True, slots=True)
class OpenStores:
    """A broker's open stores, and the client for its cluster, which responds."""

    broker: "BrokerProperties"
    client: "KafkaClientConfig"
    cluster_id: str
    storage: "RemoteWalStorageManager"
    archive: "ArchiveStorage | None"
    settings: "AgentSettings"


@contextmanager
def open_stores(where: BrokersCluster) -> Iterator[OpenStores]:
    """Ask the cluster for its id, and open the broker's stores for the block. Raises errors of `OWN_PACKAGES`."""
    from agent.settings_file import read_settings_file
    from agent.stores import StoreSettings
    from kafka_cluster.cluster import KafkaCluster

    broker, settings = read_settings_file(where.broker_config)
    client = client_of(broker, settings, where)
    cluster_id = KafkaCluster(client, "remote-wal-stores", _TIMEOUT_S).listing().cluster_id
    with StoreSettings.of(broker, settings, cluster_id).opened() as (storage, archive):
        yield OpenStores(broker, client, cluster_id, storage, archive, settings)


@contextmanager
def open_metadata(stores: OpenStores, *, may_doubt: bool = False) -> Iterator["TopicSession"]:
    """Read the metadata topic on top of the newest snapshot, for the block. Raises errors of `OWN_PACKAGES`.

    Raises MetadataTopicError also while the topic is in doubt, because it may have lost records; unless `may_doubt`:
    then what the agent remembers of the topic counts, too.
    """
    import time

    from metadata_topic.records.errors import MetadataTopicError
    from metadata_topic.store.snapshots.store_snapshots import TopicMemory
    from metadata_topic.store.store import RemoteWalMetadataStore
    from metadata_topic.topic.topic import METADATA_TOPIC
    from metadata_topic.topic.topic_session import TopicSession, newest_snapshot
    from plugin.remote_wal_storage_manager import blobs_of

    broker, blobs = stores.broker, blobs_of(stores.storage, "read", "metadata snapshots")
    newest = newest_snapshot(blobs, stores.cluster_id)
    store, state_directory = RemoteWalMetadataStore(), stores.settings.process.state_directory
    if may_doubt and (remembered := TopicMemory(state_directory).load()) is not None:
        store.topic.remember(remembered)
    with TopicSession(stores.client, broker.node_id, time.monotonic, broker.rack, store, newest=newest) as session:
        if (doubts := session.store.topic.doubts) and not may_doubt:
            found = "it may lack records (" + "; ".join(doubts.values()) + ")"
            raise MetadataTopicError("read", METADATA_TOPIC, found, "remote-wal metadata rebuild first")
        yield session

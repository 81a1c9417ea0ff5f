"""The cluster's data for rebuilding a broker's log directories: names, replicas, settings, directory ids.

Objects name topics only by id. The names, the replicas, and the directories' ids are in KRaft's metadata: in a
`__cluster_metadata-0` of any remaining controller or broker (`from_kraft`), or a living cluster gives them
(`ask_cluster`; directory ids then come from the agents' registrations).
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import EARLIEST, LATEST, KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import (
    NO_LEADER_TO_ASK,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    DescribedTopic,
    Responses,
    error_text,
)
from kafka_log.broker_files.cluster_metadata import DIRECTORY_NAME, KRaftImage, read_cluster_metadata
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405.tiered_offsets import TIER_SETTINGS, TieredOffsets, TierFollower
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings, settings_of
from metadata_topic.settings.wal_retention import NO_LIMIT, AgentsRetention, local_retention_ms
from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_consumer import ConsumerFactory
from metadata_topic.topic.topic_follower import ONE_LOOK
from recovery.errors import UnknownClusterError
from recovery.logs.log_directory_target import identity_in

K = TypeVar("K")
V = TypeVar("V")

_CLIENT_ID = "remote-wal-recover"
_REQUEST_TIMEOUT_S = 10.0
_ATTEMPTS = 5
_RESERVED_IDS = "A" * 20
"""Prefix of ids that stand for no directory: unassigned, lost, migrating (org.apache.kafka.common.DirectoryId)."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A partition's replicas, leader and in-sync replicas."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    """-1 when there is none."""
    leader_epoch: int = -1
    """-1 when unknown."""
    directories: tuple[str, ...] = ()
    """Ids of the replicas' log directories; empty when unknown."""
    eligible: tuple[int, ...] = ()
    """Brokers not in sync that may still be elected (KIP-966); empty when unknown."""
    log_start: int | None = None
    """The log's start according to its leader; None without an answer."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic that exists: its name, settings and partitions."""

    name: str
    topic_id: TopicId
    config: Mapping[str, str | None]
    """Its own settings, or all effective ones."""
    partitions: Mapping[int, ReplicaSet]
    stored_ms: int | None = None
    """How long its records are kept in combined segments; None: as long as in the log, or unknown."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The topics, replicas and directory ids of a cluster at one time."""

    topics: Mapping[TopicId, TopicView]
    directories: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Known ids of the brokers' log directories, by broker."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why topics are left out of which too little is told to plan their logs, by name. Some are among `topics`."""
    names: Collection[str] = ()
    """All that a living cluster lists, whatever of them was asked for."""
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """`KRaftImage.broker_configs`; empty for a living cluster, whose topics' settings are effective ones."""
    settings_unknown: str = ""
    """Why the agents' settings are not known, and so not which topics Kafka hides from this client."""

    def replicas_of(self, broker_id: int) -> list[TopicIdPartition]:
        """Return the partitions of which a broker has a replica."""
        return [
            TopicIdPartition(topic.topic_id, number)
            for topic in self.topics.values()
            for number, partition in sorted(topic.partitions.items())
            if broker_id in partition.replicas
        ]

    def name_of(self, partition: TopicIdPartition) -> str:
        """Return `topic-partition`. Raises KeyError."""
        return f"{self.topics[partition.topic_id].name}-{partition.partition}"

    def properties_of(self, broker_id: int, file: Mapping[str, str]) -> Mapping[str, str]:
        """Return a broker's settings: what was set at runtime counts before its server.properties."""
        own, default = (self.broker_configs.get(name, {}) for name in (str(broker_id), ""))
        return {**file, **default, **own}

    def directories_of(self, broker_id: int) -> tuple[str, ...]:
        """Return the ids of the broker's log directories: as registered, else as its replicas are assigned to them."""
        if broker_id in self.directories:
            return self.directories[broker_id]
        assigned = {self.directory_of(partition, broker_id) for partition in self.replicas_of(broker_id)}
        return tuple(sorted(known for known in assigned if known and not known.startswith(_RESERVED_IDS)))

    def directory_of(self, partition: TopicIdPartition, broker_id: int) -> str | None:
        """Return the id of the log directory with the broker's replica; None when unknown."""
        replicas = self.topics[partition.topic_id].partitions[partition.partition]
        if broker_id not in replicas.replicas or len(replicas.directories) != len(replicas.replicas):
            return None
        return replicas.directories[replicas.replicas.index(broker_id)]


def from_kraft(image: KRaftImage) -> ClusterView:
    """Return the view in an image of the controllers' log."""
    topics = {
        topic.topic_id: TopicView(
            topic.name,
            topic.topic_id,
            dict(image.topic_configs.get(topic.name, {})),
            {
                number: ReplicaSet(
                    known.replicas,
                    known.in_sync,
                    known.leader,
                    known.leader_epoch,
                    known.directories,
                    known.eligible or (() if known.in_sync else known.last_known),
                )
                for number, known in topic.partitions.items()
            },
        )
        for topic in image.topics.values()
    }
    return ClusterView(topics, dict(image.directories), broker_configs=image.broker_configs)


def read_kraft_view(directory: Path, cluster_id: str | None) -> tuple[str, ClusterView]:
    """Return the cluster's id and view from a metadata.log.dir, or a copy of its `__cluster_metadata-0`.

    `cluster_id` is needed where no meta.properties is beside it. Raises UnknownClusterError, LogDirectoryError,
    MalformedFileError.
    """
    identity = identity_in(directory.parent if directory.name == DIRECTORY_NAME else directory)
    known = identity.cluster_id if identity is not None else None
    if cluster_id is not None and known not in (None, cluster_id):
        raise UnknownClusterError("read cluster metadata", str(directory), f"is of cluster {known}, not {cluster_id}")
    if (known or cluster_id) is None:
        raise UnknownClusterError(
            "read cluster metadata",
            str(directory),
            "there is no meta.properties beside it",
            "give --cluster-id, in Spark clusterId",
        )
    return known or cluster_id or "", from_kraft(read_cluster_metadata(directory))


def with_directories(view: ClusterView, kraft: ClusterView | None) -> ClusterView:
    """Return a living cluster's view with directory ids from a copy of the controllers' log, maybe older."""
    if kraft is None:
        return view
    topics = {}
    for topic_id, topic in view.topics.items():
        older = kraft.topics[topic_id].partitions if topic_id in kraft.topics else {}
        partitions = {
            number: replace(
                now,
                leader_epoch=older[number].leader_epoch,
                directories=older[number].directories if older[number].replicas == now.replicas else (),
            )
            if number in older
            else now
            for number, now in topic.partitions.items()
        }
        topics[topic_id] = replace(topic, partitions=partitions)
    return replace(view, topics=topics, directories=kraft.directories)


def with_wal_retention(
    view: ClusterView,
    settings: Mapping[str, TopicSettings],
    agents: Iterable[AgentRegistration],
    defaults: Mapping[str, str] | None = None,
) -> ClusterView:
    """Return the view with each topic's retention in combined segments: the longest of the agents'.

    `defaults` apply to topics without settings of their own, if the view has no others.
    """
    retention = AgentsRetention.registered(agents)

    def stored_ms(topic_id: TopicId, topic: TopicView) -> int | None:
        config = {**(defaults or {}), **topic.config}
        if local_retention_ms(config) is None:
            return None
        factor = min((len(one.replicas) for one in topic.partitions.values()), default=0)
        kept_ms = retention.longest_of(settings_of(settings, topic.name, topic_id), factor, NO_LIMIT).retention_ms
        return None if kept_ms == NO_LIMIT else kept_ms

    topics = {topic_id: replace(topic, stored_ms=stored_ms(topic_id, topic)) for topic_id, topic in view.topics.items()}
    return replace(view, topics=topics)


@retry(retry=retry_if_exception_type(UnknownClusterError), stop=stop_after_attempt(_ATTEMPTS), reraise=True)
def ask_cluster(client: KafkaClientConfig, names: Collection[str] | None = None) -> tuple[str, ClusterView]:
    """Return the cluster's id and its own view, of topics with these names or of all. Blocks.

    Topics that this client may not ask about are left out, and named. Raises UnknownClusterError.

    Just after a broker's death the others may still name it as the one to ask, and the client waits for it without
    result; a new client asks another one.
    """
    cluster = KafkaCluster(client, _CLIENT_ID, _REQUEST_TIMEOUT_S)
    try:
        listing = cluster.listing()
        wanted = sorted(listing.topics if names is None else listing.topics.keys() & set(names))
        if not wanted:
            return listing.cluster_id, ClusterView({}, names=listing.topics.keys())
        described, left_out = [], dict[str, str]()
        for topic in cluster.topics(wanted):
            if not topic.error_code:
                described.append(topic)
            elif topic.error_code != UNKNOWN_TOPIC_OR_PARTITION:  # else it was deleted since
                left_out[topic.name] = error_text(topic.error_code)
        eligible = _eligible_leaders(cluster, described)
        shared = {
            (topic.name, one.partition)
            for topic in described
            for one in topic.partitions
            if one.leader_id >= 0 and len(one.replicas) > 1
        }
        log_starts_asked = cluster.offsets(shared, EARLIEST)
        configs, refused = _told(cluster.topic_configurations([topic.name for topic in described]))
        log_starts, unanswered = _told(log_starts_asked)  # a leader may go while it is asked
        left_out |= refused | {where[0]: why for where, why in unanswered.items()}
    except KafkaClusterError as error:
        hint = "is this its address? When no broker is left, give --cluster-metadata, in Spark clusterMetadata"
        raise UnknownClusterError("ask cluster", client.bootstrap_servers, error.reason, hint) from error
    topics = {
        topic.topic_id: TopicView(
            topic.name,
            topic.topic_id,
            configs.get(topic.name, {}),
            {
                one.partition: ReplicaSet(
                    one.replicas,
                    one.isr,
                    one.leader_id,
                    eligible=eligible.get((topic.name, one.partition), ()),
                    log_start=log_starts.get((topic.name, one.partition)),
                )
                for one in topic.partitions
            },
        )
        for topic in described
    }
    return listing.cluster_id, ClusterView(topics, left_out=left_out, names=listing.topics.keys())


def is_empty(client: KafkaClientConfig, topic: TopicView) -> bool:
    """Return whether each partition has a leader that says that its log is empty. Blocks. Raises
    UnknownClusterError."""
    asked = [(topic.name, number) for number in topic.partitions]
    cluster = KafkaCluster(client, _CLIENT_ID, _REQUEST_TIMEOUT_S)  # it answers for as long as it is held
    try:
        (starts, _), (ends, _) = (_told(cluster.offsets(asked, at)) for at in (EARLIEST, LATEST))
    except KafkaClusterError as error:
        raise UnknownClusterError("ask cluster", client.bootstrap_servers, error.reason) from error
    return starts == ends and len(ends) == len(asked)


def with_hidden(view: ClusterView, client: KafkaClientConfig, known: Mapping[str, TopicSettings]) -> ClusterView:
    """Return the view without those of the known topics that Kafka may have and does not show to this client.

    Raises KafkaClusterError.
    """
    cluster = KafkaCluster(client, _CLIENT_ID, _REQUEST_TIMEOUT_S)
    ids = {name: one.topic_id for name, one in known.items() if one.topic_id not in (None, *view.topics)}
    denied = (one.name for one in cluster.topics(sorted(ids)) if one.error_code == TOPIC_AUTHORIZATION_FAILED)
    names = {topic_id: name for name in denied if (topic_id := ids[name]) is not None}
    witness = next((one.topic_id for one in view.topics.values() if one.name == METADATA_TOPIC), None)
    hidden = cluster.maybe_there(names.keys(), witness)
    told = error_text(TOPIC_AUTHORIZATION_FAILED)
    return replace(view, left_out={**{names[one]: told for one in hidden}, **view.left_out})


def _told(answers: Responses[K, V]) -> tuple[dict[K, V], dict[K, str]]:
    """Return the answers, and why others were refused, apart from deleted topics and partitions without a leader.

    Raises KafkaClusterError if nobody answers.
    """
    found, refused = dict[K, V](), dict[K, str]()
    for key, answer in answers.each():
        if not isinstance(answer, KafkaClusterError):
            found[key] = answer
        elif answer.code is None:
            raise answer
        elif answer.code not in (*NO_LEADER_TO_ASK, UNKNOWN_TOPIC_OR_PARTITION):
            refused[key] = answer.reason
    return found, refused


def read_tier(
    client: KafkaClientConfig, timeout_s: float, consumer_factory: ConsumerFactory | None = None
) -> TieredOffsets | None:
    """Return what KIP-405's tier holds, by Kafka's own metadata topic; None if that cannot be read to its end. Blocks.

    It gives up when reading has not advanced for `timeout_s`. A record that cannot be decoded may be a segment's, so
    then nothing is known either.
    """
    tier = TieredOffsets()
    settings = replace(ONE_LOOK, absence_check_ms=TIER_SETTINGS.absence_check_ms)
    follower = TierFollower(client, tier, settings, consumer_factory=consumer_factory)
    follower.start()
    reached: dict[int, int] = {}
    try:
        while not (is_ready := follower.wait_until_ready(timeout_s)) and follower.positions != reached:
            reached = follower.positions
        is_read = is_ready and follower.is_there
    finally:
        follower.close()
    is_understood = not any(name.startswith("unknown_") for name in tier.counters)
    return tier if is_read and is_understood else None


def _eligible_leaders(
    cluster: KafkaCluster, topics: Iterable[DescribedTopic]
) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return who may be elected in topics that have a partition without a leader.

    Empty where the brokers are too old to say, or the login does not allow it.
    """
    names = [topic.name for topic in topics if any(one.leader_id < 0 for one in topic.partitions)]
    if not names:
        return {}
    with suppress(KafkaClusterError):
        return cluster.eligible_leaders(names)
    return {}

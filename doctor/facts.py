"""The facts for the checks. A fact that could not be got is `Unknown`, with the reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from agent.settings.agent_settings import AgentSettings
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint
from metadata_topic.settings.topic_settings import AgentRegistration
from metadata_topic.settings.wal_retention import KeptFor
from plugin.errors import in_words

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands for a fact that could not be determined, with the reason."""

    reason: str


class UnknownFactError(Exception):
    """A check needs a fact that could not be determined; the message is the reason."""


def known(fact: T | Unknown) -> T:
    """Return the fact. Raises UnknownFactError if it is unknown, which ends the check."""
    if isinstance(fact, Unknown):
        raise UnknownFactError(fact.reason)
    return fact


def get_fact(get: Callable[[], T | Unknown]) -> T | Unknown:
    """Return what `get` returns. If it fails, return an unknown fact, so that other checks still run."""
    try:
        return get()
    except Exception as error:
        return Unknown(in_words(error))


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Another clock's time, read between two times of this host's clock; all in milliseconds since 1970."""

    before_ms: int
    after_ms: int
    remote_ms: int
    resolution_ms: int
    """The other clock's time may be later by less than this."""

    @property
    def skew_ms(self) -> int:
        """By how much the other clock is ahead, at least, in ms (negative: behind); 0 when both may agree."""
        if self.remote_ms > self.after_ms:
            return self.remote_ms - self.after_ms
        return min(0, self.remote_ms + self.resolution_ms - self.before_ms)


@dataclass(frozen=True, slots=True)
class MetadataTopic:
    """The configuration and replicas of `__remote_wal_log_metadata`."""

    config: Mapping[str, str]
    replicas: int
    """Replicas of the partition with the fewest."""


@dataclass(frozen=True, slots=True)
class EnabledTopic:
    """A topic that replicates through object storage."""

    local_retention_ms: int | None
    """-1: for ever; None: unknown."""
    has_long_term_tier: bool
    """KIP-405's remote storage, or the archive."""
    is_hidden: bool = False
    """The agents' client may not describe it."""
    kept: KeptFor | None = None
    """How long objects are kept, by the agent that keeps them longest; None: unknown."""
    metadata_ms: int | None = None
    """How long the metadata of its objects is needed: as `kept` with a replica out of sync, but until the tier's
    retention ends; -1: for ever; None: unknown."""
    is_archived: bool = False
    grows: bool = False
    """Its objects are never deleted, although nobody asked for that: they are kept as long as the log, which is only
    compacted."""
    is_durable: bool = False
    """Producers are answered once their records are stored."""
    replicas: int = 0
    """Replicas of the partition with the fewest; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The living brokers and the metadata topic, as Kafka reports them."""

    broker_ids: frozenset[int]
    metadata_topic: MetadataTopic | Unknown
    settings_config: Mapping[str, str] | Unknown = Unknown("it was not asked for")
    """The configuration of `__remote_wal_topic_settings`."""


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A request to the store that failed while it was probed."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Store:
    """What writing, listing, reading and deleting a probe object showed about the object store."""

    failures: Mapping[str, StepFailure]
    """By step: open, put, list, get, delete. Steps after the first failure were left out, except delete."""
    refuses_overwriting: bool | Unknown
    clock: ClockReading | Unknown
    other_clusters: frozenset[str] | Unknown
    """Clusters whose objects are under the same prefix."""
    keys_looked_at: int = 0
    looked_at_all: bool = True
    keeps_versions: bool | Unknown | None = None
    """Whether the bucket keeps deleted objects; None: this kind of store cannot be asked."""


@dataclass(frozen=True, slots=True)
class AgentResponse:
    """A registered agent's response over HTTP."""

    cluster_id: str
    gaps: tuple[str, ...] = ()
    """Offsets of its led partitions that no object holds or will hold."""
    held: tuple[str, ...] = ()
    """Records that these partitions lost and object storage holds, each with the commands that decide about it."""


@dataclass(frozen=True, slots=True)
class Host:
    partitions: int | Unknown
    """How many partition directories the broker has."""
    max_user_watches: int | Unknown
    open_files: int | Unknown
    open_files_of: str
    """The process that has this limit."""
    leader_history: Unknown | None = None
    """Why this broker's copy of the controllers' log cannot be read; None: it can."""


@dataclass(frozen=True, slots=True)
class BrokerTlsFacts:
    """What a TLS connection between this agent and its own broker showed."""

    unnamed: tuple[str, ...]
    """Hosts that brokers advertise, as far as known here, that the agent's certificate does not name."""
    refusal: str | None
    """Why the broker's own listener does not answer this agent; None: it does."""


@dataclass(frozen=True, slots=True)
class Facts:
    broker: BrokerProperties
    settings: AgentSettings
    cluster: Cluster | Unknown
    topics: Mapping[str, EnabledTopic] | Unknown
    store: Store | Unknown
    peers: Mapping[int, str | None]
    """By broker id, why its agent's peer listener does not answer; None: it does."""
    agents: Mapping[int, AgentResponse | Unknown] | Unknown
    host: Host
    bypass: Mapping[int, str | None]
    """By broker id, why its own bypass listener does not answer; None: it does."""
    other_buckets: Mapping[str, Store | Unknown] = field(default_factory=dict)
    """With a bucket for each zone, those of the other zones by name; `store` is that of this broker's zone."""
    zones: Mapping[int, str | None] | Unknown = field(default_factory=lambda: Unknown("the cluster was not asked"))
    """Zones of the living brokers, if the zone gateway is on."""
    ways: Mapping[str, Mapping[int, Endpoint] | Unknown] = field(default_factory=dict)
    """By each bootstrap server of the agent, the brokers' addresses there, if the zone gateway is on."""
    registered: Mapping[int, AgentRegistration] = field(default_factory=dict)
    """The registered agents of brokers that were not decommissioned; empty if the registrations were not read."""
    names: Mapping[str, tuple[str, ...] | Unknown] = field(default_factory=dict)
    """The advertised names of other zones' gateways, and the addresses that each resolves to here."""
    replica_hosts: Mapping[str, tuple[str, ...] | Unknown] = field(default_factory=dict)
    """The hosts that brokers advertise to each other, as far as known here, and the addresses that each resolves to."""
    broker_tls: BrokerTlsFacts | Unknown | None = None
    """None: the inter-broker listener has no TLS."""
    broker_silence: str | None = None
    """Why this host's broker takes no connection at any of its listeners; None: it does."""
    certificates: Mapping[str, float | Unknown] = field(default_factory=dict)
    """Days left for the agent's own and its authorities' certificates, by the keys that name their files."""

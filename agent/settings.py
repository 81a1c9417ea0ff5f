"""The agent's settings, from the broker's own server.properties.

An unmodified broker passes over keys that it does not know, so one file configures both. The keys of KIP-1176 keep
their names, and ours follow its style. `docs/configuration.md` is generated from the models here.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field

from plugin.loading import (
    DEFAULT_ARCHIVE_CLASS_NAME,
    DEFAULT_ARCHIVE_IMPL_PREFIX,
    DEFAULT_CLASS_NAME,
    DEFAULT_IMPL_PREFIX,
)
from replication.wire.peer_connection import Address

OUR_PREFIXES = ("remote.wal.", "remote.log.wal.")
MAX_PORT = 65535
MAX_ARCHIVE_RUNS = 4096


class AgentSettingsError(Exception):
    """A key of server.properties is missing or wrong; the message names file and key."""


def parse_address(value: object) -> object:
    """`host:port`, with IPv6 addresses in brackets."""
    if not isinstance(value, str):
        return value
    host, colon, port = value.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= MAX_PORT:
        raise ValueError(f"{value!r} is not host:port")
    return Address(host.strip("[]"), int(port))


def parse_peers(value: object) -> object:
    """`1@host:port,2@host:port`: the agents by broker id."""
    if not isinstance(value, str):
        return value
    peers: dict[int, object] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        broker_id, at, address = item.partition("@")
        if not at or not broker_id.isdecimal():
            raise ValueError(f"{item!r} is not <broker id>@<host>:<port>")
        if int(broker_id) in peers:
            raise ValueError(f"broker {int(broker_id)} is named twice")
        peers[int(broker_id)] = parse_address(address)
    return peers


AddressSetting = Annotated[Address, BeforeValidator(parse_address)]
PeersSetting = Annotated[dict[int, Address], BeforeValidator(parse_peers)]
SecurityProtocol = Literal["SSL", "SASL_SSL", "PLAINTEXT", "SASL_PLAINTEXT"]


def key_of(field_name: str) -> str:
    return field_name.replace("_", ".")


class AgentSettings(BaseModel):
    """All keys that the agent knows; `remote_wal_x` is `remote.wal.x` in the file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        alias_generator=AliasGenerator(alias=key_of),
        hide_input_in_errors=True,
    )

    remote_log_wal_storage_system_enable: bool = Field(
        False, description="Whether the agent uploads and links at all (KIP-1176). Off, it relays everything as it is."
    )
    remote_log_wal_storage_manager_class_name: str = Field(
        DEFAULT_CLASS_NAME, description="The RemoteWalStorageManager, a dotted class name (KIP-1176)."
    )
    remote_log_wal_storage_manager_class_path: str | None = Field(
        None, description="A directory that is added to the import path for that class (KIP-1176)."
    )
    remote_log_wal_storage_manager_impl_prefix: str = Field(
        DEFAULT_IMPL_PREFIX, description="What the storage manager's own keys begin with (KIP-1176)."
    )
    remote_wal_log_manager_thread_pool_size: int = Field(
        2,
        ge=1,
        le=64,
        description="Threads that read active segments, the RLMWalTasks (KIP-1176), where a disk may "
        "have to be waited for; what is in memory is read without them.",
    )
    remote_wal_log_manager_combiner_thread_pool_size: int = Field(
        4, ge=1, le=64, description="Threads of RLMWalCombineTask: so many uploads may be under way (KIP-1176)."
    )
    remote_wal_log_manager_combiner_queue_size: int = Field(
        4096, ge=1, description="Items that remoteSegmentQ holds at most (KIP-1176)."
    )
    remote_wal_log_manager_combiner_queue_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="Bytes that remoteSegmentQ holds at most, besides those that are being uploaded.",
    )
    remote_wal_log_manager_combiner_task_interval_ms: int = Field(
        25,
        ge=1,
        description="How often an object is uploaded for links (KIP-1176). While much is appended, it may be two "
        "intervals, or less when producers wait; while little is appended, with the policy always, an upload begins "
        "when none is under way.",
    )
    remote_wal_log_manager_combiner_task_upload_bytes: int = Field(
        4 * 1024 * 1024, ge=1024, le=1024**3, description="How large an object becomes at most (KIP-1176)."
    )
    remote_wal_log_manager_task_interval_ms: int = Field(
        60_000, ge=100, description="How often a partition is looked at without any sign of an append."
    )
    remote_wal_log_manager_task_retry_interval_ms: int = Field(
        200, ge=1, description="The first back-off after a failed upload or read; it doubles with each failure."
    )
    remote_wal_log_manager_task_retry_interval_max_ms: int = Field(
        10_000, ge=1, description="The longest back-off after a failed upload or read."
    )
    remote_wal_log_manager_upload_timeout_ms: int = Field(
        60_000,
        ge=1,
        description="An upload that the storage manager has not ended by then counts as failed, whatever its own "
        "deadlines; keep it above its total.timeout.ms.",
    )
    remote_wal_upload_lag_alarm_ms: int = Field(
        60_000,
        ge=1000,
        description="From this age of the oldest record on that is not stored, /readyz and the log say so.",
    )
    remote_wal_store_puts_per_minute: int = Field(
        15_000,
        ge=1,
        description="What the store is sent at most in a minute that is priced as a PUT (PUT, LIST), without the "
        "archive's. A bound on spending, far above ordinary use; beyond it all goes inline until the minute is over.",
    )
    remote_wal_store_gets_per_minute: int = Field(
        45_000, ge=1, description="The same for what is priced as a GET (GET, HEAD)."
    )
    remote_wal_log_manager_open_files: int = Field(1024, ge=16, description="Segment files that are kept open at most.")
    remote_wal_log_manager_copy_max_bytes_per_second: int | None = Field(
        None,
        ge=1024,
        description="What is uploaded at most; the rest goes inline (KIP-956 has such a key). No quota by default.",
    )
    remote_wal_log_manager_backlog_max_bytes_per_second: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        description="What is uploaded at most, beside uploads for links, of logs that were passed over as they were "
        "far behind: after the store was away for long, what is new is stored and linked first.",
    )
    remote_wal_archive_interval_ms: int = Field(
        1000, ge=1, description="How often an object is uploaded while linking would cost more than the zone border."
    )
    remote_wal_archive_enable: bool = Field(
        False,
        description="Whether this agent merges combined segments into archive objects, for topics with the key of the "
        "same name. Not to be mixed up with remote.wal.archive.interval.ms.",
    )
    remote_wal_archive_storage_manager_class_name: str = Field(
        DEFAULT_ARCHIVE_CLASS_NAME, description="The archive's storage manager, one of those that store objects."
    )
    remote_wal_archive_storage_manager_class_path: str | None = Field(
        None, description="A directory that is added to the import path for that class."
    )
    remote_wal_archive_storage_manager_impl_prefix: str = Field(
        DEFAULT_ARCHIVE_IMPL_PREFIX, description="What the archive's storage manager's own keys begin with."
    )
    remote_wal_archive_object_min_bytes: int = Field(
        16 * 1024 * 1024, ge=1, description="From how many bytes on a partition's records become an archive object."
    )
    remote_wal_archive_object_max_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        le=1024**3,
        description="How large an archive object becomes at most. One is made at a time, and held in memory twice.",
    )
    remote_wal_archive_object_max_age_ms: int = Field(
        3_600_000, ge=1000, description="The age from which on records are archived although they are few."
    )
    remote_wal_archive_object_run_bytes: int = Field(
        1024 * 1024,
        ge=1024,
        description="The length of the runs in an archive object: what a reader reads and checks at once.",
    )
    remote_wal_archive_bytes_per_second: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        description="What the archive reads and writes together at most, so that uploads are not delayed.",
    )
    remote_wal_archive_thread_pool_size: int = Field(
        2, ge=1, le=64, description="Threads of the archive: so many combined segments are read at a time."
    )
    remote_wal_archive_task_interval_ms: int = Field(
        60_000, ge=100, description="How often a partition's archive is looked at when there was nothing to do."
    )
    remote_wal_archive_task_retry_interval_ms: int = Field(
        1000, ge=1, description="The first back-off after the archive failed; it doubles with each failure."
    )
    remote_wal_archive_task_retry_interval_max_ms: int = Field(
        300_000, ge=1, description="The longest back-off after the archive failed."
    )
    remote_wal_archive_prepared_ttl_ms: int = Field(
        3_600_000, ge=1000, description="After this time an archive object that was never committed is deleted."
    )
    remote_wal_archive_care_interval_ms: int = Field(
        30_000, ge=100, description="How often archive objects are looked for that may go, or whose time it is."
    )
    remote_wal_archive_delete_grace_ms: int = Field(
        600_000, ge=1000, description="How long an archive object stays after it was marked as to be deleted."
    )
    remote_wal_link_latency_bound_ms: int = Field(
        20,
        ge=1,
        description="For topics with the policy latency and no bound of their own: links are used while upload and "
        "read together take no longer.",
    )
    remote_wal_link_wait_max_ms: int = Field(
        500,
        ge=1,
        description="How long a follower's fetch waits for its links before the bytes go inline. Keep it far below "
        "replica.lag.time.max.ms.",
    )
    remote_wal_link_gather_max_ms: int = Field(
        25,
        ge=0,
        description="For how long the broker is asked to gather what a follower's fetch gets, while much is uploaded: "
        "the request's max wait and min bytes are set accordingly. 0: requests stay as they are.",
    )
    remote_wal_link_remote_followers: int = Field(
        2, ge=1, description="Followers in other zones, for the break-even size of an object."
    )
    remote_wal_prices_file: Path | None = Field(
        None, description="A price table in TOML, in the place of the one that comes with the project."
    )
    remote_wal_hydration_thread_pool_size: int = Field(
        8, ge=1, le=256, description="Threads that read ranges of objects for the local broker."
    )
    remote_wal_hydration_cache_bytes: int = Field(
        128 * 1024 * 1024, ge=1024 * 1024, description="Bytes of objects that are cached or being read."
    )
    remote_wal_hydration_timeout_ms: int = Field(
        1000, ge=1, description="How long a response waits for object storage before its bytes are asked for inline."
    )
    remote_wal_catch_up_read_ahead_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024 * 1024,
        description="How far the agents read ahead of a follower that is far behind, for each of its connections.",
    )
    remote_wal_catch_up_fetch_max_bytes_per_second: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="What is read from objects at most while the local broker is far behind (as KIP-956's key for "
        "fetches). What is beyond waits for half of remote.wal.hydration.timeout.ms, and is then asked for inline.",
    )
    remote_wal_catch_up_thread_pool_size: int = Field(
        4, ge=1, le=256, description="Threads that read ranges of objects while the local broker is far behind."
    )
    remote_wal_log_metadata_topic_num_partitions: int = Field(
        12, ge=1, description="Partitions of __remote_wal_log_metadata, when it is made."
    )
    remote_wal_log_metadata_topic_replication_factor: int = Field(
        3, ge=1, description="Replication factor of the agents' topics, when they are made."
    )
    remote_wal_log_metadata_topic_retention_ms: int = Field(
        691_200_000,
        ge=60_000,
        description="Retention of __remote_wal_log_metadata; longer than any local.retention.ms, which is retention.ms "
        "(7 days) unless a topic says otherwise.",
    )
    remote_wal_log_metadata_unpublished_max_ms: int = Field(
        60_000,
        ge=1000,
        description="How long metadata may wait to be published. Then all goes inline, nothing is uploaded, and "
        "/readyz says why, until it can be published again.",
    )
    remote_wal_log_metadata_snapshot_interval_ms: int = Field(
        600_000,
        ge=1000,
        description="How often a changed metadata store is saved to object storage, for a quick start.",
    )
    remote_wal_usage_interval_ms: int = Field(
        600_000,
        ge=1000,
        description="How often the agent writes into the metadata topic what it has moved and asked for, for the costs "
        "in reports. At each multiple of it, by the clock.",
    )
    remote_wal_expiration_task_interval_ms: int = Field(
        5000, ge=10, description="How often objects are looked for that may go, and deleted when it is their time."
    )
    remote_wal_expiration_delete_grace_ms: int = Field(
        60_000,
        ge=0,
        description="How long after DELETE_SEGMENT_STARTED an object is still there for links given before. A follower "
        "that comes later gets its bytes inline. Keep it above replica.socket.timeout.ms.",
    )
    remote_wal_expiration_deletes_per_second: int = Field(
        200, ge=1, description="Objects deleted at most in a second; more than the agent uploads."
    )
    remote_wal_expiration_topic_gone_ms: int = Field(
        300_000, ge=0, description="How long a topic must be missing from the cluster before its records may go."
    )
    remote_wal_expiration_cluster_interval_ms: int = Field(
        30_000, ge=100, description="How often topics, their retention and log start offsets are asked for."
    )
    remote_wal_uncommitted_ttl_ms: int = Field(
        600_000,
        ge=1000,
        description="Age at which an object goes that was begun and never finished, or that has no metadata. Far above "
        "the storage manager's total.timeout.ms.",
    )
    remote_wal_orphans_interval_ms: int = Field(
        21_600_000, ge=1000, description="How often the store's listing is held against the metadata."
    )
    remote_wal_orphans_heal_enable: bool = Field(True, description="Whether what that finds is healed, or only told.")
    remote_wal_orphans_heal_max_percent: float = Field(
        5.0,
        ge=0,
        le=100,
        description="Where healing would delete or forget more than this share of a broker's objects, it waits for "
        "remote-wal orphans --heal --confirm.",
    )
    remote_wal_orphans_heal_min_objects: int = Field(
        100, ge=0, description="So many objects are healed whatever their share is."
    )
    remote_wal_failover_check_interval_ms: int = Field(
        10_000,
        ge=100,
        description="How often entries of older leaders are looked for that the led partitions' logs do not have; also "
        "done when leadership changes.",
    )
    remote_wal_node_takeover_ms: int = Field(
        3_600_000, ge=1000, description="How long a broker must be missing before another agent cares for its objects."
    )
    remote_wal_agent_peer_listener: AddressSetting = Field(
        Address("127.0.0.1", 19090), description="Where other agents connect: host:port. Not loopback only with TLS."
    )
    remote_wal_agent_peers: PeersSetting = Field(
        default_factory=dict, description="The agents' peer listeners: <broker id>@<host>:<port>, by commas."
    )
    remote_wal_agent_replica_listen_host: str = Field(
        "127.0.0.1", description="Where the broker's replica fetchers dial, as its peers advertise it."
    )
    remote_wal_agent_replica_port_base: int = Field(
        19900,
        ge=1,
        le=MAX_PORT,
        description="Broker <id>'s advertised inter-broker port is this plus <id>; the agent listens there for it.",
    )
    remote_wal_agent_http_listener: AddressSetting = Field(
        Address("127.0.0.1", 19095), description="Metrics, health and state over plain HTTP: host:port."
    )
    remote_wal_agent_http_plaintext_accepted: bool = Field(
        False,
        description="Accepts that the HTTP listener may be reached from other hosts, unencrypted and without a login.",
    )
    remote_wal_agent_bootstrap_servers: str | None = Field(
        None, description="How the agent itself reaches Kafka; by default the broker's first client listener."
    )
    remote_wal_agent_client_config: Path | None = Field(
        None, description="A Java client's properties file for that connection (security.protocol, sasl.*, ssl.*)."
    )
    remote_wal_agent_state_directory: Path = Field(
        Path("/var/lib/remote-wal"), description="For the lock that keeps a second agent away; not a log directory."
    )
    remote_wal_agent_shutdown_timeout_ms: int = Field(
        10_000, ge=0, description="How long a graceful stop may upload and publish what is left."
    )
    remote_wal_agent_memory_bytes: int = Field(
        1024**3,
        ge=64 * 1024 * 1024,
        description="The memory of the whole process. What queue, uploads, caches and archive may take by their own "
        "settings is taken off; the rest is for frames, and while it is used up, sockets are not read.",
    )
    remote_wal_agent_watchdog_timeout_ms: int = Field(
        10_000,
        ge=0,
        description="An agent whose event loop stands still for longer ends with the stacks of its threads in the log, "
        "to be started anew. Far below replica.lag.time.max.ms; 0: never.",
    )
    remote_wal_agent_leadership_interval_ms: int = Field(
        5000, ge=100, description="How often leadership is asked for without any sign of a change."
    )
    remote_wal_agent_plaintext_enable: bool = Field(
        False, description="Whether the peer listener may be reached from other hosts without TLS."
    )
    remote_wal_agent_plain_connections_enable: bool = Field(
        True, description="Whether followers without an agent may connect; they get everything inline."
    )
    remote_wal_agent_bypass: PeersSetting = Field(
        default_factory=dict,
        description="Listeners of the brokers themselves, by which an agent gets past another one that is dead: "
        "<broker id>@<host>:<port>, by commas. Without it, a dead agent's broker is not replicated from.",
    )
    remote_wal_agent_bypass_security_protocol: SecurityProtocol = Field(
        "SSL",
        description="What these listeners speak. SSL: the agent shows the certificate below. SASL: unless the local "
        "broker logs in itself, the agent does so as its Kafka client (PLAIN, SCRAM).",
    )
    remote_wal_agent_bypass_plaintext_accepted: bool = Field(
        False,
        description="Accepts that records and requests cross the network unencrypted on these listeners, and that "
        "without SASL everybody who reaches one may act as a broker.",
    )
    remote_wal_agent_bypass_after_ms: int = Field(
        3000, ge=100, description="How long an agent must have been asked in vain before it is bypassed."
    )
    remote_wal_agent_bypass_return_after_ms: int = Field(
        10_000,
        ge=100,
        description="How long an agent must have answered all probes before it is used again; twice as long, and so "
        "on, where it did not stay the last time.",
    )
    remote_wal_agent_bypass_ssl_certificate_file: Path | None = Field(
        None, description="PEM certificate for these listeners; by default remote.wal.agent.ssl.certificate.file."
    )
    remote_wal_agent_bypass_ssl_key_file: Path | None = Field(
        None, description="Its private key; by default remote.wal.agent.ssl.key.file."
    )
    remote_wal_agent_bypass_ssl_ca_file: Path | None = Field(
        None,
        description="The authority of the brokers' certificates, which must name the hosts above; by default "
        "remote.wal.agent.ssl.ca.file.",
    )
    remote_wal_agent_ssl_certificate_file: Path | None = Field(
        None, description="PEM certificate for mutual TLS between agents; it must name broker-<id>."
    )
    remote_wal_agent_ssl_key_file: Path | None = Field(None, description="The certificate's private key, PEM.")
    remote_wal_agent_ssl_ca_file: Path | None = Field(
        None, description="The authority that signs the agents' certificates, PEM."
    )

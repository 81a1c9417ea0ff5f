"""The settings of the agent's own process and connections. See `agent.settings.setting_types`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from agent.settings.setting_types import (
    MAX_PORT,
    AddressSetting,
    HttpUrlSetting,
    ListenerSetting,
    PeersSetting,
    RequestNamesSetting,
    Seconds,
    Section,
    UserSetting,
    keyed,
)
from replication.wire.peer_connection import Address

SecurityProtocol = Literal["SSL", "SASL_SSL", "PLAINTEXT", "SASL_PLAINTEXT"]


class PeerSettings(Section, alias_generator=keyed("remote.wal.agent.")):
    """Addresses of agents and brokers for each other."""

    peer_listener: AddressSetting = Field(
        Address("127.0.0.1", 19090), description="Where other agents connect: host:port. Not loopback only with TLS."
    )
    peers: PeersSetting = Field(
        default_factory=dict,
        description="The agents' peer listeners: <broker id>@<host>:<port>, by commas. Others are found where they "
        "register; what stands here for the own broker is what this agent registers, else its peer listener.",
    )
    replica_listen_host: str = Field(
        "127.0.0.1", description="Where the broker's replica fetchers dial, as its peers advertise it."
    )
    replica_port_base: int = Field(
        19900,
        ge=1,
        le=MAX_PORT,
        description="Broker <id>'s advertised inter-broker port is this plus <id>; the agent listens there for it.",
    )


class TraceSettings(Section, alias_generator=keyed("remote.wal.traces.")):
    """Settings of traces of single objects."""

    otlp_endpoint: HttpUrlSetting | None = Field(
        None,
        description="The URL at which a collector takes OpenTelemetry traces by OTLP over HTTP, as "
        "http://localhost:4318/v1/traces; none: there are no traces. Needs the extra traces.",
    )
    sample_ratio: float = Field(
        0.01, ge=0, le=1, description="The share of combined segments that is traced; the same for all agents."
    )


class HttpSettings(Section, alias_generator=keyed("remote.wal.agent.http.")):
    """The listener for metrics, health and state."""

    listener: AddressSetting = Field(
        Address("127.0.0.1", 19095),
        description="Metrics, health and state over HTTP: host:port. Not loopback only with TLS, and with certificates "
        "of those who ask or a token.",
    )
    ssl_certificate_file: Path | None = Field(
        None, description="PEM certificate for this listener, which must name its host: then it speaks TLS alone."
    )
    ssl_key_file: Path | None = Field(None, description="The certificate's private key, PEM.")
    ssl_ca_file: Path | None = Field(
        None, description="Who asks must show a certificate of this authority, PEM; describe and doctor trust it, too."
    )
    token_file: Path | None = Field(
        None,
        description="Who asks must show what stands in this file: as a bearer token, or as a password under any name. "
        "Without it /livez and /readyz answer yes or no.",
    )
    topics: int = Field(
        20,
        ge=0,
        le=1000,
        description="Of so many topics metrics tell one by one: of those that most bytes are replicated of.",
    )
    plaintext_accepted: bool = Field(
        False,
        description="Accepts that the HTTP listener may be reached from other hosts, unencrypted or without a login.",
    )

    @property
    def registered(self) -> str:
        """The address that others use: host:port, or a URL under TLS."""
        return str(self.listener) if self.ssl_certificate_file is None else f"https://{self.listener}"


class ClientSettings(Section, alias_generator=keyed("remote.wal.agent.")):
    """How the agent itself reaches Kafka."""

    bootstrap_servers: str | None = Field(
        None,
        description="How the agent itself reaches Kafka; by default by the broker's listener for that, or its first "
        "client listener.",
    )
    client_listener: ListenerSetting = Field(
        "",
        description="The broker's own listener by which agents, and commands for operators, reach Kafka: it advertises "
        "the broker itself, on all hosts. With the zone gateway it is one apart from those for clients.",
    )
    client_config: Path | None = Field(
        None, description="A Java client's properties file for that connection (security.protocol, sasl.*, ssl.*)."
    )


class ProcessSettings(Section, alias_generator=keyed("remote.wal.agent.")):
    """The process: its directory, its end, its memory, its intervals."""

    state_directory: Path = Field(
        Path("/var/lib/remote-wal"), description="For the lock that keeps a second agent away; not a log directory."
    )
    shutdown_timeout_s: Seconds = Field(
        10_000, ge=0, description="How long a graceful stop may upload and publish what is left."
    )
    memory_bytes: int = Field(
        1024**3,
        ge=64 * 1024 * 1024,
        description="The memory of the whole process. What queue, uploads, caches and archive may take by their own "
        "settings is taken off; the rest is for frames, and while it is used up, sockets are not read.",
    )
    watchdog_timeout_s: Seconds = Field(
        10_000,
        ge=0,
        description="An agent whose event loop stands still for longer ends with the stacks of its threads in the log, "
        "to be started anew. Far below replica.lag.time.max.ms; 0: never.",
    )
    core_dumps_enable: bool = Field(
        False,
        description="Whether a crash may leave a core dump, where the system lets it: it holds records and secrets.",
    )
    leadership_interval_s: Seconds = Field(
        5000, ge=100, description="How often leadership is asked for without any sign of a change."
    )


class AccessSettings(Section, alias_generator=keyed("remote.wal.agent.")):
    """Who may connect without TLS, or without an agent."""

    plaintext_enable: bool = Field(
        False, description="Whether the peer listener may be reached from other hosts without TLS."
    )
    plain_connections_enable: bool = Field(
        True,
        description="Whether followers without an agent may connect; they get everything inline. With "
        "remote.wal.agent.ssl.* they may not, whatever this says.",
    )
    connections_max_idle_s: Seconds = Field(
        600_000,
        ge=1000,
        description="Another agent's connection on which nothing came for so long, from it or the broker, is closed: "
        "after twice that time at the latest, or earlier by the broker's own connections.max.idle.ms.",
    )
    replica_user: UserSetting = Field(
        None,
        description="The user, by name or number, as whom the broker runs: the kernel is asked who connects where "
        "the agent poses as another broker, and nobody else is served. Default: every process of the host may connect.",
    )
    requests: RequestNamesSetting = Field(
        alias="remote.wal.agent.peer.requests",
        default_factory=frozenset,
        description="Requests that may pass between brokers beside those that brokers ask each other: Kafka's names or "
        "API keys, by commas, as `Produce,Metadata`; `*`: all.",
    )


class BypassSettings(Section, alias_generator=keyed("remote.wal.agent.bypass.")):
    """The bypass around dead agents."""

    brokers: PeersSetting = Field(
        alias="remote.wal.agent.bypass",
        default_factory=dict,
        description="Listeners of the brokers themselves, by which an agent gets past another one that is dead: "
        "<broker id>@<host>:<port>, by commas. Without it, a dead agent's broker is not replicated from.",
    )
    security_protocol: SecurityProtocol = Field(
        "SSL",
        description="What these listeners speak. SSL: the agent shows the certificate below. SASL: unless the local "
        "broker logs in itself, the agent does so as its Kafka client (PLAIN, SCRAM).",
    )
    plaintext_accepted: bool = Field(
        False,
        description="Accepts that records and requests cross the network unencrypted on these listeners, and that "
        "without SASL everybody who reaches one may act as a broker.",
    )
    after_s: Seconds = Field(
        3000, ge=100, description="How long an agent must have been asked in vain before it is bypassed."
    )
    return_after_s: Seconds = Field(
        10_000,
        ge=100,
        description="How long an agent must have answered all probes before it is used again; twice as long, and so "
        "on, where it did not stay the last time.",
    )
    ssl_certificate_file: Path | None = Field(
        None, description="PEM certificate for these listeners; by default remote.wal.agent.ssl.certificate.file."
    )
    ssl_key_file: Path | None = Field(None, description="Its private key; by default remote.wal.agent.ssl.key.file.")
    ssl_ca_file: Path | None = Field(
        None,
        description="The authority of the brokers' certificates, which must name the hosts above; by default "
        "remote.wal.agent.ssl.ca.file.",
    )


class BrokerTlsSettings(Section, alias_generator=keyed("remote.wal.agent.broker.ssl.")):
    """The agent's certificate for its own broker, and its trust there, if the inter-broker listener uses TLS."""

    certificate_file: Path | None = Field(
        None,
        description="PEM certificate that the agent shows its own broker, as another broker and as a client. It must "
        "name what the brokers advertise. By default what the broker shows itself (ssl.keystore.*, PEM or PKCS12).",
    )
    key_file: Path | None = Field(None, description="Its private key, PEM.")
    ca_file: Path | None = Field(
        None, description="The authority of the broker's certificate, PEM; by default the broker's ssl.truststore.*."
    )


class TlsSettings(Section, alias_generator=keyed("remote.wal.agent.ssl.")):
    """The agents' certificates for each other."""

    certificate_file: Path | None = Field(
        None, description="PEM certificate for mutual TLS between agents; it must name broker-<id>."
    )
    key_file: Path | None = Field(None, description="The certificate's private key, PEM.")
    ca_file: Path | None = Field(None, description="The authority that signs the agents' certificates, PEM.")

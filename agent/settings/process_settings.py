"""The settings of the agent's own process and connections. See `agent.settings.setting_types`."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from agent.settings.setting_types import (
    MAX_PORT,
    AddressSetting,
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
        Address("127.0.0.1", 19090), description="Where other agents connect. Beyond loopback only with TLS."
    )
    peers: PeersSetting = Field(
        default_factory=dict,
        description="The agents' peer listeners: <broker id>@<host>:<port>, by commas. Others are found where they "
        "register; the own entry is what this agent registers.",
    )
    replica_listen_host: str = Field(
        "127.0.0.1", description="Where the broker's replica fetchers dial, as its peers advertise it."
    )
    replica_port_base: int = Field(
        19900,
        ge=1,
        le=MAX_PORT,
        description="Broker <id>'s advertised inter-broker port is this plus <id>; the agent listens there for it. For "
        "its own broker it does if that listens at another port.",
    )

    def posing_address(self, broker_id: int) -> Address:
        """Return the address at which this agent stands in for that broker, for its own broker."""
        return Address(self.replica_listen_host, self.replica_port_base + broker_id)


class HttpSettings(Section, alias_generator=keyed("remote.wal.agent.http.")):
    """The listener for metrics, health and state."""

    listener: AddressSetting = Field(
        Address("127.0.0.1", 19095),
        description="Metrics, health and state over HTTP. Beyond loopback only with TLS, and with certificates or a "
        "token.",
    )
    ssl_certificate_file: Path | None = Field(
        None,
        description="PEM certificate for this listener, which must name its host. With it the listener speaks TLS "
        "only.",
    )
    ssl_key_file: Path | None = Field(None, description="The certificate's private key, PEM.")
    ssl_ca_file: Path | None = Field(
        None,
        description="Whoever asks must show a certificate of this authority; describe and doctor trust it, too. "
        "Without it they trust the host's authorities and remote.wal.agent.ssl.ca.file.",
    )
    token_file: Path | None = Field(
        None,
        description="Whoever asks must show this file's content, as a bearer token or a password. /livez and /readyz "
        "answer without it.",
    )
    plaintext_accepted: bool = Field(
        False,
        description="Accepts that other hosts reach the HTTP listener unencrypted or without a login.",
    )

    _agents_ca_file: Path | None = None

    @property
    def agents_ca_file(self) -> Path | None:
        """The authority that signs the agents' certificates for each other."""
        return self._agents_ca_file

    def trust_agents(self, ca_file: Path | None) -> None:
        """Set the authority that signs the agents' certificates, which `TlsSettings` names."""
        self._agents_ca_file = ca_file

    @property
    def registered(self) -> str:
        """The address to register for others: host:port, or a URL under TLS."""
        return str(self.listener) if self.ssl_certificate_file is None else f"https://{self.listener}"


class ClientSettings(Section, alias_generator=keyed("remote.wal.agent.")):
    """How the agent itself reaches Kafka."""

    bootstrap_servers: str | None = Field(
        None,
        description="How the agent itself reaches Kafka. Default: by the broker's listener for agents, its "
        "first client listener, or the one that brokers share with clients.",
    )
    client_listener: ListenerSetting = Field(
        "",
        description="The broker's listener for agents and operators, which advertises the broker itself on all "
        "hosts. With the zone gateway it is not one for clients.",
    )
    client_config: Path | None = Field(
        None, description="A Java client's properties file for that connection (security.protocol, sasl.*, ssl.*)."
    )


class ProcessSettings(Section, alias_generator=keyed("remote.wal.agent.")):
    """Settings of the process: its mode, state directory, shutdown and memory, and who may connect without TLS."""

    mode: Literal["replication", "shadow"] = Field(
        "replication",
        description="`shadow`: nobody replicates through the agent. It stores nothing, and shows what links would "
        "save, each upload taken for 10 ms.",
    )
    state_directory: Path = Field(
        Path("/var/lib/remote-wal"),
        description="Holds the agent's lock and what it knows; it must outlive restarts. Not a log directory.",
    )
    shutdown_timeout_s: Seconds = Field(
        10_000, ge=0, description="How long a graceful stop may upload, and then publish, what is left."
    )
    memory_bytes: int = Field(
        1024**3,
        ge=64 * 1024 * 1024,
        description="The memory of the process. Queue, uploads, archive and a tenth for objects that are read "
        "are taken from it; the rest is for frames. While it is used up, sockets are not read.",
    )
    watchdog_timeout_s: Seconds = Field(
        10_000,
        ge=0,
        description="An agent whose event loop hangs for longer ends, with its threads' stacks in the log. Far below "
        "replica.lag.time.max.ms; 0: never.",
    )

    plaintext_enable: bool = Field(False, description="Accepts that other hosts reach the peer listener without TLS.")
    replica_user: UserSetting = Field(
        None,
        description="The broker's user, by name or number: nobody else may connect where the agent poses as another "
        "broker. Default: any process of the host may.",
    )
    requests: RequestNamesSetting = Field(
        alias="remote.wal.agent.peer.requests",
        default_factory=frozenset,
        description="Requests that may pass between brokers besides the usual ones: Kafka's names or API keys, by "
        "commas; `*`: all.",
    )

    @field_validator("state_directory")
    @classmethod
    def _is_absolute(cls, path: Path) -> Path:
        if not path.is_absolute():  # commands run elsewhere than the agent
            raise ValueError(f"{path} is no absolute path")
        return path


class BypassSettings(Section, alias_generator=keyed("remote.wal.agent.bypass.")):
    """The bypass around dead agents."""

    brokers: PeersSetting = Field(
        alias="remote.wal.agent.bypass",
        default_factory=dict,
        description="Listeners of the brokers themselves, to get past a dead agent: <broker id>@<host>:<port>, by "
        "commas. Without it a dead agent's broker is not replicated from.",
    )
    security_protocol: SecurityProtocol = Field(
        "SSL",
        description="What these listeners speak. SSL: the agent shows remote.wal.agent.broker.ssl.*, or else "
        "remote.wal.agent.ssl.*. SASL: the local broker "
        "logs in, or else the agent as its Kafka client does (PLAIN, SCRAM).",
    )
    plaintext_accepted: bool = Field(
        False,
        description="Accepts that records cross the network unencrypted there, and that without SASL whoever reaches "
        "a listener may act as a broker.",
    )


class BrokerTlsSettings(Section, alias_generator=keyed("remote.wal.agent.broker.ssl.")):
    """The certificate that the agent shows its own broker, and what it trusts there, if their listener uses TLS."""

    certificate_file: Path | None = Field(
        None,
        description="PEM certificate that the agent shows its own broker, and others past their agents. It must name "
        "what brokers advertise. "
        "Default: the broker's own (ssl.keystore.*, PEM or PKCS12).",
    )
    key_file: Path | None = Field(None, description="Its private key, PEM.")
    ca_file: Path | None = Field(
        None, description="The authority of brokers' certificates. Default: the broker's ssl.truststore.*."
    )


class TlsSettings(Section, alias_generator=keyed("remote.wal.agent.ssl.")):
    """The agents' certificates for each other."""

    certificate_file: Path | None = Field(
        None, description="PEM certificate for mutual TLS between agents; it must name broker-<id>."
    )
    key_file: Path | None = Field(None, description="The certificate's private key, PEM.")
    ca_file: Path | None = Field(None, description="The authority that signs the agents' certificates, PEM.")

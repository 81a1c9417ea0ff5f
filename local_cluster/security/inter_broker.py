"""A cluster whose brokers and controllers use TLS or logins among each other; clients use neither.

Broker and agent of one id share a store: PEM if the id is odd, PKCS12 if it is even. Its certificate has the subject
CN=broker-<id>, and names all that brokers advertise to each other, because the agent poses as each of them.

With StandardAuthorizer, brokers are super users, and clients without a login may do what is listed here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from local_cluster.layout import REPLICA_DOMAIN, ClusterLayout
from local_cluster.security.authority import CA_FILE, Authority
from local_cluster.security.inter_broker_protocol import InterBrokerProtocol

_MODULES = "org.apache.kafka.common.security"
_STORE_PASSWORD = "store-secret"  # noqa: S105

Allowed = tuple[str, ...]
"""Options of Kafka's AclCommand for one permission."""

_CLUSTER_OPERATIONS = ("Create", "Describe", "DescribeConfigs", "Alter", "AlterConfigs", "IdempotentWrite")
CLIENTS_MAY: tuple[Allowed, ...] = (
    ("--topic", "*", "--group", "*", "--transactional-id", "*", "--operation", "All"),
    ("--cluster", *(part for operation in _CLUSTER_OPERATIONS for part in ("--operation", operation))),
)
"""All permissions except ClusterAction, which lets a client act as a broker."""


@dataclass(frozen=True, slots=True)
class InterBroker:
    """The protocol among brokers, and the authority of their certificates."""

    protocol: str
    authority: Authority | None = None
    """None: an authority that is kept in the cluster's directory."""
    mechanism: str = "SCRAM-SHA-256"
    """The mechanism of brokers' logins: this, PLAIN, or OAUTHBEARER with unsigned tokens."""
    clients_may: tuple[Allowed, ...] = ()
    """Permissions of clients without a login; empty: no authorizer."""

    @classmethod
    def speaking(cls, protocol: InterBrokerProtocol) -> Self | None:
        """Return the settings for a protocol, with StandardAuthorizer; None for plaintext.

        The mechanism is PLAIN, because SCRAM's passwords would have to exist since the cluster was formatted.
        """
        if protocol is InterBrokerProtocol.PLAINTEXT:
            return None
        return cls(protocol, mechanism="PLAIN", clients_may=CLIENTS_MAY)

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def principal(self, broker_id: int) -> str:
        """Return the principal that others see:

        the follower's login or, without one, the certificate of the leader's agent.
        """
        return f"User:broker-{broker_id}" if self.has_sasl else f"User:CN=broker-{broker_id}"

    def properties(self, layout: ClusterLayout, broker_id: int) -> dict[str, str]:
        """Return keys that override the broker's own."""
        protocols = f"CLIENT:PLAINTEXT,REPLICATION:{self.protocol},CONTROLLER:{self.protocol}"
        keys = {"listener.security.protocol.map": protocols}
        if self.has_tls:
            keys |= self._stores(layout, broker_id)
        if self.has_sasl:
            keys |= self._logins(layout, broker_id)
        if self.clients_may:
            keys |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": ";".join(map(self.principal, layout.broker_ids)),
            }
        return keys

    def format_options(self, layout: ClusterLayout) -> tuple[str, ...]:
        """Return options for Kafka's StorageTool: brokers must be known before any of them can be asked."""
        if not self.has_sasl or not self.mechanism.startswith("SCRAM"):
            return ()
        users = (f"{self.mechanism}=[name=broker-{one},password={_password(one)}]" for one in layout.broker_ids)
        return tuple(part for user in users for part in ("--add-scram", user))

    def client_properties(self, layout: ClusterLayout, broker_id: int) -> dict[str, str]:
        """Return the properties of a tool that connects to the controllers as this broker."""
        keys = {"security.protocol": self.protocol}
        if self.has_tls:
            keys |= self._stores(layout, broker_id)
        if self.has_sasl:
            keys |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": _plain(broker_id)}
        return keys

    def _stores(self, layout: ClusterLayout, broker_id: int) -> dict[str, str]:
        trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._directory(layout) / CA_FILE)}
        store = self._store(layout, broker_id)
        if store.suffix == ".p12":
            own = {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": _STORE_PASSWORD}
        else:
            own = {"ssl.keystore.type": "PEM"}
        return {**trusted, **own, "ssl.keystore.location": str(store), "ssl.client.auth": "required"}

    def _logins(self, layout: ClusterLayout, broker_id: int) -> dict[str, str]:
        """Return the login settings; controllers use PLAIN, as SCRAM's passwords are in metadata they have not agreed
        on yet.
        """
        users = " ".join(f'user_broker-{one}="{_password(one)}"' for one in layout.broker_ids)
        own = f'username="broker-{broker_id}" password="{_password(broker_id)}"'
        jaas = {
            "PLAIN": _plain(broker_id, users),
            "OAUTHBEARER": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="broker-{broker_id}";',
        }.get(self.mechanism, f"{_MODULES}.scram.ScramLoginModule required {own};")
        return {
            "sasl.mechanism.inter.broker.protocol": self.mechanism,
            "listener.name.replication.sasl.enabled.mechanisms": self.mechanism,
            f"listener.name.replication.{self.mechanism.lower()}.sasl.jaas.config": jaas,
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": _plain(broker_id, users),
        }

    def _directory(self, layout: ClusterLayout) -> Path:
        return layout.directory / "inter-broker" if self.authority is None else self.authority.directory

    def _store(self, layout: ClusterLayout, broker_id: int) -> Path:
        return self._directory(layout) / (f"store-{broker_id}" + (".pem" if broker_id % 2 else ".p12"))

    def write_certificate(self, layout: ClusterLayout, broker_id: int) -> None:
        """Write a new certificate, with a new key."""
        names = [f"replica-{one}.{REPLICA_DOMAIN}" for one in layout.broker_ids]
        authority = self.authority or Authority.kept(self._directory(layout))
        files = authority.tls_for(f"broker-{broker_id}", ["127.0.0.1"], also=names)
        key, shown = files.key_file.read_bytes(), files.certificate_file.read_bytes()
        store = self._store(layout, broker_id)
        if store.suffix == ".pem":
            store.write_bytes(key + shown)
            return
        packed = pkcs12.serialize_key_and_certificates(
            b"broker",
            load_pem_private_key(key, None),  # type: ignore[arg-type]
            x509.load_pem_x509_certificate(shown),
            [x509.load_pem_x509_certificate(authority.file.read_bytes())],
            BestAvailableEncryption(_STORE_PASSWORD.encode()),
        )
        store.write_bytes(packed)


def _plain(broker_id: int, users: str = "") -> str:
    own = f'username="broker-{broker_id}" password="{_password(broker_id)}"'
    return f"{_MODULES}.plain.PlainLoginModule required {own} {users};"


def _password(broker_id: int) -> str:
    return f"secret-{broker_id}"

"""TLS and logins of a cluster: among agents, of the listeners that bypass agents, and among brokers and controllers.

Certificates have the subject CN=broker-<id>, which is also the principal that other brokers see. Clients use neither
TLS nor logins; with StandardAuthorizer, brokers are super users, and clients may do what `clients_may` lists.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from local_cluster.layout import REPLICA_DOMAIN, ClusterLayout

if TYPE_CHECKING:
    from local_cluster.security.authority import Authority

_MODULES = "org.apache.kafka.common.security"
_STORE_PASSWORD = "store-secret"  # noqa: S105
_BYPASS = "BYPASS"
"""The brokers' second listener for each other, under TLS, through which agents bypass another agent that is dead."""

Allowed = tuple[str, ...]
"""Options of Kafka's AclCommand for one permission."""


def certificate_principal(broker_id: int) -> str:
    """Return the principal of the certificate that a broker and its agent share.

    With an authorizer, this principal needs ClusterAction, so that agents can be bypassed.
    """
    return f"User:CN=broker-{broker_id}"


def certificate_files(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """Return the certificate files that a broker and its agent share, by the last part of the agent's keys for them."""
    directory = layout.certificates_directory
    return {
        "ssl.certificate.file": str(directory / f"broker-{broker_id}.pem"),
        "ssl.key.file": str(directory / f"broker-{broker_id}.key"),
        "ssl.ca.file": str(directory / "ca.pem"),
    }


def keystore_of(layout: ClusterLayout, broker_id: int) -> Path:
    """Return the path of the file with certificate and key together, for Kafka."""
    return layout.certificates_directory / f"broker-{broker_id}.keystore.pem"


def write_certificates(layout: ClusterLayout) -> None:
    """Write the certificates of all brokers and agents, unless they exist."""
    from local_cluster.security.authority import Authority

    directory = layout.certificates_directory
    if (directory / "ca.pem").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority(directory)
    for broker_id in layout.broker_ids:
        host = layout.bypass_address(broker_id).rpartition(":")[0]
        files = authority.tls_for(f"broker-{broker_id}", [host])
        keystore_of(layout, broker_id).write_bytes(files.key_file.read_bytes() + files.certificate_file.read_bytes())


def agents_tls(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """Return the settings of agents that use TLS between each other."""
    return {f"remote.wal.agent.{key}": file for key, file in certificate_files(layout, broker_id).items()}


def agents_bypass(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """Return the settings of agents that may bypass each other."""
    listeners = ",".join(f"{other}@{layout.bypass_address(other)}" for other in layout.broker_ids)
    files = certificate_files(layout, broker_id)
    return {
        "remote.wal.agent.bypass": listeners,
        **{f"remote.wal.agent.broker.{key}": file for key, file in files.items()},
    }


def bypass_listener(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """Return a broker's keys for the listener by which agents bypass a dead one.

    The values of `listeners` and of the protocol map must be appended to the existing ones.
    """
    prefix = f"listener.name.{_BYPASS.lower()}.ssl."
    return {
        "listeners": f"{_BYPASS}://{layout.bypass_address(broker_id)}",
        "listener.security.protocol.map": f"{_BYPASS}:SSL",
        f"{prefix}keystore.type": "PEM",
        f"{prefix}keystore.location": str(keystore_of(layout, broker_id)),
        f"{prefix}truststore.type": "PEM",
        f"{prefix}truststore.location": certificate_files(layout, broker_id)["ssl.ca.file"],
        f"{prefix}client.auth": "required",
    }


@dataclass(frozen=True, slots=True)
class InterBroker:
    """The protocol among brokers and controllers, and the authority of their certificates.

    Broker and agent of one id share a store: PEM if the id is odd, PKCS12 if it is even. Its certificate names all
    that brokers advertise to each other, because the agent poses as each of them.
    """

    protocol: str
    authority: "Authority | None" = None
    """None: an authority that is kept in the cluster's directory."""
    mechanism: str = "SCRAM-SHA-256"
    """The mechanism of brokers' logins: this, PLAIN, or OAUTHBEARER with unsigned tokens."""
    clients_may: tuple[Allowed, ...] = ()
    """Permissions of clients without a login; empty: no authorizer."""

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def principal(self, broker_id: int) -> str:
        """Return the principal as which a follower is seen: its login or, without one, its agent's certificate."""
        return f"User:broker-{broker_id}" if self.has_sasl else certificate_principal(broker_id)

    def properties(self, layout: ClusterLayout, broker_id: int) -> dict[str, str]:
        """Return the keys of server.properties for this protocol, which override the broker's."""
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
        """Return options for Kafka's StorageTool: with logins, brokers must exist before any can be asked."""
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
        store = self._store(layout, broker_id)
        keys = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(store.parent / "ca.pem")}
        if store.suffix == ".p12":
            keys |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": _STORE_PASSWORD}
        else:
            keys |= {"ssl.keystore.type": "PEM"}
        return {**keys, "ssl.keystore.location": str(store), "ssl.client.auth": "required"}

    def _logins(self, layout: ClusterLayout, broker_id: int) -> dict[str, str]:
        """Return the login settings; controllers use PLAIN, as SCRAM's passwords are in metadata they have not agreed
        on yet.
        """
        users = " ".join(f'user_broker-{one}="{_password(one)}"' for one in layout.broker_ids)
        jaas = {
            "PLAIN": _plain(broker_id, users),
            "OAUTHBEARER": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="broker-{broker_id}";',
        }.get(self.mechanism, f"{_MODULES}.scram.ScramLoginModule required {_login(broker_id)};")
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
        """Write a new key and certificate for the broker and its agent."""
        from local_cluster.security.authority import Authority, pkcs12_of

        names = [f"replica-{one}.{REPLICA_DOMAIN}" for one in layout.broker_ids]
        authority = self.authority or Authority.kept(self._directory(layout))
        files = authority.tls_for(f"broker-{broker_id}", {"127.0.0.1", layout.host(broker_id)}, also=names)
        store = self._store(layout, broker_id)
        if store.suffix == ".p12":
            store.write_bytes(pkcs12_of(files, _STORE_PASSWORD))
        else:
            store.write_bytes(files.key_file.read_bytes() + files.certificate_file.read_bytes())


def _plain(broker_id: int, users: str = "") -> str:
    return f"{_MODULES}.plain.PlainLoginModule required {_login(broker_id)} {users};"


def _login(broker_id: int) -> str:
    return f'username="broker-{broker_id}" password="{_password(broker_id)}"'


def _password(broker_id: int) -> str:
    return f"secret-{broker_id}"

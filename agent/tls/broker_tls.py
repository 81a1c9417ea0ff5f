"""TLS between the agent and its own broker, by what the broker's inter-broker listener is configured with.

The agent stands on both sides of the local broker: it poses as the other brokers, which the local one dials, and it
dials the local one for them. It shows the same certificate on both: the broker's own, unless it is given another one.
Files are looked at for each connection, and read anew when they have changed, so that rotated ones take effect; while
they cannot be read (one is there, the other not yet), the last good ones stay in use.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.settings.process_settings import BrokerTlsSettings
from agent.settings.setting_types import AgentSettingsError, has_pair
from agent.tls.key_stores import Store, authorities_pem, first_certificate, identity_pem, names_host
from kafka_log.server_properties import BrokerProperties

log = structlog.get_logger(__name__)

_KEY = "remote.wal.agent.broker.ssl"
_CLIENT_AUTH = {"required": ssl.CERT_REQUIRED, "requested": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}

Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class BrokerTlsPlan:
    """What there is to read, and what is asked of whom."""

    identity: tuple[Store, ...]
    """Key and certificates, in one store or in two."""
    authorities: Store | None
    """None: those that this host trusts."""
    client_auth: ssl.VerifyMode
    """Whether the broker shows a certificate where it connects."""
    checks_names: bool
    advertised_host: str
    """Whom the broker's certificate names."""
    has_login: bool
    """Whether brokers log in by SASL on top."""

    @property
    def vouches(self) -> bool:
        """Whether it is the agent's certificate alone that makes those for whom it dials a broker."""
        return self.client_auth is not ssl.CERT_NONE and not self.has_login

    def client_context(self) -> ssl.SSLContext:
        """To dial the broker. Raises AgentSettingsError, OSError, that of TLS included."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.checks_names
        self._load(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """For connections of the broker. Raises the same."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = self.client_auth
        self._load(context)
        return context

    def identity_pem(self) -> bytes:
        """The key and certificates that are shown. Raises AgentSettingsError, OSError."""
        return b"\n".join(map(identity_pem, self.identity))

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        trusted, shown = self.authorities, self.identity[0]
        if trusted is None:
            context.load_default_certs()
        try:
            if trusted is not None:
                context.load_verify_locations(cadata=authorities_pem(trusted))
        except ssl.SSLError as error:
            raise AgentSettingsError(f"{trusted and trusted.key}: {error}") from error
        try:
            _load_identity(context, self.identity_pem(), shown.password)
        except ssl.SSLError as error:
            raise AgentSettingsError(f"{shown.key}: key and certificate, or the key's password: {error}") from error

    @property
    def certificates(self) -> tuple[Store, ...]:
        """What is shown, without a key that has a store of its own, and what is trusted."""
        shown = [store for store in self.identity if store.key not in (f"{_KEY}.key.file", "ssl.keystore.key")]
        return (*shown, *(() if self.authorities is None else (self.authorities,)))

    def covers(self, host: str) -> bool:
        """Whether what is shown names a host that brokers advertise, where names are looked at.

        Raises AgentSettingsError, OSError.
        """
        return not self.checks_names or names_host(first_certificate(self.identity_pem()), host)

    @property
    def files(self) -> list[Path]:
        """All that is read."""
        stores = (*self.identity, *(() if self.authorities is None else (self.authorities,)))
        return [store.path for store in stores if store.path is not None]


def broker_tls_plan(broker: BrokerProperties, settings: BrokerTlsSettings) -> BrokerTlsPlan | None:
    """None where the inter-broker listener speaks no TLS. Reads no file. Raises AgentSettingsError."""
    name = broker.inter_broker_listener_name
    protocol = broker.security_protocols.get(name, "")
    if not protocol.endswith("SSL"):
        return None
    keys = _ListenerKeys(broker.raw, f"listener.name.{name.lower()}.")
    certificate, key = settings.certificate_file, settings.key_file
    if has_pair(certificate, key, f"{_KEY}.*"):
        identity: tuple[Store, ...] = (Store(f"{_KEY}.certificate.file", certificate), Store(f"{_KEY}.key.file", key))
    else:
        identity = keys.identity()
    if not identity:
        raise AgentSettingsError(
            f"{_KEY}.certificate.file: the inter-broker listener {name} speaks {protocol}, and the broker has no key "
            "store in ssl.keystore.*, which would be taken; set the file, and its key"
        )
    return BrokerTlsPlan(
        identity,
        Store(f"{_KEY}.ca.file", settings.ca_file) if settings.ca_file is not None else keys.authorities(),
        keys.client_auth(with_sasl=protocol.startswith("SASL")),
        checks_names=bool(keys.get("ssl.endpoint.identification.algorithm", "https")),
        advertised_host=broker.advertised_listeners[name].host,
        has_login=protocol.startswith("SASL"),
    )


@dataclass(frozen=True, slots=True)
class _ListenerKeys:
    """Kafka's keys for one listener: those with its prefix win over those without."""

    raw: Mapping[str, str] = field(repr=False)
    prefix: str

    def get(self, key: str, default: str = "") -> str:
        return self.raw.get(self.prefix + key, self.raw.get(key, default)).strip()

    def identity(self) -> tuple[Store, ...]:
        """The broker's own key and certificates; empty when it names none."""
        key_password = self.get("ssl.key.password") or None
        if key := self.get("ssl.keystore.key"):
            chain = self.get("ssl.keystore.certificate.chain")
            return (
                Store("ssl.keystore.key", pem=key, password=key_password),
                Store("ssl.keystore.certificate.chain", pem=chain),
            )
        if not (location := self.get("ssl.keystore.location")):
            return ()
        is_pem = self.get("ssl.keystore.type").upper() == "PEM"
        password = key_password if is_pem else self.get("ssl.keystore.password") or None
        return (Store("ssl.keystore.location", Path(location), password=password),)

    def authorities(self) -> Store | None:
        """Whom the broker trusts; None where that is left to Java."""
        if pem := self.get("ssl.truststore.certificates"):
            return Store("ssl.truststore.certificates", pem=pem)
        if not (location := self.get("ssl.truststore.location")):
            return None
        return Store("ssl.truststore.location", Path(location), password=self.get("ssl.truststore.password") or None)

    def client_auth(self, *, with_sasl: bool) -> ssl.VerifyMode:
        """Beside SASL it counts with the listener's prefix alone (KIP-684). Raises AgentSettingsError."""
        key = "ssl.client.auth"
        asked = self.raw.get(self.prefix + key, "none" if with_sasl else self.raw.get(key, "none")).strip().lower()
        if asked not in _CLIENT_AUTH:
            raise AgentSettingsError(f"{key}: {asked!r} is not one of {', '.join(_CLIENT_AUTH)}")
        return _CLIENT_AUTH[asked]


class BrokerTls:
    """The contexts, as new as the files are."""

    def __init__(self, plan: BrokerTlsPlan) -> None:
        """Raises AgentSettingsError, OSError."""
        self._plan = plan
        self._seen = self._look()
        self._client, self._server = self._read()

    def client_context(self) -> ssl.SSLContext:
        """To dial the broker."""
        self._refresh()
        return self._client

    def server_context(self) -> ssl.SSLContext:
        """For connections of the broker."""
        self._refresh()
        return self._server

    def _refresh(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen  # before they are read: what changes meanwhile is read again
        try:
            self._client, self._server = self._read()
        except (AgentSettingsError, OSError) as error:
            log.warning("broker_certificate_unreadable", error=str(error), consequence="the last good one stays in use")

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        contexts = self._plan.client_context(), self._plan.server_context()
        shown = first_certificate(self._plan.identity_pem())
        log.info(
            "broker_certificate_read", subject=shown.subject.rfc4514_string(), until=str(shown.not_valid_after_utc)
        )
        return contexts

    def _look(self) -> Signature:
        return tuple(map(_signature, self._plan.files))


def _signature(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _load_identity(context: ssl.SSLContext, pem: bytes, password: str | None) -> None:
    """OpenSSL takes keys from files alone; this one is in memory, so that no key is written to a disk."""
    descriptor = os.memfd_create("identity")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: password or "")
    finally:
        os.close(descriptor)

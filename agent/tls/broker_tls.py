"""TLS between the agent and its own broker, by the configuration of the broker's inter-broker listener.

The agent is on both sides of the local broker: it stands in for the other brokers, which the local one dials, and it
dials the local one for them. It shows the same certificate on both: the broker's own, unless another is configured.
Files are checked for each connection and read again after a change, so that rotated ones take effect. While they cannot
be read (only one is replaced so far), the last good ones stay in use.
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
from kafka_log.broker_files.server_properties import BrokerProperties
from plugin.clients.backend_settings import FileState, state_of

log = structlog.get_logger(__name__)

_KEY = "remote.wal.agent.broker.ssl"
_CLIENT_AUTH = {"required": ssl.CERT_REQUIRED, "requested": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}


@dataclass(frozen=True, slots=True)
class BrokerTlsPlan:
    """The files for TLS between the agent and its own broker, and whether each side must show a certificate."""

    identity: tuple[Store, ...]
    """Key and certificates, in one store or in two."""
    authorities: Store | None
    """None: those that this host trusts."""
    client_auth: ssl.VerifyMode
    """Whether the broker must show a certificate when it connects."""
    checks_names: bool
    advertised_host: str
    """The name in the broker's certificate."""
    has_login: bool
    """Whether brokers also log in by SASL."""

    @property
    def vouches(self) -> bool:
        """Whether the broker trusts connections by the agent's certificate alone, without a login."""
        return self.client_auth is not ssl.CERT_NONE and not self.has_login

    def client_context(self) -> ssl.SSLContext:
        """Return a TLS context to connect to the broker. Raises AgentSettingsError, OSError, TLS errors included."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.checks_names
        self._load(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return a TLS context for connections from the broker. Raises AgentSettingsError, OSError, TLS errors
        included."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = self.client_auth
        self._load(context)
        return context

    def identity_pem(self) -> bytes:
        """Return the key and certificates that the agent shows, as PEM. Raises AgentSettingsError, OSError."""
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
        """The stores of the certificates that the agent shows and of those that it trusts."""
        shown = [store for store in self.identity if store.key not in (f"{_KEY}.key.file", "ssl.keystore.key")]
        return (*shown, *(() if self.authorities is None else (self.authorities,)))

    def covers(self, host: str) -> bool:
        """Whether the shown certificate names a host that brokers advertise, if names are checked.

        Raises AgentSettingsError, OSError.
        """
        return not self.checks_names or names_host(first_certificate(self.identity_pem()), host)

    @property
    def files(self) -> list[Path]:
        stores = (*self.identity, *(() if self.authorities is None else (self.authorities,)))
        return [store.path for store in stores if store.path is not None]


def broker_tls_plan(broker: BrokerProperties, settings: BrokerTlsSettings) -> BrokerTlsPlan | None:
    """Make the plan; None if the inter-broker listener has no TLS. Reads no file. Raises AgentSettingsError."""
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
        """Return the broker's own key and certificates; empty when it names none."""
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
        """Return the broker's trusted authorities; None if that is left to Java."""
        if pem := self.get("ssl.truststore.certificates"):
            return Store("ssl.truststore.certificates", pem=pem)
        if not (location := self.get("ssl.truststore.location")):
            return None
        return Store("ssl.truststore.location", Path(location), password=self.get("ssl.truststore.password") or None)

    def client_auth(self, *, with_sasl: bool) -> ssl.VerifyMode:
        """Return what the listener requires.

        With SASL only the prefixed key counts (KIP-684). Raises AgentSettingsError.
        """
        key = "ssl.client.auth"
        asked = self.raw.get(self.prefix + key, "none" if with_sasl else self.raw.get(key, "none")).strip().lower()
        if asked not in _CLIENT_AUTH:
            raise AgentSettingsError(f"{key}: {asked!r} is not one of {', '.join(_CLIENT_AUTH)}")
        return _CLIENT_AUTH[asked]


class BrokerTls:
    """The TLS contexts between agent and broker, read again when their files change."""

    def __init__(self, plan: BrokerTlsPlan) -> None:
        """Read all files. Raises AgentSettingsError, OSError."""
        self.plan = plan
        self._seen = self._look()
        self._client, self._server = self._read()

    def client_context(self) -> ssl.SSLContext:
        self._refresh()
        return self._client

    def server_context(self) -> ssl.SSLContext:
        self._refresh()
        return self._server

    def _refresh(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen  # before they are read, so that later changes are read again
        try:
            self._client, self._server = self._read()
        except (AgentSettingsError, OSError, ValueError, TypeError) as error:  # parsers raise the latter two
            log.warning("broker_certificate_unreadable", error=str(error), consequence="the last good one stays in use")

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        contexts = self.plan.client_context(), self.plan.server_context()
        shown = first_certificate(self.plan.identity_pem())
        log.info(
            "broker_certificate_read", subject=shown.subject.rfc4514_string(), until=str(shown.not_valid_after_utc)
        )
        return contexts

    def _look(self) -> list[FileState | None]:
        return list(map(state_of, self.plan.files))


def _load_identity(context: ssl.SSLContext, pem: bytes, password: str | None) -> None:
    """Load the key. OpenSSL reads keys only from files; this file is in memory, so that no key reaches a disk."""
    descriptor = os.memfd_create("identity")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: password or "")
    finally:
        os.close(descriptor)

"""Addresses and login of the Kafka cluster, and the translation of a Java client's properties for librdkafka."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import javaproperties
import structlog

from kafka_cluster.errors import ClientPropertyError
from kafka_log.broker_files.config_providers import PROVIDERS_KEY, ConfigProviderError, ResolvedProperties

log = structlog.get_logger(__name__)

LIBRDKAFKA_LOGGER = "metadata_topic.librdkafka"
"""The name under which all our Kafka clients log librdkafka's messages."""

ConfluentValue = str | int | float | bool

_SAME_NAME = frozenset(
    {
        "security.protocol", "sasl.mechanism", "sasl.kerberos.service.name", "sasl.kerberos.kinit.cmd",
        "ssl.key.password", "ssl.cipher.suites", "client.id", "client.rack", "client.dns.lookup",
        "reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "metadata.max.age.ms",
        "connections.max.idle.ms",
    }
)  # fmt: skip

_RENAMED = {
    "request.timeout.ms": "socket.timeout.ms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.token.endpoint.url": "sasl.oauthbearer.token.endpoint.url",
}

_HANDLED_TOGETHER = frozenset(
    {
        "bootstrap.servers", "sasl.jaas.config", "ssl.endpoint.identification.algorithm",
        "ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password",
        "ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password",
        "ssl.protocol", "ssl.enabled.protocols", "sasl.login.callback.handler.class",
    }
)  # fmt: skip

_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;]+))""")


@dataclass(frozen=True, slots=True)
class KafkaClientConfig:
    """The cluster's address and login, in librdkafka's names."""

    bootstrap_servers: str
    properties: Mapping[str, ConfluentValue] = field(default_factory=dict, repr=False)
    """May hold secrets, so it is not part of the repr."""

    def for_confluent(self, **overrides: ConfluentValue) -> dict[str, ConfluentValue | logging.Logger]:
        """Return the dictionary for confluent_kafka; `overrides` are keys with `_` for `.` and win.

        Asking for a topic never creates it, as librdkafka's producers and admin clients otherwise would where brokers
        allow that. librdkafka's messages go to our log instead of standard error.
        """
        config: dict[str, ConfluentValue | logging.Logger] = {
            "logger": logging.getLogger(LIBRDKAFKA_LOGGER),
            "bootstrap.servers": self.bootstrap_servers,
            "allow.auto.create.topics": False,
            **self.properties,
        }
        config.update({key.replace("_", "."): value for key, value in overrides.items()})
        return config


def read_command_config(bootstrap_servers: str, path: Path | None) -> KafkaClientConfig:
    """Read the configuration from a tool's `--bootstrap-server` and `--command-config`.

    Raises ClientPropertyError naming a key that cannot be translated, OSError when the file cannot be read.
    """
    if path is None:
        return KafkaClientConfig(bootstrap_servers)
    return from_java_properties(bootstrap_servers, read_java_properties(path))


def read_java_properties(path: Path) -> dict[str, str]:
    """Read a Java properties file, which is ISO-8859-1. Raises ClientPropertyError, OSError."""
    try:
        found: dict[str, str] = javaproperties.loads(path.read_bytes())
    except ValueError as error:
        raise ClientPropertyError("read client properties", str(path), str(error)) from error
    return found


def from_java_properties(bootstrap_servers: str, java: Mapping[str, str]) -> KafkaClientConfig:
    """Translate a Java client's properties.

    Security settings without a counterpart raise ClientPropertyError, because leaving one out would weaken or break the
    connection. Other settings without a counterpart (serializers, batch sizes of some application) are ignored.
    """
    translated: dict[str, ConfluentValue] = {}
    java = ResolvedProperties(java)
    for key in java:
        if key.startswith(PROVIDERS_KEY):
            continue
        try:
            value = java[key]
        except ConfigProviderError as error:
            raise _untranslatable(key, error.reason, "put the value itself in the file") from error
        if key in _SAME_NAME:
            translated[key] = value
        elif key in _RENAMED:
            translated[_RENAMED[key]] = value
        elif key in _HANDLED_TOGETHER:
            continue
        elif key.startswith(("ssl.", "sasl.", "security.")):
            raise _untranslatable(key, "librdkafka has no such setting", "remove it if it is not needed")
        else:
            log.info("client_property_ignored", key=key)
    _translate_truststore(java, translated)
    _translate_keystore(java, translated)
    _translate_hostname_check(java, translated)
    _translate_jaas(java, translated)
    return KafkaClientConfig(bootstrap_servers, MappingProxyType(translated))


def _untranslatable(key: str, reason: str, hint: str) -> ClientPropertyError:
    return ClientPropertyError("translate client property", key, reason, hint)


def _translate_truststore(java: Mapping[str, str], translated: dict[str, ConfluentValue]) -> None:
    location = java.get("ssl.truststore.location")
    if location is None:
        return
    if java.get("ssl.truststore.type", "JKS").upper() != "PEM":
        raise _untranslatable(
            "ssl.truststore.type", "librdkafka reads only PEM trust stores",
            "export the certificates as PEM (keytool -exportcert -rfc) and set ssl.truststore.type=PEM",
        )  # fmt: skip
    translated["ssl.ca.location"] = location


def _translate_keystore(java: Mapping[str, str], translated: dict[str, ConfluentValue]) -> None:
    location = java.get("ssl.keystore.location")
    if location is None:
        return
    kind = java.get("ssl.keystore.type", "JKS").upper()
    if kind == "PEM":
        # A Java PEM key store has the key and the chain in one file; OpenSSL finds both in it.
        translated["ssl.certificate.location"] = location
        translated["ssl.key.location"] = location
    elif kind == "PKCS12":
        translated["ssl.keystore.location"] = location
        if "ssl.keystore.password" in java:
            translated["ssl.keystore.password"] = java["ssl.keystore.password"]
    else:
        raise _untranslatable(
            "ssl.keystore.type", f"librdkafka cannot read a {kind} key store",
            "convert it (keytool -importkeystore -deststoretype PKCS12) and set ssl.keystore.type=PKCS12",
        )  # fmt: skip


def _translate_hostname_check(java: Mapping[str, str], translated: dict[str, ConfluentValue]) -> None:
    algorithm = java.get("ssl.endpoint.identification.algorithm")
    if algorithm is None:
        return
    if algorithm.lower() not in ("https", ""):
        raise _untranslatable(
            "ssl.endpoint.identification.algorithm",
            f"{algorithm!r} is not known",
            "use https, or leave it out",
        )
    translated["ssl.endpoint.identification.algorithm"] = algorithm.lower() or "none"


def _translate_jaas(java: Mapping[str, str], translated: dict[str, ConfluentValue]) -> None:
    jaas = java.get("sasl.jaas.config")
    if jaas is None:
        return
    module, _, rest = jaas.strip().partition(" ")
    options = {
        name: re.sub(r"\\(.)", r"\1", double) if double else single or bare
        for name, double, single, bare in _JAAS_OPTION.findall(rest)
    }
    names = _JAAS_MODULES.get(module.rpartition(".")[2])
    if names is None:
        raise _untranslatable(
            "sasl.jaas.config", f"the login module {module} has no counterpart",
            "PLAIN, SCRAM, OAUTHBEARER with client credentials, and GSSAPI with a keytab are supported",
        )  # fmt: skip
    for option, key in names.items():
        if option in options:
            translated[key] = options[option]
    if module.endswith("OAuthBearerLoginModule"):
        translated["sasl.oauthbearer.method"] = "oidc"
    elif module.endswith(("PlainLoginModule", "ScramLoginModule")) and not {"username", "password"} <= set(options):
        raise _untranslatable("sasl.jaas.config", "username or password is missing", 'write username="…" password="…";')


_JAAS_MODULES = {
    "PlainLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "ScramLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
    "Krb5LoginModule": {"keyTab": "sasl.kerberos.keytab", "principal": "sasl.kerberos.principal"},
}

"""Translates the client configuration for kafka-python, whose admin client has requests that librdkafka's lacks.

It reads certificates and keys from PEM files, and logs in by PLAIN, SCRAM or Kerberos.
"""

import ssl
from collections.abc import Mapping
from typing import Any, Final

from kafka_cluster.client_config import ConfluentValue, KafkaClientConfig
from kafka_cluster.errors import ClientPropertyError

_NAMES: Final[Mapping[str, str]] = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
    "client.dns.lookup": "client_dns_lookup",
}
_HOSTNAME_CHECK: Final = "ssl.endpoint.identification.algorithm"
_AUTHORITY_PEM: Final = "ssl.ca.pem"
_PASSED_OVER: Final = frozenset(
    {
        "client.rack", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "metadata.max.age.ms",
        "connections.max.idle.ms", "socket.timeout.ms", "sasl.kerberos.kinit.cmd", "sasl.kerberos.keytab",
        "sasl.kerberos.principal", "sasl.kerberos.min.time.before.relogin",
    }
)  # fmt: skip
"""Ignored properties: tuning, or the ticket that Kerberos' own tools must get first."""


def kafka_python_settings(config: KafkaClientConfig) -> dict[str, Any]:
    """Return arguments of kafka-python's clients. Raises ClientPropertyError for unsupported properties."""
    settings: dict[str, Any] = {"bootstrap_servers": config.bootstrap_servers.split(",")}
    for key, value in config.properties.items():
        if key in _NAMES:
            settings[_NAMES[key]] = value
        elif key == _HOSTNAME_CHECK:
            settings["ssl_check_hostname"] = value != "none"
        elif key == _AUTHORITY_PEM:
            settings["ssl_context"] = _context(config.properties)
        elif key not in _PASSED_OVER:
            raise ClientPropertyError(
                "translate client property",
                key,
                "this command's client has no such setting",
                "use PEM files for certificates and keys, and SASL by PLAIN, SCRAM or GSSAPI",
            )
    return settings


def _context(properties: Mapping[str, ConfluentValue]) -> ssl.SSLContext:
    """Return a context for an authority inside the properties, which kafka-python only takes as a context."""
    context = ssl.create_default_context(cadata=str(properties[_AUTHORITY_PEM]))
    context.check_hostname = properties.get(_HOSTNAME_CHECK) != "none"
    certificate = properties.get("ssl.certificate.location")
    if certificate is not None:
        key, password = properties.get("ssl.key.location"), properties.get("ssl.key.password")
        context.load_cert_chain(
            str(certificate), None if key is None else str(key), None if password is None else str(password)
        )
    return context

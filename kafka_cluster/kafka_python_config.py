"""Translates the client configuration for kafka-python, whose admin client has requests that librdkafka's lacks.

It reads certificates and keys from PEM files, and logs in by PLAIN, SCRAM or Kerberos.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
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
        "connections.max.idle.ms", "socket.timeout.ms", "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
    }
)  # fmt: skip
"""Ignored properties: tuning, and how librdkafka gets tickets."""
_TICKET: Final = frozenset({"sasl.kerberos.keytab", "sasl.kerberos.principal"})


def kafka_python_settings(config: KafkaClientConfig) -> dict[str, Any]:
    """Return the arguments for kafka-python's clients. Raises ClientPropertyError for unsupported properties."""
    settings: dict[str, Any] = {"bootstrap_servers": config.bootstrap_servers.split(",")}
    for key, value in config.properties.items():
        if key in _NAMES:
            settings[_NAMES[key]] = value
        elif key == _HOSTNAME_CHECK:
            settings["ssl_check_hostname"] = value != "none"
        elif key == _AUTHORITY_PEM:
            settings["ssl_context"] = tls_context(config.properties)
        elif key in _TICKET:
            # It would log in as whoever the ticket cache names.
            raise ClientPropertyError(
                "translate client property",
                key,
                "this command's client logs in by the ticket cache alone",
                "run kinit with this keytab and principal, and leave both out",
            )
        elif key not in _PASSED_OVER:
            raise ClientPropertyError(
                "translate client property",
                key,
                "this command's client has no such setting",
                "use PEM files for certificates and keys, and SASL by PLAIN, SCRAM or GSSAPI",
            )
    return settings


def tls_context(properties: Mapping[str, ConfluentValue]) -> ssl.SSLContext:
    """Return the client's TLS context, the only way to give kafka-python an authority that is inside the properties.
    Raises OSError."""
    found = {key: str(value) for key, value in properties.items()}
    authority = found.get("ssl.ca.location")
    of_files, of_directory = (None, authority) if authority and Path(authority).is_dir() else (authority, None)
    context = ssl.create_default_context(cafile=of_files, capath=of_directory, cadata=found.get(_AUTHORITY_PEM))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # librdkafka and Java are not so strict
    context.check_hostname = found.get(_HOSTNAME_CHECK) != "none"
    if found.get("enable.ssl.certificate.verification", "true").lower() != "true":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if (certificate := found.get("ssl.certificate.location")) is not None:
        # A password that is missing is an error, instead of a question at the terminal.
        context.load_cert_chain(certificate, found.get("ssl.key.location"), found.get("ssl.key.password", ""))
    return context

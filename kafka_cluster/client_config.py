"""Addresses and login of the Kafka cluster, and the translation of a Java client's properties for librdkafka."""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from kafka_cluster.errors import ClientPropertyError
from kafka_log.broker_files.java_properties import (
    PROVIDERS_KEY,
    ConfigProviderError,
    ResolvedProperties,
    parse_properties,
)
from plugin.errors import meant

_NAMES: Final = """
acks allow.auto.create.topics auto.commit.interval.ms auto.offset.reset batch.size bootstrap.controllers
bootstrap.resolve.timeout.ms bootstrap.servers buffer.memory buffer.memory.allocation.strategy check.crcs
client.dns.lookup client.id client.rack compression.gzip.level compression.lz4.level compression.type
compression.zstd.level config.providers connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
enable.auto.commit enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes
fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor
heartbeat.interval.ms interceptor.classes isolation.level key.deserializer key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
max.request.size metadata.cluster.check.enable metadata.max.age.ms metadata.max.idle.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys partitioner.rack.aware receive.buffer.bytes reconnect.backoff.max.ms
reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.allow.unverified.audience sasl.oauthbearer.allow.unverified.issuer
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes session.timeout.ms
share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
ssl.truststore.password ssl.truststore.type transaction.timeout.ms transaction.two.phase.commit.enable
transactional.id value.deserializer value.serializer
"""
JAVA_CLIENT_KEYS: Final = frozenset(_NAMES.split())


log = structlog.get_logger(__name__)

LIBRDKAFKA_LOGGER = "metadata_topic.librdkafka"
"""The name under which all our Kafka clients log librdkafka's messages."""

ConfluentValue = str | int | float | bool

_CARRIED: Final[Mapping[str, str]] = {
    **{
        key: key
        for key in (
            "security.protocol", "sasl.mechanism", "sasl.kerberos.service.name", "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.min.time.before.relogin", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope",
            "sasl.oauthbearer.sub.claim.name", "ssl.key.password", "ssl.cipher.suites", "client.id", "client.rack",
            "client.dns.lookup", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms",
            "metadata.max.age.ms", "connections.max.idle.ms",
        )
    },
    "request.timeout.ms": "socket.timeout.ms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.template.file": "sasl.oauthbearer.assertion.jwt.template.file",
}  # fmt: skip
"""librdkafka's names by those of Java."""

_TOGETHER: Final = frozenset(
    {
        "bootstrap.servers", "sasl.jaas.config", "ssl.endpoint.identification.algorithm",
        "ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password",
        "ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password",
    }
)  # fmt: skip

SECURITY: Final = ("ssl.", "sasl.", "security.", "enable.ssl.", "https.")
"""What the names of settings begin with that decide about a login or TLS."""
_WITHOUT_EFFECT: Final = (
    "ssl.protocol", "ssl.enabled.protocols", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
    "ssl.secure.random.implementation", "sasl.kerberos.ticket.", "sasl.login.connect.", "sasl.login.read.",
    "sasl.login.refresh.", "sasl.login.retry.", "sasl.oauthbearer.allow.", "sasl.oauthbearer.clock.",
    "sasl.oauthbearer.expected.", "sasl.oauthbearer.header.", "sasl.oauthbearer.jwks.",
    "sasl.oauthbearer.jwt.validator.", "sasl.oauthbearer.scope.claim.",
)  # fmt: skip
"""Security settings, or what they begin with, of the Java runtime alone, of brokers, or of a login's timing."""

_KINIT: Final = "sasl.kerberos.kinit.cmd"
_KINIT_COMMAND: Final = (
    '"{0}" -R -t "%{{sasl.kerberos.keytab}}" -k %{{sasl.kerberos.principal}} || '
    '"{0}" -t "%{{sasl.kerberos.keytab}}" -k %{{sasl.kerberos.principal}}'
)
"""librdkafka's command; Java's value is the program alone."""

_OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."
_BY_ASSERTION: Final = f"{_OAUTH_PACKAGE}JwtBearerJwtRetriever"
_OWN_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "sasl.login.callback.handler.class": frozenset(
        {
            f"{_OAUTH_PACKAGE}OAuthBearerLoginCallbackHandler",
            f"{_OAUTH_PACKAGE}secured.OAuthBearerLoginCallbackHandler",
        }
    ),
    "sasl.oauthbearer.jwt.retriever.class": frozenset(
        {f"{_OAUTH_PACKAGE}DefaultJwtRetriever", f"{_OAUTH_PACKAGE}ClientCredentialsJwtRetriever", _BY_ASSERTION}
    ),
}
"""The classes that do what librdkafka does by itself."""

_TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - its name
_MACHINE_LOGIN: Final = "sasl.oauthbearer.metadata.authentication.type"
"""Unless told where else, such a login asks the machine's metadata service, by plain http."""
_PROXIES: Final = ("http_proxy", "all_proxy", "ALL_PROXY")
"""The variables in which libcurl, which librdkafka asks with, finds a proxy for plain http."""

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

_JAAS_TOKEN: Final = re.compile(
    r"""\s*(?://[^\n]*|/\*.*?\*/|"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)'|([^\s=;"']+)|([=;]))""", re.DOTALL
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b"}


@dataclass(frozen=True, slots=True)
class KafkaClientConfig:
    """The cluster's address and login, as librdkafka's properties."""

    bootstrap_servers: str
    properties: Mapping[str, ConfluentValue] = field(default_factory=dict, repr=False)
    """May hold secrets, so it is not part of the repr."""

    def for_confluent(self, **overrides: ConfluentValue) -> dict[str, ConfluentValue | logging.Logger]:
        """Return the configuration for confluent_kafka; `overrides` are keys with `_` for `.` and win.

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

    Raises ClientPropertyError naming the file and the key that is wrong, also where librdkafka alone knows that it is;
    OSError when the file cannot be read.
    """
    if path is None:
        return KafkaClientConfig(bootstrap_servers)
    try:
        config = from_java_properties(bootstrap_servers, read_java_properties(path))
        _check(config)
    except ClientPropertyError as error:
        raise ClientPropertyError(f"{path}:", error.key, error.reason, error.hint) from error
    return config


def read_java_properties(path: Path) -> dict[str, str]:
    """Read a Java properties file. Raises ClientPropertyError, OSError."""
    try:
        return parse_properties(path.read_bytes())
    except ValueError as error:
        raise ClientPropertyError("read client properties", str(path), str(error)) from error


def from_java_properties(bootstrap_servers: str, given: Mapping[str, str]) -> KafkaClientConfig:
    """Translate a Java client's properties to librdkafka's. librdkafka's own names of security settings stay as they
    are.

    Keys that no client knows, and security settings without a counterpart, raise ClientPropertyError, because leaving
    one out would weaken or break the connection. Other settings without an effect here (serializers, batch sizes of
    some application) are ignored, and logged.
    """
    translated: dict[str, ConfluentValue] = {}
    java, ignored = _Named(given), []
    for key in java:
        if key in _OWN_CLASSES and java[key] not in _OWN_CLASSES[key]:
            raise _untranslatable(key, f"{java[key]} has no counterpart", "only Kafka's own logins by OAuth have")
        if key in _TOGETHER or key in _OWN_CLASSES or key.startswith(PROVIDERS_KEY):
            continue
        if (name := _carried(key, java)) is not None:
            translated[name] = java[key]
        else:
            ignored.append(key)
    if ignored:
        log.warning("client_properties_without_effect_here", keys=sorted(ignored))
    _check_words(translated)
    if (kinit := str(translated.get(_KINIT, "%{"))) and "%{" not in kinit:
        translated[_KINIT] = _KINIT_COMMAND.format(kinit)
    _translate_truststore(java, translated)
    _translate_keystore(java, translated)
    _translate_hostname_check(java, translated)
    _translate_jaas(java, translated)
    _check_token_endpoint(translated)
    return KafkaClientConfig(bootstrap_servers, MappingProxyType(translated))


class _Named(ResolvedProperties):
    """Properties whose errors are those of client properties."""

    def __getitem__(self, key: str) -> str:
        try:
            return super().__getitem__(key)
        except ConfigProviderError as error:
            raise _untranslatable(key, error.reason, "put the value itself in the file") from error


def _carried(key: str, java: Mapping[str, str]) -> str | None:
    """Return librdkafka's name of the key, None if it has no effect here. Raises ClientPropertyError."""
    if key in _CARRIED or key.startswith("sasl.oauthbearer.assertion."):
        return _CARRIED.get(key, key)
    is_security = key.startswith(SECURITY)
    if key in JAVA_CLIENT_KEYS:
        if is_security and not key.startswith(_WITHOUT_EFFECT):
            raise _untranslatable(key, "librdkafka has no such setting", "remove it if it is not needed")
        return None
    if _is_of_librdkafka(key, java[key]):
        return key if is_security else None
    raise _untranslatable(key, f"no Kafka client has such a setting{meant(key, JAVA_CLIENT_KEYS)}", "")


def _is_of_librdkafka(key: str, value: str) -> bool:
    """Return whether librdkafka knows the key. Raises ClientPropertyError if it refuses the value."""
    refused = _refused(KafkaClientConfig("", {key: value}))
    if refused is not None and "No such configuration property" not in refused:
        raise _untranslatable(key, refused, "")
    return refused is None


def _refused(config: KafkaClientConfig) -> str | None:
    """Return why librdkafka makes no client of these properties. Nobody is asked."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient(config.for_confluent(bootstrap_servers=""))
    except KafkaException as error:
        return str(error.args[0].str()).removeprefix("Failed to create admin client: ").strip()
    return None


def _check(config: KafkaClientConfig) -> None:
    """Check what only librdkafka and the file system tell. Raises ClientPropertyError."""
    for key in ("ssl.ca.location", "ssl.certificate.location", "ssl.keystore.location"):
        file = config.properties.get(key)
        if file is not None and not os.access(str(file), os.R_OK):
            told = "ssl.truststore.location" if key == "ssl.ca.location" else "ssl.keystore.location"
            raise _untranslatable(told, f"{file} is not there, or cannot be read by this user", "")
    tried = dict(config.properties)
    if tried.get("sasl.mechanism") == "OAUTHBEARER":
        # A client with it asks for a token at once, and its end waits for the answer.
        tried |= {"sasl.mechanism": "PLAIN", "sasl.username": "nobody", "sasl.password": "none"}
    if (refused := _refused(KafkaClientConfig("", tried))) is not None:
        named = (java for java, name in _CARRIED.items() if f'"{name}"' in refused)
        raise _untranslatable(next(named, "librdkafka"), refused, "")


def _check_words(translated: dict[str, ConfluentValue]) -> None:
    """Refuse unknown protocols and mechanisms. As in Java, a protocol may be in small letters."""
    for key, known in (("security.protocol", _PROTOCOLS), ("sasl.mechanism", _MECHANISMS)):
        if key not in translated:
            continue
        value = str(translated[key])
        translated[key] = value = value.upper() if key == "security.protocol" else value
        if value not in known:
            raise _untranslatable(key, f"{value!r} is none of {', '.join(known)}{meant(value, known)}", "")


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
    module, options = _login(jaas)
    name = module.rpartition(".")[2]
    names = _JAAS_MODULES.get(name)
    if names is None:
        raise _of_jaas(
            f"the login module {module} has no counterpart",
            "PLAIN, SCRAM, OAUTHBEARER by client credentials or an assertion, and GSSAPI with a keytab are supported",
        )
    extensions = []
    for option, value in options.items():
        if option in names:
            translated.setdefault(names[option], value)  # a key of its own comes first, as in Kafka (KIP-1139)
        elif name == "OAuthBearerLoginModule" and option.startswith("extension_"):
            extensions.append(f"{option.removeprefix('extension_')}={_extension(option, value)}")
        elif value not in _IDLE_OPTIONS.get(option, ()) and not option.startswith(_OF_BROKERS.get(name, "\n")):
            raise _of_jaas(
                f"librdkafka's login has no option {option}{meant(option, names)}", "remove it if it is not needed"
            )
    if extensions:
        translated["sasl.oauthbearer.extensions"] = ",".join(extensions)
    if name == "OAuthBearerLoginModule":
        _finish_oauth(translated, java.get("sasl.oauthbearer.jwt.retriever.class") == _BY_ASSERTION)
    elif name in ("PlainLoginModule", "ScramLoginModule") and not {"username", "password"} <= set(options):
        raise _of_jaas("username or password is missing", 'write username="…" password="…";')


def _login(jaas: str) -> tuple[str, dict[str, str]]:
    """Return the login module and its options, read as Kafka's JaasConfig does. Raises ClientPropertyError."""
    words, at = list[tuple[str, bool]](), 0
    while jaas[at:].strip():
        found = _JAAS_TOKEN.match(jaas, at)
        if found is None:
            raise _of_jaas("a quotation mark is not closed", "")
        at = found.end()
        quoted = next((one for one in found.groups()[:2] if one is not None), None)
        if quoted is not None:
            words.append((re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), quoted, flags=re.DOTALL), False))
        elif sign := found[4]:
            words.append((sign, True))
        elif found[3] is not None:
            words.append((found[3], False))
    is_whole = len(words) > 2 and words[-1] == (";", True) and words.count((";", True)) == 1
    if not is_whole or words[1][0].lower() not in ("required", "requisite", "sufficient", "optional"):
        raise _of_jaas("it is not one login module, `required`, and options up to a semicolon", "")
    options, before = dict[str, str](), words[0][0]
    for at in range(2, len(words) - 1, 3):
        key, *rest = words[at : at + 3]
        if key[1] or [is_sign for _, is_sign in rest] != [True, False]:
            raise _of_jaas(f"what follows {before} is no name=value", "put values in quotation marks")
        before = key[0]
        options[before] = rest[1][0]
    return words[0][0], options


def _extension(option: str, value: str) -> str:
    if "," in value:
        raise _of_jaas(f"librdkafka takes no comma in {option}", "")
    return value


def _finish_oauth(translated: dict[str, ConfluentValue], by_assertion: bool) -> None:
    """Complete a login by client credentials or an assertion (KIP-1139). Raises ClientPropertyError if it cannot be."""
    if not str(translated.get(_TOKEN_ENDPOINT, "")).startswith(("https://", "http://")):
        raise _untranslatable(
            _TOKEN_ENDPOINT, "is missing, or no http address", "librdkafka gets tokens from there alone"
        )
    translated["sasl.oauthbearer.method"] = "oidc"
    if by_assertion:
        translated["sasl.oauthbearer.grant.type"] = "urn:ietf:params:oauth:grant-type:jwt-bearer"
        return
    for java in ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.credentials.client.secret"):
        if not translated.get(_CARRIED[java]):
            raise _untranslatable(java, "is missing", "")


def _check_token_endpoint(translated: Mapping[str, ConfluentValue]) -> None:
    """Refuse one to which a secret would go in plain text through a proxy, whichever names the login has."""
    is_machines = str(translated.get(_MACHINE_LOGIN, "none")).lower() != "none"
    endpoint = str(translated.get(_TOKEN_ENDPOINT, "http://" if is_machines else "https://"))
    if not endpoint.lower().startswith("https://") and any(map(os.environ.get, _PROXIES)):
        raise _untranslatable(
            _TOKEN_ENDPOINT,
            "is plain http, and a proxy of the environment would see the secret",
            "use https, or no proxy",
        )


def _of_jaas(reason: str, hint: str) -> ClientPropertyError:
    return _untranslatable("sasl.jaas.config", reason, hint)


_JAAS_MODULES: Final = {
    "PlainLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "ScramLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
    "Krb5LoginModule": {
        "keyTab": "sasl.kerberos.keytab",
        "principal": "sasl.kerberos.principal",
        "serviceName": "sasl.kerberos.service.name",
    },
}
_OF_BROKERS: Final = {"PlainLoginModule": "user_", "ScramLoginModule": "user_"}
"""What options begin with that only brokers use."""
_SWITCH: Final = ("true", "false")
_IDLE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "tokenauth": ("false",), "useKeyTab": ("true",), "useTicketCache": ("false",), "isInitiator": ("true",),
    "storeKey": _SWITCH, "doNotPrompt": _SWITCH, "debug": _SWITCH, "refreshKrb5Config": _SWITCH,
}  # fmt: skip
"""Options that change nothing here, if they have one of these values."""

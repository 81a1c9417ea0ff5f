"""Java clients' properties as librdkafka's."""

import logging
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from kafka_cluster.client_config import (
    LIBRDKAFKA_LOGGER,
    KafkaClientConfig,
    from_java_properties,
    read_command_config,
)
from kafka_cluster.errors import ClientPropertyError

OAUTH_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
OAUTH = f'{OAUTH_PACKAGE}.OAuthBearerLoginModule required clientId="a" clientSecret="b" %s;'
OAUTH_ENDPOINT = {"sasl.oauthbearer.token.endpoint.url": "https://idp.example.com/token"}
KINIT = "kinit -t %{sasl.kerberos.keytab}"
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="agent" password="p\\"a;s=s";'


def test_scram_over_tls_is_translated() -> None:
    config = from_java_properties(
        "b:9093",
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": SCRAM,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/etc/ca.pem",
            "ssl.endpoint.identification.algorithm": "",
            "request.timeout.ms": "20000",
            "acks": "1",
        },
    )
    assert dict(config.properties) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "agent",
        "sasl.password": 'p"a;s=s',
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.timeout.ms": "20000",
    }


def test_a_pem_key_store_serves_key_and_certificate() -> None:
    config = from_java_properties("b:1", {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/k.pem"})
    assert dict(config.properties) == {
        "ssl.certificate.location": "/k.pem",
        "ssl.key.location": "/k.pem",
    }


@pytest.mark.parametrize(
    ("key", "java"),
    [
        ("ssl.truststore.type", {"ssl.truststore.location": "/t.jks"}),
        ("ssl.keystore.type", {"ssl.keystore.location": "/k.jks", "ssl.keystore.type": "JKS"}),
        ("sasl.jaas.config", {"sasl.jaas.config": "com.example.CustomLoginModule required;"}),
        ("sasl.jaas.config", {"sasl.jaas.config": "x.PlainLoginModule required username=me;"}),
        ("sasl.jaas.config", {"sasl.jaas.config": SCRAM.replace(";", ' tokenauth="true";')}),
        ("sasl.jaas.config", {"sasl.jaas.config": SCRAM.replace("required", "requierd")}),
        ("sasl.jaas.config", {"sasl.jaas.config": SCRAM.removesuffix(";")}),
        ("sasl.jaas.config", {"sasl.jaas.config": SCRAM.replace('username="agent"', 'usrname="agent"')}),
        ("sasl.jaas.config", {"sasl.jaas.config": SCRAM.replace(";", " and=")}),
        ("sasl.jaas.config", {"sasl.jaas.config": OAUTH % 'extension_a="b,c"', **OAUTH_ENDPOINT}),
        ("sasl.jaas.config", {"sasl.jaas.config": OAUTH % 'unsecuredLoginStringClaim_sub="me"', **OAUTH_ENDPOINT}),
        ("sasl.oauthbearer.token.endpoint.url", {"sasl.jaas.config": OAUTH % ""}),
        (
            "sasl.oauthbearer.client.credentials.client.secret",
            {"sasl.jaas.config": OAUTH.replace('clientSecret="b"', "") % "", **OAUTH_ENDPOINT},
        ),
        ("sasl.login.callback.handler.class", {"sasl.login.callback.handler.class": "com.example.Handler"}),
        ("securty.protocol", {"securty.protocol": "SSL"}),
        ("security.protocol", {"security.protocol": "SASL_PLAINTXT"}),
        ("sasl.mechanism", {"sasl.mechanism": "scram-sha-256"}),
        ("socket.timeout.ms", {"socket.timeout.ms": "soon"}),
        ("ssl.engine.factory.class", {"ssl.engine.factory.class": "com.example.Factory"}),
        ("ssl.key.password", {"ssl.key.password": "${file:/etc/secrets:key}"}),
        ("ssl.endpoint.identification.algorithm", {"ssl.endpoint.identification.algorithm": "LDAPS"}),
    ],
)
def test_what_cannot_be_translated_is_named(key: str, java: dict[str, str]) -> None:
    with pytest.raises(ClientPropertyError) as error:
        from_java_properties("b:1", java)
    assert error.value.key == key


@pytest.mark.parametrize("proxy", ["http_proxy", "all_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    "endpoint", ["http://idp.example.com/token", "HTTP://idp.example.com/", "idp.example.com/token"]
)
@pytest.mark.parametrize(
    "login",
    [
        {"sasl.jaas.config": OAUTH % ""},
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "a",
            "sasl.oauthbearer.client.secret": "b",
        },
    ],
)
def test_no_login_secret_goes_through_a_proxy_in_plain_text(
    monkeypatch: pytest.MonkeyPatch, login: dict[str, str], endpoint: str, proxy: str
) -> None:
    (key,) = OAUTH_ENDPOINT
    for name in ("http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    plain = {**login, key: endpoint}
    is_read = "sasl.jaas.config" not in login or endpoint.startswith("http:")
    if is_read:
        assert from_java_properties("b:1", plain).properties[key] == endpoint
    monkeypatch.setenv(proxy, "http://proxy.example.com:3128")
    with pytest.raises(ClientPropertyError, match="a proxy of the environment" if is_read else "no http address"):
        from_java_properties("b:1", plain)
    assert from_java_properties("b:1", {**login, key: "https://idp.example.com/token"})
    with pytest.raises(ClientPropertyError, match="a proxy of the environment"):
        from_java_properties("b:1", {"sasl.oauthbearer.metadata.authentication.type": "azure_imds"})


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("securty.protocol=SSL", "securty.protocol: no Kafka client has such a setting (is security.protocol meant?)"),
        ("security.protocol=SSL_SASL", "is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", "sasl.username and sasl.password must be set"),
        ("request.timeout.ms=soon", "request.timeout.ms: Invalid value"),
        ("security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location=/none", "/none is not there"),
    ],
)
def test_a_file_of_which_no_client_can_be_made_is_refused_and_named(tmp_path: Path, lines: str, told: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(lines)
    with pytest.raises(ClientPropertyError) as error:
        read_command_config("b:1", file)
    assert str(file) in str(error.value)
    assert told in str(error.value)
    assert not error.value.retriable


@pytest.mark.parametrize(
    ("java", "wanted"),
    [
        ({"security.protocol": "sasl_plaintext  "}, {"security.protocol": "SASL_PLAINTEXT"}),
        (
            {"sasl.jaas.config": SCRAM.replace(" required", "\n // old /* \n/* x */ REQUIRED debug=true user_b='x'")},
            {"sasl.username": "agent", "sasl.password": 'p"a;s=s'},
        ),
        (
            {
                "sasl.oauthbearer.client.credentials.client.id": "me",
                "sasl.oauthbearer.client.credentials.client.secret": "s",
                "sasl.oauthbearer.scope": "kafka",
                "sasl.login.callback.handler.class": f"{OAUTH_PACKAGE}.OAuthBearerLoginCallbackHandler",
                "sasl.jaas.config": OAUTH % 'extension_pool="p=1" extension_cluster=\'c\'',
                **OAUTH_ENDPOINT,
            },
            {
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.scope": "kafka",
                "sasl.oauthbearer.extensions": "pool=p=1,cluster=c",
                "sasl.oauthbearer.method": "oidc",
                **OAUTH_ENDPOINT,
            },
        ),
        (
            {
                "sasl.oauthbearer.jwt.retriever.class": f"{OAUTH_PACKAGE}.JwtBearerJwtRetriever",
                "sasl.oauthbearer.assertion.template.file": "/t",
                "sasl.jaas.config": f"{OAUTH_PACKAGE}.OAuthBearerLoginModule required;",
                **OAUTH_ENDPOINT,
            },
            {
                "sasl.oauthbearer.assertion.jwt.template.file": "/t",
                "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
                "sasl.oauthbearer.method": "oidc",
                **OAUTH_ENDPOINT,
            },
        ),
        ({"enable.ssl.certificate.verification": "false"}, {"enable.ssl.certificate.verification": "false"}),
        ({"sasl.kerberos.kinit.cmd": KINIT}, {"sasl.kerberos.kinit.cmd": KINIT}),
    ],
)  # fmt: skip
def test_what_java_clients_take_is_carried_over(java: dict[str, str], wanted: dict[str, str]) -> None:
    assert dict(from_java_properties("b:1", java).properties) == wanted


def test_javas_kinit_is_run_with_the_words_that_librdkafka_needs() -> None:
    [command] = from_java_properties("b:1", {"sasl.kerberos.kinit.cmd": "/opt/kinit"}).properties.values()
    keytab, principal = "%{sasl.kerberos.keytab}", "%{sasl.kerberos.principal}"
    assert command == f'"/opt/kinit" -R -t "{keytab}" -k {principal} || "/opt/kinit" -t "{keytab}" -k {principal}'


def test_what_has_no_effect_here_is_told() -> None:
    with capture_logs() as logs:
        given = {"acks": "1", "sasl.login.connect.timeout.ms": "1", "linger.ms": "3", "log_level": "3"}
        assert not from_java_properties("b:1", given).properties
    assert [one["keys"] for one in logs] == [sorted(given)]


def test_secrets_come_by_kafkas_config_providers(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2")
    provider = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"
    jaas = f'x.PlainLoginModule required username="me" password="${{dir:{tmp_path}:password}}";'
    java = {"config.providers": "dir", "config.providers.dir.class": provider, "sasl.jaas.config": jaas}
    config = from_java_properties("b:1", java)
    assert dict(config.properties) == {"sasl.username": "me", "sasl.password": "hunter2"}


def test_no_secret_shows_in_the_repr_or_in_an_error() -> None:
    config = from_java_properties("b:1", {"sasl.jaas.config": SCRAM})
    assert 'p"a;s=s' not in repr(config)
    with pytest.raises(ClientPropertyError) as error:
        from_java_properties("b:1", {"sasl.jaas.config": "x.CustomModule required password=hunter2;"})
    assert "hunter2" not in str(error.value)


def test_a_command_config_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# for the tools\nsecurity.protocol=PLAINTEXT\nclient.rack = zone-a\n")
    config = read_command_config("b:9092", file)
    found = config.for_confluent(linger_ms=5)
    assert found.pop("logger") is logging.getLogger(LIBRDKAFKA_LOGGER)
    assert found == {
        "bootstrap.servers": "b:9092",
        "allow.auto.create.topics": False,
        "security.protocol": "PLAINTEXT",
        "client.rack": "zone-a",
        "linger.ms": 5,
    }
    assert read_command_config("b:9092", None) == KafkaClientConfig("b:9092")


def test_a_command_config_file_is_read_as_java_does_by_iso_8859_1(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    jaas = 'sasl.jaas.config=x.PlainLoginModule required username="u" password="%s";'
    file.write_bytes((jaas % "pässword").encode("latin-1"))
    assert read_command_config("b:9092", file).properties["sasl.password"] == "pässword"
    file.write_bytes((jaas % "pä").encode("utf-8"))
    assert read_command_config("b:9092", file).properties["sasl.password"] == "p\u00c3\u00a4"
    file.write_text(jaas % "p\\u00e4")
    assert read_command_config("b:9092", file).properties["sasl.password"] == "pä"
    file.write_text("a=\\u00")
    with pytest.raises(ClientPropertyError, match=r"client\.properties"):
        read_command_config("b:9092", file)


@pytest.mark.parametrize("kind", [Producer, AdminClient])
def test_what_librdkafka_says_is_in_our_log_alone(
    kind: type[Producer], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    client = kind(
        KafkaClientConfig("127.0.0.1:1").for_confluent(client_id="x", socket_connection_setup_timeout_ms=1000)
    )
    while not caplog.records:
        client.poll(0.1)
    assert "127.0.0.1:1" in caplog.text
    assert "%3|" not in capfd.readouterr().err


def test_librdkafka_takes_the_translation() -> None:
    config = from_java_properties(
        "b:1",
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": 'x.PlainLoginModule required username="u" password="p";',
            "ssl.endpoint.identification.algorithm": "https",
            "request.timeout.ms": "20000",
            "reconnect.backoff.ms": "50",
        },
    )
    Producer({**config.for_confluent(), "log_level": 0})

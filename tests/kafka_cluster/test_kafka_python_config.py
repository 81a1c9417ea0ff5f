"""The same Java client's properties for kafka-python."""

import pytest
from kafka.admin import KafkaAdminClient

from kafka_cluster.client_config import KafkaClientConfig, from_java_properties
from kafka_cluster.errors import ClientPropertyError
from kafka_cluster.kafka_python_config import kafka_python_settings

SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="p;w";'


def test_scram_over_tls_is_translated_into_names_that_the_client_knows() -> None:
    settings = kafka_python_settings(
        from_java_properties(
            "a:9093,b:9093",
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": SCRAM,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/etc/ca.pem",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/etc/admin.pem",
                "ssl.endpoint.identification.algorithm": "",
                "request.timeout.ms": "20000",
            },
        )
    )
    assert settings == {
        "bootstrap_servers": ["a:9093", "b:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "admin",
        "sasl_plain_password": "p;w",
        "ssl_cafile": "/etc/ca.pem",
        "ssl_certfile": "/etc/admin.pem",
        "ssl_keyfile": "/etc/admin.pem",
        "ssl_check_hostname": False,
    }
    assert set(settings) <= set(KafkaAdminClient.DEFAULT_CONFIG)


def test_hostnames_are_checked_unless_it_is_switched_off() -> None:
    https = from_java_properties("a:1", {"ssl.endpoint.identification.algorithm": "https"})
    assert kafka_python_settings(https)["ssl_check_hostname"] is True


@pytest.mark.parametrize("key", ["ssl.keystore.location", "sasl.oauthbearer.client.id", "ssl.cipher.suites"])
def test_what_the_client_cannot_do_is_refused_by_name(key: str) -> None:
    with pytest.raises(ClientPropertyError, match=key):
        kafka_python_settings(KafkaClientConfig("a:1", {key: "x"}))


@pytest.mark.parametrize("option", ["keyTab", "principal"])
def test_a_kerberos_login_is_refused_where_the_client_would_take_another_principals_ticket(option: str) -> None:
    jaas = f'com.sun.security.auth.module.Krb5LoginModule required serviceName="kafka" {option}="/etc/admin";'
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.jaas.config": jaas}
    with pytest.raises(ClientPropertyError, match=rf"sasl\.kerberos\.{option.lower()}.*ticket cache.*run kinit"):
        kafka_python_settings(from_java_properties("a:1", given))

"""Clients log in with SASL under TLS, which ends at the gateway: at the broker they are who their login says.

Listeners for clients of a broker's own zone speak SASL_SSL, those on loopback SASL_PLAINTEXT. Users have passwords of
PLAIN in the brokers' configuration, and SCRAM credentials in the cluster; with OAUTHBEARER they
say who they are. An authorizer lets writer write, reader read. Agents speak mutual TLS to each other, and what is
produced and read goes by object storage.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.security.authority import Authority
from local_cluster.zones import ZoneGateways
from tests.cluster.agent_views import AgentCounters
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES, gateway_cluster
from tests.cluster.script import Script

GATEWAYS = ZoneGateways(THREE_ZONES, bootstrap=True, security_protocol="SASL_SSL")
PASSWORDS = {"operator": "o-secret", "writer": "w-secret", "reader": "r-secret"}
LISTENERS = ("client_az1", "client_az2", "client_az3")
MODULES = "org.apache.kafka.common.security"
CROSSED = "remote_wal_gateway_bytes_total"
PRODUCED_BYTES = "remote_wal_gateway_produce_linked_bytes_total"
ADOPTED_BYTES = "remote_wal_adopted_bytes_total"
FETCHED_BYTES = "remote_wal_gateway_fetch_record_bytes_total"
RECORDS = 3000
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(600)


def sasl_listeners() -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    keys = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER"}
    for name in LISTENERS:
        keys[f"listener.name.{name}.plain.sasl.jaas.config"] = f"{MODULES}.plain.PlainLoginModule required {users};"
        keys[f"listener.name.{name}.scram-sha-256.sasl.jaas.config"] = f"{MODULES}.scram.ScramLoginModule required;"
        # Of tokens that nobody has signed, as Kafka takes them where no other validator is set.
        keys[f"listener.name.{name}.oauthbearer.sasl.jaas.config"] = (
            f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;"
        )
    return keys


def acl(user: str, kind: ResourceType, operation: AclOperation) -> AclBinding:
    return AclBinding(kind, "*", ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def prepare(admin: AdminClient) -> None:
    allowed = [
        acl("writer", ResourceType.TOPIC, AclOperation.WRITE),
        acl("reader", ResourceType.TOPIC, AclOperation.READ),
        acl("reader", ResourceType.GROUP, AclOperation.READ),
    ]
    for done in admin.create_acls(allowed).values():
        done.result(TIMEOUT_S)
    hashed = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upserted = [UserScramCredentialUpsertion(name, hashed, word.encode()) for name, word in PASSWORDS.items()]
    for altered in admin.alter_user_scram_credentials(upserted).values():
        altered.result(TIMEOUT_S)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[LocalCluster]:
    certified = authority.tls_for("brokers", [GATEWAYS.broker_host(one) for one in GATEWAYS.zones])
    gateways = authority.tls_for("gateways", [GATEWAYS.gateway_host(one) for one in GATEWAYS.zones])
    keystore = authority.directory / "brokers.keystore.pem"
    keystore.write_bytes(certified.key_file.read_bytes() + certified.certificate_file.read_bytes())
    agents = {
        **BY_OBJECTS,
        "remote.wal.gateway.fetch.links.enable": "true",
        "remote.wal.gateway.ssl.certificate.file": str(gateways.certificate_file),
        "remote.wal.gateway.ssl.key.file": str(gateways.key_file),
    }
    brokers = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Brokers, agents and the test itself come by listeners without a login.
        "super.users": "User:ANONYMOUS;User:operator",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        **sasl_listeners(),
    }
    with gateway_cluster(tmp_path_factory, GATEWAYS, agents, brokers, tls=True) as made:
        prepare(AdminClient({"bootstrap.servers": made.bootstrap_servers}))
        yield made


def login(
    cluster: LocalCluster, authority: Authority, user: str, mechanism: str, password: str = ""
) -> dict[str, str | int | float | bool]:
    """A client of zone az1, which knows its gateway's address alone."""
    token: dict[str, str | int | float | bool] = {
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": f"principal={user}",
    }
    words: dict[str, str | int | float | bool] = {
        "sasl.username": user,
        "sasl.password": password or PASSWORDS[user],
    }
    return {
        **(token if mechanism == "OAUTHBEARER" else words),
        "bootstrap.servers": GATEWAYS.bootstrap_servers(cluster.layout, "az1"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.file),
        "sasl.mechanism": mechanism,
        "log_level": 0,
    }


def value_of(number: int) -> bytes:
    return f"{number:01000}".encode()


def produce(config: dict[str, str | int | float | bool], topic: str) -> list[KafkaError]:
    """The errors of some records to each of three partitions."""
    producer, errors = Producer({**config, "delivery.timeout.ms": 30_000}), []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            errors.append(error)

    for number in range(RECORDS):
        producer.produce(topic, value_of(number), partition=number % 3, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    return errors


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_at_every_broker_a_client_is_who_its_login_says(
    cluster: LocalCluster, authority: Authority, topic: str, mechanism: str
) -> None:
    cluster.admin.create_topic(topic, assignment=[[1], [2], [3]])
    with Script(cluster, topic) as script:
        script.link_topic()
    counters = AgentCounters(cluster)
    assert produce(login(cluster, authority, "writer", mechanism), topic) == []
    denied = {error.code() for error in produce(login(cluster, authority, "reader", mechanism), topic)}
    assert denied == {KafkaError.TOPIC_AUTHORIZATION_FAILED}
    consumer = Consumer(
        {
            **login(cluster, authority, "reader", mechanism),
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    read: list[bytes | None] = []
    try:
        while len(read) < RECORDS:
            batch = consumer.consume(RECORDS, TIMEOUT_S)
            assert batch, "nothing more came"
            read += [message.value() for message in batch if message.error() is None]
    finally:
        consumer.close()
    assert sorted(read, key=lambda value: int(value or b"")) == list(map(value_of, range(RECORDS)))
    at_others = RECORDS * len(value_of(0)) * 2 / 3
    assert counters.growth(PRODUCED_BYTES) > at_others * 0.9
    assert counters.growth(ADOPTED_BYTES) > at_others * 0.9
    assert counters.growth(FETCHED_BYTES, zone="az1", way="linked") > at_others * 0.3
    for broker in ("2", "3"):
        assert counters.growth(CROSSED, side="gateway", zone="az1", broker=broker, direction="to_broker") > 0


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused_by_the_broker(cluster: LocalCluster, authority: Authority, mechanism: str) -> None:
    errors: list[KafkaError] = []
    config = login(cluster, authority, "writer", mechanism, "guessed")
    admin = AdminClient({**config, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=5)

    def told() -> list[KafkaError] | None:
        admin.poll(0.1)
        return errors or None

    wait_until(told, "the client says why", TIMEOUT_S)
    assert any("uthentication" in error.str() for error in errors), errors


@pytest.mark.parametrize("zone", ["az1", "az3"])
def test_one_bootstrap_address_leads_to_the_zone_under_tls_too(
    cluster: LocalCluster, authority: Authority, zone: str
) -> None:
    # Broker 3's agent: az3 is its own zone, whose listener speaks TLS itself.
    config = {
        **login(cluster, authority, "operator", "SCRAM-SHA-256"),
        "bootstrap.servers": GATEWAYS.bootstrap_address(cluster.layout, 3),
        "client.id": f"app,zone={zone}",
    }
    brokers = AdminClient(config).list_topics(timeout=TIMEOUT_S).brokers.values()
    assert {one.id: one.host for one in brokers} == {
        one: GATEWAYS.broker_host(one) if its == zone else GATEWAYS.gateway_name(zone)
        for one, its in GATEWAYS.zones.items()
    }

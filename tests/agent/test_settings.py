"""The agent's keys in server.properties: what is wrong is named, what belongs together is held together."""

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from agent.configuration import Configuration
from agent.settings.agent_settings import AgentSettings
from agent.settings.configuration_doc import configuration_document
from agent.settings.setting_types import AgentSettingsError, parse_address, parse_peers
from agent.settings_file import agent_settings
from agent.wiring.relaying import catch_up_read_limits
from agent.wiring.write_path import log_manager_limits
from kafka_cluster.errors import ClientPropertyError
from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties
from kafka_log.errors import BrokerPropertiesError
from metadata_topic.settings.wal_retention import AS_LOCAL, WalRetention
from plugin.loading import IMPL_PREFIX
from replication.wire.peer_connection import Address

FILE = Path("/etc/kafka/server.properties")
LOG_DIR = "/data/kafka"


def parsed(**keys: str) -> AgentSettings:
    """Keys in Python's spelling: remote_wal_archive_interval_ms."""
    return _parsed(**keys)[1]


def _parsed(**keys: str) -> tuple[BrokerProperties, AgentSettings]:
    raw = {
        "node.id": "1",
        "process.roles": "broker",
        "log.dirs": LOG_DIR,
        "listeners": "PLAINTEXT://:9092",
        **{key.replace("_", "."): value for key, value in keys.items()},
    }
    broker = parse_broker_properties(raw, FILE)
    return broker, agent_settings(broker, FILE)


def configured(**keys: str) -> Configuration:
    return Configuration.load(*_parsed(**keys))


def refused(**keys: str) -> str:
    with pytest.raises(AgentSettingsError) as caught:
        parsed(**keys)
    return str(caught.value)


def test_a_clients_file_that_is_not_there_is_told_by_its_key() -> None:
    with pytest.raises(
        ClientPropertyError, match=r"^read remote\.wal\.agent\.client\.config: No such file .*'/none/f'"
    ):
        configured(remote_wal_agent_client_config="/none/f")


def test_all_wrong_keys_are_named_at_once() -> None:
    told = refused(
        remote_wal_log_manager_combiner_thread_pool_size="many",
        remote_wal_no_such_key="1",
        remote_wal_agent_http_listener="nowhere",
    )
    assert told.startswith(f"{FILE}: ")
    assert "\n" not in told
    for key in ("log.manager.combiner.thread.pool.size", "no.such.key: no such setting", "agent.http.listener"):
        assert f"remote.wal.{key}" in told


def test_a_key_that_is_nearly_right_is_named_with_the_right_one() -> None:
    told = refused(remote_wal_agent_peer_listner="127.0.0.1:1", remote_wal_no_such_key="1")
    assert "remote.wal.agent.peer.listner: no such setting (is remote.wal.agent.peer.listener meant?)" in told
    assert "remote.wal.no.such.key: no such setting;" in f"{told};"
    assert "remote.wal.link.policy: it is a topic's setting: remote-wal" in refused(remote_wal_link_policy="cost")


TLS = {
    "remote_wal_agent_ssl_certificate_file": "/tls/cert.pem",
    "remote_wal_agent_ssl_key_file": "/tls/key.pem",
    "remote_wal_agent_ssl_ca_file": "/tls/ca.pem",
}


def test_a_brokers_file_without_our_keys_gives_an_agent_that_only_relays() -> None:
    found = parsed()
    assert not found.storage.system_enable
    assert found == AgentSettings()


def test_keys_of_the_broker_and_of_the_storage_manager_are_none_of_ours() -> None:
    assert parsed(remote_log_storage_system_enable="true", **{IMPL_PREFIX + "anything.at.all": "x"}) == AgentSettings()


def test_the_archive_has_a_storage_manager_of_its_own() -> None:
    found = parsed(
        **{"rsm.wal.archive.config.bucket": "cold", "rsm.wal.config.bucket": "warm"},
    )
    assert found.archive.storage_manager_class_name == "plugin.s3.S3WalStorageManager"
    assert not found.archive.enable


def test_quotas_reach_what_they_bound() -> None:
    found = parsed(
        remote_wal_log_manager_copy_max_bytes_per_second="5000000",
        remote_wal_catch_up_fetch_max_bytes_per_second="7000000",
        remote_wal_hydration_timeout_ms="800",
        remote_wal_agent_memory_bytes="640000000",
    )
    assert log_manager_limits(found).commit.bytes_per_s == 5_000_000
    reads = catch_up_read_limits(found)
    assert (reads.bytes_per_s, reads.wait_max_s, reads.under_way_bytes) == (7_000_000, 0.4, 16_000_000)
    assert log_manager_limits(AgentSettings()).commit.bytes_per_s is None


WRONG = [
    ("remote_wal_log_manager_copy_max_bytes_per_second", "0"),
    ("remote_wal_catch_up_fetch_max_bytes_per_second", "0"),
    ("remote_wal_archive_bytes_per_second", "0"),
    ("remote_wal_log_manager_combiner_thread_pool_size", "0"),
    ("remote_wal_log_manager_combiner_thread_pool_size", "many"),
    ("remote_wal_log_manager_combiner_task_upload_bytes", "99999999999"),
    ("remote_wal_log_manager_combiner_task_interval_ms", "1.5"),
    ("remote_wal_uncommitted_ttl_ms", "999"),
    ("remote_log_wal_storage_system_enable", "maybe"),
    ("remote_wal_agent_peer_listener", "localhost"),
    ("remote_wal_agent_peer_listener", "host:70000"),
    ("remote_wal_agent_http_listener", ":80"),
    ("remote_wal_agent_peers", "1@a:1,b:2"),
    ("remote_wal_agent_peers", "x@a:1"),
    ("remote_wal_agent_peers", "1@a:1,1@b:2"),
    ("remote_wal_agent_replica_port_base", "70000"),
    ("remote_wal_no_such_key", "1"),
    ("remote_log_wal_storage_manager_clas_name", "typo"),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=[f"{key}={value}" for key, value in WRONG])
def test_each_wrong_key_is_named_with_its_file(key: str, value: str) -> None:
    assert refused(**{key: value}).startswith(f"{FILE}: {key.replace('_', '.')}: ")


def test_times_are_milliseconds_in_the_file_and_seconds_inside() -> None:
    found = parsed(remote_wal_log_manager_combiner_task_interval_ms="100", remote_wal_uncommitted_ttl_ms="1500")
    assert (found.log_manager.combiner_task_interval_s, found.lifecycle.uncommitted_ttl_s) == (0.1, 1.5)
    assert (AgentSettings().link.latency_bound_s, AgentSettings().lifecycle.retention_s) == (0.5, 3600.0)


def test_how_long_the_wal_keeps_objects_is_told_as_kafka_tells_it() -> None:
    assert parsed().lifecycle.wal_retention == WalRetention(3_600_000)
    as_local = parsed(remote_wal_retention_ms="-2")
    assert as_local.lifecycle.wal_retention == WalRetention(AS_LOCAL)
    assert "remote.wal.retention.ms" in refused(remote_wal_retention_ms="-3")


def test_tls_files_belong_together() -> None:
    assert parsed(**TLS).tls.key_file == Path("/tls/key.pem")
    for missing in TLS:
        rest = {key: value for key, value in TLS.items() if key != missing}
        assert "remote.wal.agent.ssl.*" in refused(**rest)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "[::]", "kafka-1.example", "127.example.com", "128.0.0.1"])
def test_a_peer_listener_open_to_others_needs_tls_or_the_explicit_flag(host: str) -> None:
    listener = {"remote_wal_agent_peer_listener": f"{host}:19090"}
    assert "remote.wal.agent.peer.listener" in refused(**listener)
    assert parsed(**listener, **TLS)
    assert parsed(**listener, remote_wal_agent_plaintext_enable="true")


WITH_LOGIN = {
    "SASL": {"listener_security_protocol_map": "CLIENT:SASL_SSL,WAL:PLAINTEXT"},
    "a certificate": {
        "listener_security_protocol_map": "CLIENT:SSL,WAL:PLAINTEXT",
        "listener.name.client.ssl.client.auth": "required",
    },
}
SERVE = {
    "broker_rack": "a",
    "remote_wal_gateway_enable": "true",
    "remote_wal_gateway_fetch_links_enable": "true",
    "remote_wal_gateway_fetch_serve_enable": "true",
}


@pytest.mark.parametrize("login", WITH_LOGIN)
def test_agents_without_tls_give_nobody_records_that_clients_must_log_in_for(login: str) -> None:
    listeners = {"listeners": "CLIENT://:9092,WAL://:9094", "inter_broker_listener_name": "WAL", **WITH_LOGIN[login]}
    assert not configured(**listeners).shares_reads
    assert configured(**listeners, **TLS).shares_reads
    assert configured().shares_reads
    assert "remote.wal.gateway.fetch.serve.enable: clients of CLIENT must log in" in refused(**listeners, **SERVE)


def test_digests_are_refused_beside_produce_by_objects_which_has_none() -> None:
    digest, produce = {"remote_wal_link_digest": "sha256"}, {"remote_wal_gateway_produce_enable": "true"}
    assert "remote.wal.link.digest" in refused(**digest, **produce)
    assert parsed(**digest).link.takes_digests
    assert not parsed(**produce).link.takes_digests
    assert "remote.wal.link.digest" in refused(remote_wal_link_digest="md5")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.3", "localhost", "[::1]"])
def test_a_peer_listener_on_loopback_needs_no_tls(host: str) -> None:
    assert parsed(remote_wal_agent_peer_listener=f"{host}:19090")


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "[::]", "kafka-1.example"])
def test_an_http_listener_open_to_others_needs_the_flag_whatever_else_is_accepted(host: str) -> None:
    listener = {"remote_wal_agent_http_listener": f"{host}:19095"}
    told = refused(**listener, **TLS, remote_wal_agent_plaintext_enable="true")
    assert "remote.wal.agent.http.listener" in told
    assert "remote.wal.agent.http.plaintext.accepted=true" in told
    assert parsed(**listener, remote_wal_agent_http_plaintext_accepted="true")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.3", "localhost", "[::1]"])
def test_an_http_listener_on_loopback_needs_no_flag(host: str) -> None:
    assert parsed(remote_wal_agent_http_listener=f"{host}:19095")


def test_an_http_listener_open_to_others_is_encrypted_and_knows_who_asks() -> None:
    opened = {"remote_wal_agent_http_listener": "10.0.0.7:19095"}
    files = {"remote_wal_agent_http_ssl_certificate_file": "/a.pem", "remote_wal_agent_http_ssl_key_file": "/a.key"}
    authority, token = {"remote_wal_agent_http_ssl_ca_file": "/ca"}, {"remote_wal_agent_http_token_file": "/token"}
    assert "remote.wal.agent.http.token.file" in refused(**opened, **files)
    assert "remote.wal.agent.http.ssl.certificate.file" in refused(**opened, **token)
    assert "remote.wal.agent.http.ssl.certificate.file" in refused(**authority)
    assert "belong together" in refused(remote_wal_agent_http_ssl_key_file="/a.key")
    for login in (authority, token):
        assert parsed(**opened, **files, **login).http.registered == "https://10.0.0.7:19095"


def test_a_replica_listener_open_to_others_is_refused_even_with_tls_between_agents() -> None:
    opened = {"remote_wal_agent_replica_listen_host": "0.0.0.0"}
    assert "remote.wal.agent.replica.listen.host" in refused(**opened, **TLS)
    assert parsed(**opened, remote_wal_agent_plaintext_enable="true")


def test_ports_for_all_peers_must_exist() -> None:
    reason = refused(remote_wal_agent_peers="1@a:1,60000@b:2", remote_wal_agent_replica_port_base="19900")
    assert "remote.wal.agent.replica.port.base" in reason


@pytest.mark.parametrize(("key", "field"), AgentSettings.documented().items())
def test_an_empty_value_is_taken_only_where_nothing_is_the_default(key: str, field: FieldInfo) -> None:
    """An empty path would be the current directory."""
    default = field.get_default(call_default_factory=True)
    if isinstance(default, str | dict | tuple | frozenset) and not default:
        parsed(**{key: " "})
    else:
        assert f"{key}: " in refused(**{key: " "})


@pytest.mark.parametrize(("key", "field"), AgentSettings.documented().items())
def test_what_python_alone_takes_for_a_number_is_refused(key: str, field: FieldInfo) -> None:
    if {int, float} & {field.annotation, *get_args(field.annotation)}:
        assert f"{key}: '1_000'" in refused(**{key: "1_000"})


def test_the_state_directory_is_the_same_wherever_a_command_runs() -> None:
    assert "state is no absolute path" in refused(remote_wal_agent_state_directory="state")


@pytest.mark.parametrize("inside", ["", "/state", "/../kafka/state"])
def test_the_state_directory_may_not_lie_in_a_log_directory(inside: str) -> None:
    assert "remote.wal.agent.state.directory" in refused(remote_wal_agent_state_directory=LOG_DIR + inside)


def test_the_state_directory_may_not_lie_in_a_log_directory_by_a_link_either(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "innocent").symlink_to(tmp_path / "logs")
    with pytest.raises(AgentSettingsError, match=r"state\.directory"):
        parsed(log_dirs=str(tmp_path / "logs"), remote_wal_agent_state_directory=str(tmp_path / "innocent/state"))
    assert parsed(log_dirs=str(tmp_path / "logs"), remote_wal_agent_state_directory=str(tmp_path / "logs-state"))


@given(st.from_regex(r"[a-z0-9-]{1,9}(\.[a-z0-9-]{1,9}){0,2}", fullmatch=True), st.integers(0, 65535))
def test_an_address_comes_out_as_it_is_written(host: str, port: int) -> None:
    assert parse_address(f" {host}:{port} ") == Address(host, port)
    assert parse_address(str(Address(host, port))) == Address(host, port)
    assert parse_peers(f"7@{host}:{port}, 8@{host}:{port},") == {7: Address(host, port), 8: Address(host, port)}


def test_addresses_of_ipv6_stand_in_brackets() -> None:
    assert parse_address("[fe80::1]:9092") == Address("fe80::1", 9092)


def test_a_number_in_an_address_has_digits_that_all_read() -> None:
    for parse, text in ((parse_address, "a:\uff19"), (parse_peers, "\uff11@a:9")):
        with pytest.raises(ValueError, match="is not "):
            parse(text)


@pytest.mark.parametrize("host", ["x" * 64, "a..b", ".a"])
def test_an_address_that_no_socket_takes_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="no name of a host"):
        parse_address(f"{host}:9092")


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for parse in (parse_address, parse_peers):
        try:
            parse(text)
        except ValueError:
            continue


def test_every_setting_is_described_with_its_key_type_and_default() -> None:
    document, _, _ = configuration_document().partition("\n## Storage manager")  # topics have keys of the same names
    for key, field in AgentSettings.documented().items():
        assert field.description
        assert document.count(f"\n| `{key}` | ") == 1
    assert "\n| `remote.wal.agent.peer.listener` | host:port | `127.0.0.1:19090` | " in document
    assert "\n| `remote.wal.agent.plaintext.enable` | bool | `false` | " in document
    assert "\n| `remote.wal.uncommitted.ttl.ms` | int, 1000 or more | `600000` | " in document


@pytest.mark.parametrize(
    ("keys", "sections"),
    [
        ({}, ("s3_express", "s3_standard", "network")),
        (
            {"remote_log_wal_storage_manager_class_name": "plugin.gcs.GcsWalStorageManager"},
            ("gcs_standard", "s3_standard", "network_gcp"),
        ),
        (
            {
                "remote_log_wal_storage_manager_class_name": "plugin.azure_blob.AzureBlobWalStorageManager",
                "remote_wal_prices_store": "azure_hot",
            },
            ("azure_hot", "s3_standard", "network_azure"),
        ),
    ],
)
def test_the_stores_prices_follow_from_the_storage_manager_unless_set(
    keys: dict[str, str], sections: tuple[str, str, str]
) -> None:
    found = parsed(**keys)
    assert (found.storage.price_section, found.archive.price_section, found.price_network) == sections


def parsed_raw(raw: dict[str, str]) -> tuple[BrokerProperties, AgentSettings]:
    broker = parse_broker_properties(raw, FILE)
    return broker, agent_settings(broker, FILE)


def test_secrets_come_by_kafkas_config_providers_and_unknown_ones_are_refused_in_every_key(tmp_path: Path) -> None:
    (tmp_path / "bucket").write_text("of-a-secret\n")
    raw = {
        "node.id": "1",
        "listeners": "PLAINTEXT://:9092",
        "config.providers": "dir",
        "config.providers.dir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        "remote.wal.agent.memory.bytes": f"${{dir:{tmp_path}:bytes}}",
        f"{IMPL_PREFIX}bucket": f"${{dir:{tmp_path}:bucket}}",
        "listener.name.client.ssl.key.password": "${vault:of:the-broker-alone}",
    }
    (tmp_path / "bytes").write_text(str(2**31))
    broker, found = parsed_raw(raw)
    assert found.process.memory_bytes == 2**31
    assert found.store_spec(broker).settings == {"bucket": "of-a-secret"}
    for key in ("remote.wal.agent.memory.bytes", f"{IMPL_PREFIX}bucket", "broker.rack"):
        with pytest.raises(BrokerPropertiesError, match=rf"{FILE}: {key}: .*no provider 'vault'"):
            parsed_raw({**raw, key: "${vault:a:b}"})


def test_the_brokers_user_is_told_by_name_or_number() -> None:
    assert parsed().process.replica_user is None
    assert parsed(remote_wal_agent_replica_user="root").process.replica_user == 0
    assert parsed(remote_wal_agent_replica_user="12345").process.replica_user == 12345
    assert "'no-such-user' is no user of this host" in refused(remote_wal_agent_replica_user="no-such-user")


SHADOW = {"remote_wal_agent_mode": "shadow", "remote_log_wal_storage_system_enable": "true"}


def test_in_shadow_no_peer_is_reached_so_nothing_of_that_is_asked_for() -> None:
    found = parsed(
        **SHADOW, remote_wal_agent_peer_listener="10.0.0.1:19090", remote_wal_agent_replica_port_base="65000"
    )
    assert found.is_shadow
    assert not found.has_store
    assert not parsed().is_shadow


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"remote_log_wal_storage_system_enable": "false"}, "remote.log.wal.storage.system.enable: must be true"),
        ({"remote_wal_archive_enable": "true"}, "remote.wal.archive.enable: must be false"),
        ({"remote_wal_gateway_enable": "true"}, "remote.wal.gateway.enable: must be false"),
        ({"remote_wal_agent_bypass": "2@10.0.0.2:19096"}, "remote.wal.agent.bypass: must be empty"),
        ({"listeners": "PLAINTEXT://127.0.0.1:19901"}, "advertised.listeners: PLAINTEXT leads other brokers to agents"),
    ],
)
def test_what_an_agent_in_shadow_cannot_do_is_refused(keys: dict[str, str], told: str) -> None:
    assert refused(**SHADOW | keys).startswith(f"{FILE}: with remote.wal.agent.mode=shadow: {told}")

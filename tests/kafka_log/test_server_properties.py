from pathlib import Path

import pytest

from kafka_log.broker_files.server_properties import (
    BrokerProperties,
    Endpoint,
    load_broker_properties,
    parse_broker_properties,
)
from kafka_log.errors import BrokerPropertiesError

PATH = Path("/etc/kafka/server.properties")
MINIMAL = {"node.id": "1", "process.roles": "broker"}


def parse(**changes: str) -> BrokerProperties:
    return parse_broker_properties(MINIMAL | {k.replace("_", "."): v for k, v in changes.items()}, PATH)


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(
        b"# a broker\n"
        b"process.roles=broker,controller\n"
        b"node.id = 3\n"
        b"log.dirs=/data/a, \\\n   /data/b\n"
        b"listeners: CLIENT://0.0.0.0:9092,replication://127.0.0.1:9192,CONTROLLER://[::1]:9093\n"
        b"advertised.listeners=CLIENT://broker-3.example:9092,REPLICATION://127.0.0.1:19003\n"
        b"listener.security.protocol.map=CLIENT:SASL_SSL,REPLICATION:PLAINTEXT,CONTROLLER:ssl\n"
        b"inter.broker.listener.name=replication\n"
        b"controller.listener.names=CONTROLLER\n"
        b"broker.rack=zone-\\u0061\n"
        b"remote.log.wal.storage.system.enable=true\n"
    )
    broker = load_broker_properties(path)
    assert broker.node_id == 3
    assert broker.log_dirs == (Path("/data/a"), Path("/data/b"))
    assert broker.metadata_log_dir == Path("/data/a")
    assert broker.listeners == {
        "CLIENT": Endpoint("0.0.0.0", 9092),
        "REPLICATION": Endpoint("127.0.0.1", 9192),
        "CONTROLLER": Endpoint("::1", 9093),
    }
    assert broker.advertised_listeners["REPLICATION"] == ("127.0.0.1", 19003)
    assert broker.security_protocols["CONTROLLER"] == "SSL"
    assert broker.inter_broker_listener_name == "REPLICATION"
    assert broker.controller_listener_names == ("CONTROLLER",)
    assert broker.rack == "zone-a"
    assert broker.process_roles == {"broker", "controller"}
    assert broker.raw["remote.log.wal.storage.system.enable"] == "true"


def test_kafkas_defaults_hold() -> None:
    broker = parse()
    assert broker.log_dirs == (Path("/tmp/kafka-logs"),)
    assert broker.listeners == broker.advertised_listeners == {"PLAINTEXT": Endpoint("", 9092)}
    assert broker.inter_broker_listener_name == "PLAINTEXT"
    assert broker.rack is None


def test_log_dir_stands_in_for_log_dirs() -> None:
    assert parse(log_dir="/one").log_dirs == (Path("/one"),)
    assert parse(log_dir="/one", log_dirs="/two").log_dirs == (Path("/two"),)
    assert parse(log_dirs="/two", metadata_log_dir="/meta").metadata_log_dir == Path("/meta")


def test_controllers_listeners_are_not_advertised_and_plain_by_default() -> None:
    changes = {"listeners": "PLAINTEXT://h:1,CTRL://h:2", "controller_listener_names": "CTRL"}
    broker = parse(**changes)
    assert set(broker.advertised_listeners) == {"PLAINTEXT"}
    assert broker.security_protocols["CTRL"] == "PLAINTEXT"
    controller = parse(process_roles="controller", listeners="CTRL://h:2", controller_listener_names="CTRL")
    assert not controller.is_broker


def test_the_inter_broker_protocol_names_the_listener() -> None:
    broker = parse(listeners="SSL://h:1", security_inter_broker_protocol="SSL")
    assert broker.inter_broker_listener_name == "SSL"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"node_id": ""}, "node.id"),
        ({"node_id": "x"}, "node.id"),
        ({"node_id": "2147483648"}, "node.id"),
        ({"process_roles": "broker,driver"}, "process.roles"),
        ({"listeners": "PLAINTEXT//h:1"}, "listeners"),
        ({"listeners": "PLAINTEXT://h:65536"}, "listeners"),
        ({"advertised_listeners": "nonsense"}, "advertised.listeners"),
        ({"listeners": "INTERNAL://h:1"}, "inter.broker.listener.name"),
        ({"listeners": "PLAINTEXT://h:1,INTERNAL://h:2"}, "listener.security.protocol.map"),
        ({"inter_broker_listener_name": "OTHER"}, "listener.security.protocol.map"),
        ({"listener_security_protocol_map": "PLAINTEXT:TLS"}, "listener.security.protocol.map"),
        ({"security_inter_broker_protocol": "TLS"}, "security.inter.broker.protocol"),
        (
            {"inter_broker_listener_name": "PLAINTEXT", "security_inter_broker_protocol": "PLAINTEXT"},
            "inter.broker.listener.name",
        ),
        ({"broker_rack": "${env:ZONE}"}, "broker.rack"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(changes: dict[str, str], key: str) -> None:
    with pytest.raises(BrokerPropertiesError) as caught:
        parse(**changes)
    assert (caught.value.path, caught.value.key) == (PATH, key)
    assert str(PATH) in str(caught.value)


def test_a_file_that_java_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"node.id=\\u12\n")
    with pytest.raises(BrokerPropertiesError, match=r"server\.properties"):
        load_broker_properties(path)


def test_secrets_stay_out_of_the_representation() -> None:
    broker = parse_broker_properties(MINIMAL | {"ssl.key.password": "hunter2"}, PATH)
    assert "hunter2" not in repr(broker)
    assert broker.raw["ssl.key.password"] == "hunter2"

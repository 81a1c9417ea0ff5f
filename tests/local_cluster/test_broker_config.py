import random
from pathlib import Path

import javaproperties
import pytest
from cryptography import x509

from local_cluster.broker_config import (
    AgentsMode,
    ClusterSettings,
    hosts_file,
    server_properties,
    write_configuration,
)
from local_cluster.layout import ClusterLayout
from local_cluster.object_store.store_spec import S3Store
from local_cluster.security.listeners import InterBroker
from local_cluster.zones import ZoneGateways


@pytest.fixture
def layout(tmp_path: Path) -> ClusterLayout:
    return ClusterLayout.plan(tmp_path / "cluster", 3, random.Random(1))


def _resolved(hosts: str) -> dict[str, str]:
    return {name: address for address, name in (line.split() for line in hosts.splitlines())}


def test_brokers_run_on_kafkas_defaults_but_for_where_they_are_and_how_small(layout: ClusterLayout) -> None:
    assert set(server_properties(layout, 1, ClusterSettings())) == {
        "process.roles", "node.id", "broker.rack", "log.dirs", "log.cleaner.dedupe.buffer.size",
        "controller.quorum.voters", "controller.listener.names",
        "listeners", "advertised.listeners", "listener.security.protocol.map", "inter.broker.listener.name",
    }  # fmt: skip


def test_kafkas_own_topics_fit_on_fewer_brokers_than_three(tmp_path: Path) -> None:
    properties = server_properties(ClusterLayout.plan(tmp_path, 2, random.Random(1)), 1, ClusterSettings())
    assert properties["offsets.topic.replication.factor"] == "2"
    assert properties["transaction.state.log.min.isr"] == "2"


def test_agents_change_nothing_that_a_stock_broker_reads(layout: ClusterLayout) -> None:
    stock = server_properties(layout, 2, ClusterSettings())
    with_agents = server_properties(layout, 2, ClusterSettings(AgentsMode()))
    assert stock.items() <= with_agents.items()


def test_what_other_hosts_reach_is_on_the_brokers_own_and_what_they_must_not_is_on_loopback(tmp_path: Path) -> None:
    layout = ClusterLayout.plan(tmp_path, 3, random.Random(1), network="10.78")
    gateways = ZoneGateways({1: "az1", 2: "az2", 3: "az3"}, network="10.78")
    properties = server_properties(layout, 2, ClusterSettings(AgentsMode(gateways=gateways)))
    listeners = dict(one.split("://") for one in properties["listeners"].split(","))
    own = {name for name, address in listeners.items() if address.startswith("10.78.2.2:")}
    assert own == {"CLIENT_AGENTS", "CONTROLLER", "CLIENT_AZ2"}
    assert all(listeners[name].startswith("127.0.0.1:") for name in listeners.keys() - own)
    assert properties["remote.wal.agent.peer.listener"].startswith("10.78.2.2:")
    assert properties["remote.wal.agent.plaintext.enable"] == "true"
    assert properties["controller.quorum.voters"].startswith("1@10.78.1.1:")


def test_overrides_win_the_brokers_own_over_the_common(layout: ClusterLayout) -> None:
    settings = ClusterSettings(
        AgentsMode(overrides={"remote.wal.agent.state.directory": "/elsewhere"}),
        overrides={"min.insync.replicas": "1", "num.io.threads": "9"},
        broker_overrides={2: {"num.io.threads": "1"}},
    )
    properties = server_properties(layout, 2, settings)
    assert properties["remote.wal.agent.state.directory"] == "/elsewhere"
    assert (properties["min.insync.replicas"], properties["num.io.threads"]) == ("1", "1")


def test_credentials_reach_neither_files_nor_text(layout: ClusterLayout) -> None:
    store = S3Store("http://127.0.0.1:1", "bucket", access_key_id="planted-id", secret_access_key="planted-key")
    settings = ClusterSettings(AgentsMode(store))
    write_configuration(layout, settings)
    written = "".join(path.read_text() for path in layout.directory.rglob("*") if path.is_file())
    assert "planted" not in written + repr(settings)
    assert "planted-key" in store.environment().values()


def test_what_is_written_is_what_a_properties_reader_reads(layout: ClusterLayout) -> None:
    settings = ClusterSettings(AgentsMode(), overrides={"odd": "a=b:c #d \\ é"})
    write_configuration(layout, settings)
    for broker in layout.broker_ids:
        with layout.server_properties(broker).open() as file:
            assert javaproperties.load(file) == server_properties(layout, broker, settings)


def test_what_somebody_changed_by_hand_stays_and_is_named(layout: ClusterLayout) -> None:
    assert write_configuration(layout, ClusterSettings()) == {}
    file = layout.server_properties(2)
    lines = [line for line in file.read_text().splitlines() if not line.startswith("broker.rack")]
    file.write_text("\n".join([*lines, "num.io.threads=3", "log.cleaner.dedupe.buffer.size=9"]))
    changed = ["broker.rack", "log.cleaner.dedupe.buffer.size", "num.io.threads"]
    assert write_configuration(layout, ClusterSettings(AgentsMode())) == {2: changed}
    assert write_configuration(layout, ClusterSettings(AgentsMode())) == {2: changed}, "once more: they stay theirs"
    found = layout.configured(2)
    assert (found["num.io.threads"], found["log.cleaner.dedupe.buffer.size"]) == ("3", "9")
    assert "broker.rack" not in found
    assert found["remote.log.wal.storage.system.enable"] == "true", "the rest is as the cluster needs it now"


def test_certificates_of_before_stay_good_when_a_cluster_is_configured_again(layout: ClusterLayout) -> None:
    settings = ClusterSettings(AgentsMode(), inter_broker=InterBroker("SSL"))
    write_configuration(layout, settings)
    properties = server_properties(layout, 1, settings)
    old = x509.load_pem_x509_certificate(Path(properties["ssl.keystore.location"]).read_bytes())
    write_configuration(layout, settings)
    assert x509.load_pem_x509_certificate(Path(properties["ssl.keystore.location"]).read_bytes()) != old
    trusted = x509.load_pem_x509_certificate(Path(properties["ssl.truststore.location"]).read_bytes())
    old.verify_directly_issued_by(trusted)


def test_stock_brokers_with_hosts_of_their_own_fetch_from_each_others_and_agents_brokers_from_their_own(
    tmp_path: Path,
) -> None:
    layout = ClusterLayout.plan(tmp_path, 3, random.Random(1), network="10.78")
    dialled = {}
    for agents in (None, AgentsMode()):
        listeners = server_properties(layout, 2, ClusterSettings(agents))["listeners"].split(",")
        (dialled[agents is None],) = (one for one in listeners if one.startswith("REPLICATION"))
        names = _resolved(hosts_file(layout, 1, agents=agents is not None, machine_names=()))
        assert names["replica-2.remote-wal.internal"] == ("10.78.2.2" if agents is None else "127.0.1.1")
        assert names["replica-1.remote-wal.internal"] == ("10.78.1.1" if agents is None else "127.0.0.1")
    port = layout.replica_port(2)
    assert dialled == {True: f"REPLICATION://10.78.2.2:{port}", False: f"REPLICATION://127.0.0.1:{port}"}

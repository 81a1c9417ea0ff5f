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
from local_cluster.node_processes import agent_process
from local_cluster.object_store.store_spec import LocalDirectoryStore, S3Store
from local_cluster.security.listeners import InterBrokerProtocol
from local_cluster.zones import ZoneGateways


@pytest.fixture
def layout(tmp_path: Path) -> ClusterLayout:
    return ClusterLayout.plan(tmp_path / "cluster", 3, random.Random(1))


def _resolved(hosts: str) -> dict[str, str]:
    return {name: address for address, name in (line.split() for line in hosts.splitlines())}


def test_without_agents_no_key_of_ours_is_written(layout: ClusterLayout) -> None:
    properties = server_properties(layout, 1, ClusterSettings())
    assert not [key for key in properties if "wal" in key]


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


def test_every_broker_is_a_voter_so_that_any_one_may_die(layout: ClusterLayout) -> None:
    for broker in layout.broker_ids:
        properties = server_properties(layout, broker, ClusterSettings())
        assert properties["process.roles"] == "broker,controller"
        assert len(properties["controller.quorum.voters"].split(",")) == 3


def test_agents_change_nothing_that_a_stock_broker_reads(layout: ClusterLayout) -> None:
    stock = server_properties(layout, 2, ClusterSettings())
    with_agents = server_properties(layout, 2, ClusterSettings(AgentsMode()))
    assert stock.items() <= with_agents.items()


def test_a_broker_dials_the_others_by_way_of_its_own_agent_and_itself_directly(layout: ClusterLayout) -> None:
    names = _resolved(hosts_file(layout, 2, agents=True, machine_names=["box"]))
    assert {name: address for name, address in names.items() if name.startswith("replica-")} == {
        "replica-1.remote-wal.internal": "127.0.1.2",
        "replica-2.remote-wal.internal": "127.0.0.1",
        "replica-3.remote-wal.internal": "127.0.1.2",
    }
    assert names["localhost"] == names["box"] == "127.0.0.1"


def test_without_agents_the_advertised_name_leads_to_the_brokers_own_listener(layout: ClusterLayout) -> None:
    names = _resolved(hosts_file(layout, 2, agents=False))
    properties = server_properties(layout, 3, ClusterSettings())
    advertised = properties["advertised.listeners"].split(",")[1].removeprefix("REPLICATION://")
    host, port = advertised.split(":")
    assert f"REPLICATION://{names[host]}:{port}" in properties["listeners"].split(",")


def test_the_agents_addresses_fit_together(layout: ClusterLayout) -> None:
    first, second = (server_properties(layout, broker, ClusterSettings(AgentsMode())) for broker in (1, 2))
    peers = dict(entry.split("@") for entry in second["remote.wal.agent.peers"].split(","))
    assert peers["1"] == first["remote.wal.agent.peer.listener"]
    advertised = first["advertised.listeners"].rpartition(":")[2]
    assert int(advertised) == int(second["remote.wal.agent.replica.port.base"]) + 1
    assert second["remote.wal.agent.bootstrap.servers"].startswith(layout.client_address(2) + ",")


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


def test_the_listener_past_the_agents_is_there_where_it_is_asked_for_and_not_advertised(layout: ClusterLayout) -> None:
    assert "bypass" not in str(server_properties(layout, 1, ClusterSettings(AgentsMode()))).lower()
    first, second = (server_properties(layout, one, ClusterSettings(AgentsMode(bypass=True))) for one in (1, 2))
    named = dict(entry.split("@") for entry in second["remote.wal.agent.bypass"].split(","))
    assert f"BYPASS://{named['1']}" in first["listeners"].split(",")
    assert "REPLICATION:PLAINTEXT" in first["listener.security.protocol.map"].split(",")
    assert "BYPASS:SSL" in first["listener.security.protocol.map"].split(",")
    assert "BYPASS" not in first["advertised.listeners"]
    assert first["listener.name.bypass.ssl.client.auth"] == "required"


def test_certificates_are_made_once_and_are_what_the_properties_name(layout: ClusterLayout) -> None:
    settings = ClusterSettings(AgentsMode(bypass=True))
    write_configuration(layout, settings)
    directory = str(layout.directory / "certificates")
    properties = server_properties(layout, 1, settings)
    files = [Path(value) for value in properties.values() if value.startswith(directory)]
    before = {file: file.read_bytes() for file in files}
    assert len(before) == 4
    write_configuration(layout, settings)
    assert {file: file.read_bytes() for file in files} == before


def test_tiered_storage_is_off_unless_asked_for_and_then_shared_by_all_brokers(layout: ClusterLayout) -> None:
    assert not [key for key in server_properties(layout, 1, ClusterSettings()) if key.startswith(("remote.", "rlmm."))]
    first, second = (server_properties(layout, broker, ClusterSettings(tiered_storage=True)) for broker in (1, 2))
    assert first["remote.log.storage.system.enable"] == "true"
    assert first["rsm.config.dir"] == second["rsm.config.dir"] == str(layout.tiered_storage_directory)
    listeners = [listener.split(":")[0] for listener in first["listeners"].split(",")]
    assert first["remote.log.metadata.manager.listener.name"] in listeners


def test_overrides_win_the_brokers_own_over_the_common(layout: ClusterLayout) -> None:
    settings = ClusterSettings(
        AgentsMode(overrides={"remote.wal.agent.state.directory": "/elsewhere"}),
        overrides={"min.insync.replicas": "1", "num.io.threads": "9"},
        broker_overrides={2: {"num.io.threads": "1"}},
    )
    properties = server_properties(layout, 2, settings)
    assert properties["remote.wal.agent.state.directory"] == "/elsewhere"
    assert (properties["min.insync.replicas"], properties["num.io.threads"]) == ("1", "1")


def test_the_store_is_written_under_its_prefix(layout: ClusterLayout) -> None:
    store = LocalDirectoryStore(put_latency_ms=7)
    properties = server_properties(layout, 1, ClusterSettings(AgentsMode(store)))
    assert properties["rsm.wal.config.put.latency.ms"] == "7"
    assert properties["rsm.wal.config.directory"] == str(layout.object_store_directory)


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


def test_agents_in_front_listen_where_clients_find_the_brokers(layout: ClusterLayout) -> None:
    stock = server_properties(layout, 1, ClusterSettings(AgentsMode()))
    properties = server_properties(layout, 1, ClusterSettings(AgentsMode(front=True, bypass=True)))
    (clients,) = (one for one in stock["advertised.listeners"].split(",") if one.startswith("CLIENT:"))
    assert clients in properties["advertised.listeners"].split(",")
    assert clients not in properties["listeners"].split(",")
    ports = [listener.rpartition(":")[2] for listener in properties["listeners"].split(",")]
    assert len(set(ports)) == len(ports) == 5
    assert properties["remote.wal.gateway.durable.port"] == clients.rpartition(":")[2]
    assert "BYPASS" not in properties["advertised.listeners"]


def test_with_gateways_every_listener_of_a_broker_has_a_port_of_its_own(tmp_path: Path) -> None:
    layout = ClusterLayout.plan(tmp_path / "cluster", 4, random.Random(1))
    gateways = ZoneGateways({1: "az1", 2: "az2", 3: "az3", 4: "az1"})
    settings = ClusterSettings(AgentsMode(gateways=gateways))
    for broker_id in layout.broker_ids:
        properties = server_properties(layout, broker_id, settings)
        ports = [listener.rpartition(":")[2] for listener in properties["listeners"].split(",")]
        assert len(set(ports)) == len(ports) == 6
        assert properties["broker.rack"] == gateways.zones[broker_id]


def test_with_gateways_clients_listeners_are_those_of_the_plan_and_agents_are_told_no_more(tmp_path: Path) -> None:
    layout = ClusterLayout.plan(tmp_path / "cluster", 3, random.Random(1))
    gateways = ZoneGateways({1: "az1", 2: "az2", 3: "az3"})
    properties = server_properties(layout, 1, ClusterSettings(AgentsMode(gateways=gateways), tiered_storage=True))
    names = [listener.partition("://")[0] for listener in properties["listeners"].split(",")]
    assert names == ["CLIENT_AGENTS", "CLIENT_AZ1", "CLIENT_AZ2", "CLIENT_AZ3", "REPLICATION", "CONTROLLER"]
    assert properties["remote.wal.agent.client.listener"] == "CLIENT_AGENTS"
    assert properties["remote.wal.agent.bootstrap.servers"] == layout.bootstrap_servers
    assert properties["remote.log.metadata.manager.listener.name"] == "CLIENT_AGENTS"


def test_a_zones_gateways_are_all_of_its_agents(tmp_path: Path) -> None:
    gateways = ZoneGateways({1: "az1", 2: "az2", 3: "az3", 4: "az1"}, is_named=True)
    layout = ClusterLayout.plan(tmp_path / "cluster", 4, random.Random(1))
    name = gateways.gateway_name("az1")
    assert f"127.10.1.101 {name}\n127.10.1.104 {name}\n" in gateways.hosts_file("az1")
    assert (
        gateways.bootstrap_servers(layout, "az1") == f"{name}:{layout.replica_port(2)},{name}:{layout.replica_port(3)}"
    )


def test_agents_under_tls_show_certificates_of_one_authority(tmp_path: Path) -> None:
    layout = ClusterLayout.plan(tmp_path)
    settings = ClusterSettings(AgentsMode(tls=True))
    write_configuration(layout, settings)
    read = [server_properties(layout, one, settings) for one in layout.broker_ids]
    for kind in ("certificate", "key", "ca"):
        files = [Path(properties[f"remote.wal.agent.ssl.{kind}.file"]) for properties in read]
        assert all(file.is_file() for file in files)
        assert len(set(files)) == (1 if kind == "ca" else len(read))


def test_a_cluster_that_speaks_sasl_ssl_is_judged_and_its_agents_speak_tls(layout: ClusterLayout) -> None:
    settings = ClusterSettings(AgentsMode()).with_protocol(InterBrokerProtocol.SASL_SSL)
    properties = server_properties(layout, 2, settings)
    assert "REPLICATION:SASL_SSL" in properties["listener.security.protocol.map"]
    assert properties["super.users"] == "User:broker-1;User:broker-2;User:broker-3"
    assert properties["authorizer.class.name"].endswith("StandardAuthorizer")
    assert "remote.wal.agent.ssl.key.file" in properties


def test_clients_of_such_a_cluster_may_all_but_act_as_brokers() -> None:
    spoken = ClusterSettings().with_protocol(InterBrokerProtocol.SSL).inter_broker
    assert spoken is not None
    (of_cluster,) = (options for options in spoken.clients_may if "--cluster" in options)
    assert not {"All", "ClusterAction"}.intersection(of_cluster)


def test_certificates_of_before_stay_good_when_a_cluster_is_configured_again(layout: ClusterLayout) -> None:
    settings = ClusterSettings(AgentsMode()).with_protocol(InterBrokerProtocol.SSL)
    write_configuration(layout, settings)
    properties = server_properties(layout, 1, settings)
    old = x509.load_pem_x509_certificate(Path(properties["ssl.keystore.location"]).read_bytes())
    write_configuration(layout, settings)
    assert x509.load_pem_x509_certificate(Path(properties["ssl.keystore.location"]).read_bytes()) != old
    trusted = x509.load_pem_x509_certificate(Path(properties["ssl.truststore.location"]).read_bytes())
    old.verify_directly_issued_by(trusted)


def test_plaintext_asks_for_nothing_of_all_this(layout: ClusterLayout) -> None:
    plain = ClusterSettings(AgentsMode())
    assert plain.with_protocol(InterBrokerProtocol.PLAINTEXT) == plain


def test_an_agent_is_the_program_that_is_named_with_its_own_environment_beside_the_stores(tmp_path: Path) -> None:
    store = S3Store("http://127.0.0.1:1", "bucket")
    mode = AgentsMode(store, program="perf.counts.counted_agent", environment={"REMOTE_WAL_PERF_COUNTS_FILE": "there"})
    spec = agent_process(ClusterLayout.plan(tmp_path), 1, ClusterSettings(mode)).spec
    assert spec.command[1:4] == ("-m", "perf.counts.counted_agent", "agent")
    assert spec.environment == {**store.environment(), "REMOTE_WAL_PERF_COUNTS_FILE": "there"}


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

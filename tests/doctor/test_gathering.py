"""Doctor against a real directory store, real sockets, and a host on which nothing answers."""

import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.http import fleet_pages
from agent.http.fleet_pages import AgentPage
from agent.settings_file import agent_settings
from cli.main import build_app
from doctor import gathering, host_questions
from doctor.cluster_questions import enabled_topic
from doctor.diagnosis import CHECKS
from doctor.facts import AgentResponse, ClockReading, Cluster, EnabledTopic, Store, Unknown
from doctor.gathering import advertised_host, agent_response
from doctor.host_questions import (
    addresses_of,
    ask_broker,
    broker_hosts,
    dial,
    lock_holder,
    silence,
    soft_limit,
)
from doctor.store_probe import probe, probe_store
from kafka_log.broker_files.server_properties import parse_broker_properties
from local_cluster.security.authority import Authority
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.settings.wal_retention import AgentsRetention, KeptFor, WalRetention
from plugin.errors import RemoteStorageAccessError
from plugin.loading import DEFAULT_CLASS_NAME, StorageSpec
from plugin.local_directory import DirectoryStore, LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.wall_clock import wall_ms
from replication.wire.peer_connection import Address

CONTEXT = StorageContext("cluster-A", 1)


def manager_on(directory: Path, prefix: str = "", cluster_id: str = "cluster-A") -> LocalWalStorageManager:
    manager = LocalWalStorageManager()
    settings = {"directory": str(directory), "prefix": prefix}
    manager.configure(settings, StorageContext(cluster_id, 1, is_written=False))
    return manager


def probed(directory: Path, prefix: str = "") -> Store:
    store = probe(manager_on(directory, prefix), CONTEXT, "1f", wall_ms)
    assert isinstance(store, Store)
    return store


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("prefix", ["", "wal/prod"])
def test_a_good_store_passes_and_the_probe_is_gone(tmp_path: Path, prefix: str) -> None:
    store = probed(tmp_path, prefix)
    assert (store.failures, store.refuses_overwriting, store.other_clusters) == ({}, True, frozenset())
    assert isinstance(store.clock, ClockReading)
    assert abs(store.clock.skew_ms) < 1000
    assert files(tmp_path) == []


def test_another_cluster_under_the_prefix_is_seen_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("cluster-B/1/0000000000aa/000000000000.rwal", "photos/1/cat.jpg"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x")
    store = probed(tmp_path)
    assert store.other_clusters == frozenset({"cluster-B"})
    assert store.keys_looked_at == 2


def test_a_store_that_overwrites_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DirectoryStore.put_if_absent

    async def careless(self: DirectoryStore, key: str, chunks: list[bytes]) -> None:
        await self.delete(key)
        await honest(self, key, chunks)

    monkeypatch.setattr(DirectoryStore, "put_if_absent", careless)
    assert probed(tmp_path).refuses_overwriting is False


@pytest.mark.parametrize(
    ("method", "step"), [("put_if_absent", "put"), ("get_range", "get"), ("list_page", "list"), ("delete", "delete")]
)
def test_a_missing_permission_is_told_by_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, step: str
) -> None:
    async def refuse(_self: DirectoryStore, key: str, *_: object) -> None:
        raise RemoteStorageAccessError(step, key, "denied")

    monkeypatch.setattr(DirectoryStore, method, refuse)
    store = probed(tmp_path)
    assert {name: failure.label for name, failure in store.failures.items()} == {step: "access"}


def test_a_peer_is_dialled_without_a_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])
        assert dial(address, None, 5) is None
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""
    assert "refused" in str(dial(address, None, 5))


def test_a_broker_whose_kernel_alone_takes_connections_is_silent_and_one_that_refuses_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(2) as pool:
        address = Address("127.0.0.1", server.getsockname()[1])
        for has_tls in (False, True):
            assert "timed out" in str(silence(address, 0.2, has_tls=has_tls)), "as a frozen one"
            server.accept()[0].close()
            asked = pool.submit(silence, address, 60, has_tls=has_tls)
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1)
                connection.sendall(b"\0\0\0\0\0\0\0\0")
                assert asked.result(60) is None
    assert "refused" in str(silence(address, 5, has_tls=False))


def test_a_broker_is_asked_past_its_agent_by_a_request_that_takes_no_login(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.tls_for("broker-1"), authority.tls_for("broker-2", ["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        address = Address("127.0.0.1", server.getsockname()[1])

        def answer(raw: bytes) -> bytes:
            context = other.server_context()
            with contextlib.suppress(ssl.SSLError), context.wrap_socket(server.accept()[0], server_side=True) as peer:
                asked = peer.recv(1000)
                peer.sendall(raw)
                return asked
            return b""

        def asked_with(context: ssl.SSLContext, raw: bytes) -> tuple[str | None, bytes]:
            asked = pool.submit(answer, raw)
            return ask_broker(address, lambda: context, 5), asked.result(60)

        trusting = ssl.create_default_context(cafile=str(own.ca_file))
        assert asked_with(trusting, b"")[0] is not None, "without a client certificate"
        trusting.load_cert_chain(own.certificate_file, own.key_file)
        refusal, asked = asked_with(trusting, b"\0\0\0\x0a\0\0\0\x01\0\0\0\0\0\0")
        assert (refusal, asked) == (None, b"\0\0\0\x1b\0\x12\0\0\0\0\0\x01\0\x11remote-wal-doctor")
        assert asked_with(trusting, b"HTTP/1.1")[0] is not None
    assert "refused" in str(ask_broker(address, lambda: None, 5))


@pytest.mark.parametrize(
    ("own", "seen_from_2"),
    [
        ("replica-1.internal", "replica-2.internal"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("localhost", "localhost"),
        ("kafka-1.zone-1.internal", "kafka-1.zone-1.internal"),
    ],
)
def test_what_another_broker_advertises_is_known_by_the_own_names_pattern(own: str, seen_from_2: str) -> None:
    assert advertised_host(own, 1, 2) == seen_from_2
    assert advertised_host(own, 1, 1) == own


@pytest.mark.parametrize(
    ("names", "unnamed", "refusal"),
    [
        (["replica-1.wal.internal", "replica-2.wal.internal"], (), None),
        (["*.wal.internal"], (), None),
        (["replica-1.wal.internal"], ("replica-2.wal.internal",), None),
        (["replica-2.wal.internal"], ("replica-1.wal.internal",), "not valid for 'replica-1.wal.internal'"),
    ],
)
def test_the_local_broker_is_asked_as_the_agent_dials_it(
    tmp_path: Path, names: list[str], unnamed: tuple[str, ...], refusal: str | None
) -> None:
    own = Authority(tmp_path).tls_for("broker-1", also=names)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]
        key = "remote.wal.agent.broker.ssl"
        raw = {
            "node.id": "1", "listeners": f"WAL://127.0.0.1:{port}", "inter.broker.listener.name": "WAL",
            "advertised.listeners": f"WAL://replica-1.wal.internal:{port}", "listener.security.protocol.map": "WAL:SSL",
            f"{key}.certificate.file": str(own.certificate_file), f"{key}.key.file": str(own.key_file),
            f"{key}.ca.file": str(own.ca_file), "remote.wal.agent.peers": "1@127.0.0.1:1,2@127.0.0.1:2",
        }  # fmt: skip

        def answer() -> None:
            context = own.server_context()  # wants a certificate
            with contextlib.suppress(OSError), context.wrap_socket(server.accept()[0], server_side=True) as peer:
                peer.recv(1000)
                peer.sendall(b"\0\0\0\x0a\0\0\0\x01\0\0\0\0\0\0")

        answered = pool.submit(answer)
        broker = parse_broker_properties(raw, tmp_path / "server.properties")
        found = gathering.broker_tls_facts(broker, agent_settings(broker, broker.path))
        answered.result(60)
    assert found is not None
    assert found.unnamed == unnamed
    assert found.refusal is None if refusal is None else refusal in str(found.refusal)


def test_the_agents_process_and_its_limit_are_read_from_the_kernels_text(tmp_path: Path) -> None:
    file = tmp_path.stat()
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    locks = f"1: POSIX  ADVISORY  WRITE 7 {name} 0 EOF\n2: FLOCK  ADVISORY  WRITE 4711 {name} 0 EOF\n3: -> short\n"
    assert lock_holder(locks, file) == 4711
    assert lock_holder(locks, file, "POSIX") == 7
    assert lock_holder(locks, Path("/").stat()) is None
    assert soft_limit("Limit  Soft  Hard  Units\nMax open files            1024    4096    files\n") == 1024
    with pytest.raises(ValueError, match="Max open files"):
        soft_limit("")


def test_a_topic_without_tiered_storage_keeps_its_records_for_all_of_its_retention() -> None:
    tiered = {"remote.storage.enable": "true", "local.retention.ms": "1000", "retention.ms": "9000"}
    on, archived = TopicSettings(enable=True), TopicSettings(enable=True, archive=True)
    agents = AgentsRetention((WalRetention(2000, 3000), WalRetention(1500, 1500)))
    kept = KeptFor(2000, 3000)
    for factor, in_tier, in_log in ((3, KeptFor(1000, 1000), kept), (1, KeptFor(1000, 1000), KeptFor(9000, 9000))):
        found = enabled_topic(tiered, on, agents, factor)
        assert found == EnabledTopic(1000, True, kept=in_tier, metadata_ms=in_log.lagging_ms, replicas=factor)
        found = enabled_topic({"retention.ms": "9000"}, on, agents, factor)
        assert found == EnabledTopic(9000, False, kept=in_log, metadata_ms=in_log.lagging_ms, replicas=factor)
    found = enabled_topic({"retention.ms": "-1"}, archived, agents, 3)
    assert found == EnabledTopic(-1, True, False, kept, 3000, True, replicas=3)
    assert enabled_topic({}, on, agents, 3) == EnabledTopic(None, False, replicas=3)


@pytest.mark.parametrize(
    ("policy", "kept_ms", "replicas", "grows"),
    [
        ("compact", None, 1, True),
        ("compact", -2, 3, True),
        ("compact", None, 3, False),
        ("compact", -1, 3, False),
        ("compact,delete", -2, 3, False),
    ],
)
def test_objects_of_a_log_that_is_compacted_alone_grow_without_bound(
    policy: str, kept_ms: int | None, replicas: int, grows: bool
) -> None:
    settings = TopicSettings(enable=True, wal_retention_ms=kept_ms)
    config = {"retention.ms": "9000", "cleanup.policy": policy}
    assert enabled_topic(config, settings, AgentsRetention((WalRetention(),)), replicas).grows == grows


def test_where_nothing_answers_every_check_is_made_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_KAFKA_TIMEOUT_S", 0.3)
    file = tmp_path / "server.properties"
    file.write_text(
        f"node.id=1\nlog.dirs={tmp_path}/logs\nlisteners=CLIENT://127.0.0.1:1,WAL://127.0.0.1:19901\n"
        "listener.security.protocol.map=CLIENT:PLAINTEXT,WAL:PLAINTEXT\ninter.broker.listener.name=WAL\n"
        f"remote.wal.agent.state.directory={tmp_path}\nremote.wal.agent.peers=2@127.0.0.1:1\n"
    )
    result = CliRunner().invoke(build_app(), ["doctor", "--broker-config", str(file), "--json"])
    levels = {check["check"]: check["level"] for check in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 6
    assert len(levels) == len(CHECKS) + 1
    assert {check for check, level in levels.items() if level == "error"} == {"broker", "agent-peers"}
    assert levels["store-permissions"] == levels["metadata-topic-retention"] == levels["agents-registered"] == "unknown"
    assert levels["listeners"] == "ok"
    assert not re.search(r"Error: |Exception: |Errno", result.stdout), result.stdout


def test_names_are_resolved_by_the_hosts_file_of_the_brokers_own_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, locks, log_dir = tmp_path / "hosts", tmp_path / "locks", tmp_path / "logs"
    log_dir.mkdir()
    (log_dir / ".lock").touch()
    hosts.write_text("# the agent\n127.0.1.1  replica-2.internal\treplica-3.internal # as those\n")
    monkeypatch.setattr(host_questions, "_LOCKS", locks)
    assert broker_hosts((log_dir,)) is None
    at = (log_dir / ".lock").stat()
    name = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
    command = ["sh", "-c", "echo; read x", f"-Djdk.net.hosts.file={hosts}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        broker.stdout.readline()  # then its command line is in /proc
        locks.write_text(f"1: POSIX  ADVISORY  WRITE {broker.pid} {name} 0 EOF\n")
        found = broker_hosts((log_dir,))
        broker.communicate()
    assert found == {"replica-2.internal": ("127.0.1.1",), "replica-3.internal": ("127.0.1.1",)}
    assert addresses_of("replica-2.internal", found) == ("127.0.1.1",)
    with pytest.raises(OSError, match=r"not in the broker's hosts file"):
        addresses_of("localhost", found)


def test_a_wrong_setting_is_the_only_finding_and_exits_with_2(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\nlog.dirs=/data\nlisteners=PLAINTEXT://:9092\nremote.wal.linke=1\n")
    result = CliRunner().invoke(build_app(), ["doctor", "--broker-config", str(file), "--json"])
    assert result.exit_code == 6
    answer = json.loads(result.stdout)
    assert [(check["check"], check["level"]) for check in answer["checks"]] == [("settings", "error")]
    assert "remote.wal.linke" in answer["checks"][0]["found"]


@pytest.mark.parametrize(("rack", "failures"), [("az1", {}), ("az9", {"open"})])
def test_each_zones_bucket_is_probed_and_the_own_one_is_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rack: str, failures: set[str]
) -> None:
    monkeypatch.setattr(gathering, "_KAFKA_TIMEOUT_S", 0.5)  # no Kafka is there
    raw = {
        "node.id": "1", "log.dirs": f"{tmp_path}/lost,{tmp_path}/data", "broker.rack": rack,
        "remote.wal.agent.state.directory": str(tmp_path / "state"),
        "remote.wal.buckets": f"az1={tmp_path}/one,az2={tmp_path}/two",
    }  # fmt: skip
    for made in ("data", "one", "two"):
        (tmp_path / made).mkdir()
    (tmp_path / "data/meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    broker = parse_broker_properties(raw, tmp_path / "server.properties")
    facts = gathering.gather(broker, agent_settings(broker, tmp_path / "server.properties"), wall_ms)
    assert isinstance(facts.store, Store)
    assert set(facts.store.failures) == set(failures)
    assert list(facts.other_buckets) == ([] if failures else [f"{tmp_path}/two"])
    assert all(isinstance(one, Store) and not one.failures for one in facts.other_buckets.values())


def test_a_stores_directory_that_is_not_there_is_found_and_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "sotre"
    facts = probe_store(StorageSpec(DEFAULT_CLASS_NAME, None, {"directory": str(missing)}), CONTEXT, "1f", wall_ms)
    assert isinstance(facts, Store)
    assert f"rsm.wal.config.directory: there is no directory {missing} (is it misspelt" in facts.failures["open"].text
    assert not missing.exists()


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ({"broker_id": 1, "partitions": []}, "it is not relaying yet"),
        ({"broker_id": 1, "cluster_id": "abc", "gaps": [{"topic": "orders"}]}, "not an agent's answer"),
    ],
)
def test_an_agent_that_says_too_little_is_not_known(page: dict[str, object], reason: str) -> None:
    answer = agent_response(AgentPage(0.1, page))
    assert isinstance(answer, Unknown)
    assert answer.reason.startswith(reason)


def test_the_agent_of_a_decommissioned_broker_is_no_part_of_what_is_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def registered(broker_id: int, retention_ms: int, *, is_gone: bool = False) -> AgentRegistration:
        where = f"agent-{broker_id}"
        return AgentRegistration(
            broker_id, 1, where, "1", 0, is_gone=is_gone, zone="az1", wal_retention_ms=retention_ms
        )

    asked: list[str] = []
    kept_for: list[AgentsRetention] = []

    def answer(endpoint: str, *_: object) -> dict[str, object]:
        asked.append(endpoint)
        gap = {"topic": "orders", "partition": 0, "from_offset": 5, "to_offset": 10}
        return {"broker_id": 1, "cluster_id": "abc", "gaps": [gap], "held": [gap | {"restore": "r", "give_up": "g"}]}

    def described(_client: object, _topics: object, retention: AgentsRetention, _timeout_s: float) -> dict[str, object]:
        kept_for.append(retention)
        return {}

    agents = {1: registered(1, 2000), 4: registered(4, 9000, is_gone=True)}
    monkeypatch.setattr(gathering, "ask_cluster", lambda *_: Cluster(frozenset({1}), Unknown("")))
    monkeypatch.setattr(gathering, "read_settings", lambda *_: SettingsTable(agents=agents))
    monkeypatch.setattr(gathering, "reach", lambda *_: None)
    monkeypatch.setattr(gathering, "ask_topics", described)
    monkeypatch.setattr(fleet_pages, "ask_agent", answer)
    lines = {
        "node.id": "1", "log.dirs": str(tmp_path / "data"), "listeners": "CLIENT://127.0.0.1:1,WAL://127.0.0.1:19901",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,WAL:PLAINTEXT", "inter.broker.listener.name": "WAL",
        "remote.wal.agent.state.directory": str(tmp_path),
    }  # fmt: skip
    broker = parse_broker_properties(lines, tmp_path / "server.properties")
    facts = gathering.gather(broker, agent_settings(broker, broker.path), wall_ms)
    assert asked == ["agent-1"]
    assert facts.agents == {1: AgentResponse("abc", ("orders-0 5 to 9",), ("orders-0 5 to 9: r, or g",))}
    assert facts.registered.keys() == {1}
    assert kept_for == [AgentsRetention((WalRetention(2000),))]

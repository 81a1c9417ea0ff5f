"""What stands in deploy/container: it names what is there, and agents take the settings."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from agent.http.http_endpoint import HttpEndpoint
from agent.settings_file import agent_settings
from kafka_log.broker_files.server_properties import load_broker_properties
from local_cluster.layout import free_port_block, port_is_free
from local_cluster.object_store.native import GoProgramMissingError, native_server
from local_cluster.processes import ManagedProcess, ProcessSpec
from plugin.loading import load_storage_manager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.store_loop import ask
from replication.wire.peer_connection import Address
from tests.command_lines import is_command
from tests.package.bare_environment import ROOT
from tests.plugin.storage_backends import segment

CONTAINER = ROOT / "deploy" / "container"
DOCKERFILE = ROOT / "deploy" / "image" / "Dockerfile"
COMPOSE: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
HADOLINT = Path(sys.executable).with_name("hadolint")


def test_agents_take_the_settings_of_every_broker() -> None:
    files = sorted(CONTAINER.glob("*.properties"))
    assert len(files) == 3
    for file in files:
        broker = load_broker_properties(file)
        settings = agent_settings(broker, file)
        assert settings.storage.system_enable
        assert broker.node_id in settings.peers.peers
        port = settings.peers.replica_port_base + broker.node_id
        assert f"WAL://127.0.0.1:{port}" in broker.raw["advertised.listeners"]


def test_brokers_of_a_cluster_agree_on_all_but_what_is_their_own() -> None:
    own = "node.id broker.rack listeners advertised.listeners"
    own += " remote.wal.agent.peer.listener remote.wal.agent.http.listener"
    files = [load_broker_properties(file).raw for file in sorted(CONTAINER.glob("*.properties"))]
    first, *others = ({key: text for key, text in raw.items() if key not in own.split()} for raw in files)
    assert others == [first, first]
    assert {(raw["node.id"], raw["broker.rack"]) for raw in files} == {("1", "az1"), ("2", "az2"), ("3", "az3")}


def test_every_command_exists_with_its_options() -> None:
    entry = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    program, arguments = (yaml.safe_load(one) for one in entry)
    assert program == ["/opt/remote-wal/bin/remote-wal"]
    assert arguments[0] == "agent"
    assert is_command("", arguments)


def test_health_is_asked_where_it_is_told() -> None:
    asked = re.findall(r":19095(/\w+)", DOCKERFILE.read_text() + (CONTAINER / "compose.yaml").read_text())
    assert len(asked) == 4
    assert {*asked} == {"/livez"}, "an agent is not to be ended for its store's sake"
    assert '"/livez"' in (ROOT / "agent" / "http" / "http_endpoint.py").read_text()


def test_agents_write_no_logs_and_no_settings() -> None:
    for name, service in COMPOSE["services"].items():
        if name.startswith("agent-"):
            settings, logs, *_ = service["volumes"]
            assert settings.endswith(":ro")
            assert logs["read_only"]
            assert service["network_mode"] == f"service:{name.replace('agent', 'kafka')}"


def _stores(endpoint: str) -> Iterator[RemoteWalStorageManager]:
    """The store of each broker's file, at another address."""
    for file in sorted(CONTAINER.glob("*.properties")):
        broker = load_broker_properties(file)
        spec = agent_settings(broker, file).store_spec(broker)
        context = StorageContext("compose", broker.node_id)
        yield load_storage_manager(replace(spec, settings={**spec.settings, "endpoint.url": endpoint}), context)


def test_agents_are_told_the_address_the_bucket_and_the_credentials_of_the_store() -> None:
    store = COMPOSE["services"]["store"]
    port = store["command"][store["command"].index("--port") + 1]
    objects = store["command"][-1]
    for file in sorted(CONTAINER.glob("*.properties")):
        raw = load_broker_properties(file).raw
        assert raw["rsm.wal.config.endpoint.url"] == f"http://store{port}"
        assert store["volumes"] == [f"store:{objects}/{raw['rsm.wal.config.bucket']}"], "the volume is the bucket"
    for name, service in COMPOSE["services"].items():
        if name.startswith("agent-"):
            told = service["environment"]
            assert store["environment"] == {
                "ROOT_ACCESS_KEY": told["AWS_ACCESS_KEY_ID"],
                "ROOT_SECRET_KEY": told["AWS_SECRET_ACCESS_KEY"],
            }


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_the_store_keeps_what_each_agent_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own program by its command and environment, in the place of its container, and each broker's settings."""
    try:
        program = native_server()
    except GoProgramMissingError as error:
        pytest.skip(str(error))
    store, agent = (COMPOSE["services"][name] for name in ("store", "agent-1"))
    (port,) = free_port_block(1, random.SystemRandom())
    # What Docker makes of the volume: the bucket's directory.
    (bucket := tmp_path / "kafka-wal").mkdir()
    places = {":7070": f"127.0.0.1:{port}", "/objects": str(tmp_path)}
    command = (str(program), *(places.get(word, word) for word in store["command"]))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, agent["environment"][name])
    log, pid = tmp_path / "log", tmp_path / "pid"
    server = ManagedProcess(ProcessSpec("store", command, log, pid, tmp_path, store["environment"]))
    server.start_until(lambda: not port_is_free(port), "listens", 60.0)
    try:
        for broker_id, manager in enumerate(_stores(f"http://127.0.0.1:{port}"), 1):
            with closing(manager):
                metadata, records = segment(1, [b"first", b"second"], broker_id)
                stored = ask(manager.copy_log_segment_data(metadata, records))
                start = stored.entries[0].start_file_position
                end = stored.entries[1].end_file_position
                assert ask(manager.fetch_log_segment(stored.combined_segment_id, start, end)) == b"firstsecond"
    finally:
        server.terminate()
    assert any(path.is_file() for path in bucket.rglob("*"))


def test_the_image_asks_its_agent_past_the_containers_proxy() -> None:
    found = re.search(r"^HEALTHCHECK .*\\\n *CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    _, *words = yaml.safe_load(found[1])
    endpoint = HttpEndpoint(CollectorRegistry(), {})
    where = endpoint.start(Address("127.0.0.1", 0))
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:1")
    environment = {"PATH": os.environ["PATH"], "HEALTH_URL": f"http://{where}/livez", **proxies}

    def is_well() -> bool:
        return (
            subprocess.run([sys.executable, *words], env=environment, check=False, capture_output=True).returncode == 0
        )

    assert is_well()
    endpoint.close()
    assert not is_well()


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not here")
def test_hadolint_has_nothing_to_say() -> None:
    told = subprocess.run(
        [HADOLINT, *(ROOT / "deploy/image").iterdir(), ROOT / "deploy/spark/Dockerfile"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (told.returncode, told.stdout) == (0, "")

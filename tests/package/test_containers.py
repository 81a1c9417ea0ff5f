"""What stands in deploy/container: it names what is there, and agents take the settings."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.settings_file import agent_settings
from kafka_log.broker_files.server_properties import load_broker_properties
from tests.command_lines import is_command
from tests.package.bare_environment import ROOT

CONTAINER = ROOT / "deploy" / "container"
DOCKERFILE = CONTAINER / "Dockerfile"
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


def test_the_image_gets_all_that_the_wheel_is_made_of() -> None:
    """The build's context leaves out all that is not named."""
    named = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    rooms = {init.parent.name for init in ROOT.glob("*/__init__.py")} - {"tests", "perf"}
    assert named == rooms | {"*.md", "LICENSE", "pyproject.toml", "requirements.lock", "setup.py", "deploy"}


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not here")
def test_hadolint_has_nothing_to_say() -> None:
    told = subprocess.run([HADOLINT, DOCKERFILE], check=False, capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "")

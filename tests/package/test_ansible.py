"""The role in deploy/ansible: agents take its settings, and what it names is there."""

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from agent.settings_file import read_settings_file
from tests.command_lines import is_command
from tests.package.bare_environment import ROOT
from tests.package.test_systemd import UNITS

ANSIBLE = ROOT / "deploy" / "ansible"
ROLE = ANSIBLE / "roles" / "remote_wal"
FILES = sorted(ANSIBLE.rglob("*.yml"))
KAFKA: dict[str, Any] = yaml.safe_load((ANSIBLE / "inventory.yml").read_text())["kafka"]
BROKER = """node.id={broker}
process.roles=broker
broker.rack=use1-az4
listeners=CLIENT://0.0.0.0:9092,WAL://127.0.0.1:{port}
inter.broker.listener.name=WAL
listener.security.protocol.map=CLIENT:PLAINTEXT,WAL:PLAINTEXT
log.dirs=/srv/kafka
"""


def _tasks() -> list[dict[str, Any]]:
    files = [*(ROLE / "tasks").iterdir(), *(ROLE / "handlers").iterdir()]
    return [task for file in files for task in yaml.safe_load(file.read_text())]


@pytest.mark.parametrize("host", KAFKA["hosts"])
def test_the_agent_of_every_broker_takes_the_settings(host: str, tmp_path: Path) -> None:
    facts = KAFKA["hosts"][host]
    known = {**facts, "hostvars": KAFKA["hosts"], "groups": {"kafka": [*KAFKA["hosts"]]}}
    lines = {key: jinja2.Template(text).render(known) for key, text in KAFKA["vars"]["remote_wal_settings"].items()}
    written = tmp_path / "server.properties"
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    written.write_text(BROKER.format(broker=facts["broker"], port=19900 + facts["broker"]) + text)
    broker, settings = read_settings_file(written)
    assert broker.node_id in settings.peers.peers
    assert len(settings.peers.peers) == 3


def test_one_brokers_agent_is_restarted_at_a_time() -> None:
    (play,) = yaml.safe_load((ANSIBLE / "playbook.yml").read_text())
    assert play["serial"] == 1
    assert {task["notify"] for task in _tasks() if "notify" in task} == {"Restart the agent"}
    asks, restarts = yaml.safe_load((ROLE / "handlers" / "main.yml").read_text())
    assert [task["listen"] for task in (asks, restarts)] == ["Restart the agent"] * 2
    # Without --agent, an agent that is not ready could not be brought what makes it ready.
    assert "doctor --before-restart --agent " in asks["ansible.builtin.command"]


def test_every_variable_is_explained_or_made_by_the_role() -> None:
    named = {name for file in FILES for name in re.findall(r"\bremote_wal_\w+", file.read_text())}
    known = [*yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())]
    known += yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    assert named == {*known} | {task["register"] for task in _tasks() if "register" in task}


def test_every_command_and_unit_exists() -> None:
    commands = [
        one for file in FILES for one in re.findall(r"\{\{ remote_wal_program \}\} ([\w -]+)", file.read_text())
    ]
    assert {text.split()[0] for text in commands} == {"agent", "config", "deploy", "doctor"}
    assert not [text for text in commands if not is_command("", text.split())]
    units = {name for file in FILES for name in re.findall(r"[\w-]+\.(?:service|timer)\b", file.read_text())}
    assert len(units) == 5
    assert all((UNITS / unit).exists() for unit in units)

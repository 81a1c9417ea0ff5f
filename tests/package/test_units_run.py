"""The units in deploy/systemd under a systemd that runs: as documented, with the agent that this checkout is.

Kafka is a process that does nothing: what is judged is what systemd does to the agent. The drop-ins
that are laid beside a unit add to it, and loosen nothing.
"""

import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from local_cluster.polling import wait_until
from tests.package.bare_environment import ROOT
from tests.package.booted_systemd import PATIENCE_S, BootedSystemd, why_not
from tests.package.test_systemd import FILES, PROGRAM, UNITS

AGENT, BALANCER = "remote-wal.service", "remote-wal-balance.service"
TIMERS = ("remote-wal-verify.timer", "remote-wal-drill.timer")
CONFIG, TRIED = "/etc/kafka/server.properties", "/var/lib/remote-wal/tried.json"
TRIES_PROGRAM, ASKS_PROGRAM = "/opt/remote-wal/bin/tries", "/opt/remote-wal/bin/asks"
LAID = "/opt/remote-wal/source/deploy/systemd"
LINES = {
    "node.id": "1",
    "process.roles": "broker",
    "log.dirs": "/srv/kafka",
    "listeners": "CLIENT://127.0.0.1:9092,WAL://127.0.0.1:19901",
    "inter.broker.listener.name": "WAL",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,WAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "remote.log.wal.storage.system.enable": "true",
    "remote.log.wal.storage.manager.class.name": "plugin.local_directory.LocalWalStorageManager",
    "rsm.wal.config.directory": "/var/lib/remote-wal/store",
    "remote.wal.agent.replica.port.base": "19900",
    "remote.wal.agent.peer.listener": "127.0.0.1:19090",
    "remote.wal.agent.peers": "1@127.0.0.1:19090,2@127.0.0.1:19091",
}
PROPERTIES = "".join(f"{key}={value}\n" for key, value in LINES.items())
IDENTITY = "version=1\nnode.id=1\ncluster.id=abcdefghijklmnopqrstuv\ndirectory.id=ABCDEFGHIJKLMNOPQRSTUV\n"
SEGMENT, KEY_STORE = "/srv/kafka/orders-0/00000000000000000000.log", "/etc/kafka/keystore.p12"
OF_THE_BROKER = (SEGMENT, KEY_STORE, CONFIG)

# Its interpreter may lie in a home directory, which is hidden from units: they have it elsewhere, with its library.
RUN = """#!/bin/sh
exec env LD_LIBRARY_PATH=/opt/remote-wal/python/lib {python} -B {script} "$@"
"""
START = """
import sys
sys.path[:0] = ["/opt/remote-wal/source", "/opt/remote-wal/site"]
from cli.start import main
main()
"""
# What an attacker within the agent would try. The modes would let it: careless ones, with which systemd alone denies.
TRIES = f"""
import json, mmap, os, socket
def told(what):
    try:
        what()
    except OSError as error:
        return os.strerror(error.errno)
    return ""
def told_of(path):
    directory = os.path.dirname(path)
    return {{
        "read": told(lambda: open(path).read()),
        "write": told(lambda: open(path, "r+")),
        "delete": told(lambda: os.remove(path)),
        "rename": told(lambda: os.rename(path, path + ".old")),
        "create": told(lambda: open(directory + "/new", "w")),
        "chmod": told(lambda: os.chmod(path, 0o666)),
    }}
json.dump({{
    "files": {{path: told_of(path) for path in {OF_THE_BROKER!r}}},
    "own": told(lambda: open("/var/lib/remote-wal/mine", "w")),
    "packets": told(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "code": told(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)),
    "root": told(lambda: os.setuid(0)),
    "groups": sorted(os.getgroups()),
}}, open("{TRIED}", "w"))
"""
ASKS = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:19095/livez", timeout=60).status)
"""
PREPARE = f"""
groupadd -f -r kafka
id kafka > /dev/null 2>&1 || useradd -r -g kafka kafka
chown -R kafka:kafka /srv/kafka /etc/kafka
chmod -R ug=rwX,o= /srv/kafka /etc/kafka
systemd-sysusers
systemctl enable {AGENT} {" ".join(TIMERS)}
"""

pytestmark = [
    pytest.mark.skipif(bool(why := why_not()), reason=why),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedSystemd]:
    host = BootedSystemd(tmp_path_factory.mktemp("host"))
    python = Path("/opt/remote-wal/python", Path(sys.executable).resolve().relative_to(sys.base_prefix))
    host.mount(Path(sys.base_prefix), "/opt/remote-wal/python")
    host.mount(Path(sysconfig.get_path("purelib")), "/opt/remote-wal/site")
    host.mount(ROOT, "/opt/remote-wal/source")
    for program, script in ((PROGRAM, START), (TRIES_PROGRAM, TRIES), (ASKS_PROGRAM, ASKS)):
        host.file(f"{program}.py", script)
        host.file(program, RUN.format(python=python, script=f"{program}.py"), 0o755)
    for unit in FILES:
        below = "/etc/sysusers.d" if unit.parent.name == "sysusers.d" else "/etc/systemd/system"
        if unit.parent.name == "sysusers.d" or (unit.parent == UNITS and unit.suffix != ".socket"):
            host.file(f"{below}/{unit.name}", unit.read_text())
    host.file(f"/etc/systemd/system/{AGENT}.d/tries.conf", f"[Service]\nExecStartPre={TRIES_PROGRAM}\n")
    kafka = "[Service]\nExecStart=/bin/sleep infinity\nUser=kafka\n[Install]\nWantedBy=multi-user.target\n"
    host.file("/etc/systemd/system/kafka.service", kafka)
    host.file(CONFIG, PROPERTIES)
    host.file(KEY_STORE, "a key")
    host.file("/srv/kafka/meta.properties", IDENTITY)
    host.file(SEGMENT, "")
    host.prepare = PREPARE
    with host:
        yield host


def test_it_is_ready_when_it_relays_and_the_broker_starts_after_it(host: BootedSystemd) -> None:
    units = (AGENT, "kafka.service")
    host.run("systemctl", "stop", *units)
    host.run("systemctl", "start", *units)  # Both are asked for at once: that one waits is the order of the units.
    told = host.show(AGENT, "Type", "ActiveState", "SubState", "StatusText", "User")
    assert told == {
        "Type": "notify",
        "ActiveState": "active",
        "SubState": "running",
        "StatusText": "relaying",
        "User": "remote-wal",
    }
    up = int(host.show(AGENT, "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"])
    begins = host.show("kafka.service", "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"]
    assert 0 < up < int(begins)


def test_it_reads_what_is_the_brokers_and_can_write_none_of_it(host: BootedSystemd) -> None:
    tried: dict[str, Any] = json.loads(host.run("cat", TRIED))
    only_read = "Read-only file system"
    denied = {"read": "", **dict.fromkeys(("write", "delete", "rename", "create", "chmod"), only_read)}
    assert tried["files"] == dict.fromkeys(OF_THE_BROKER, denied)
    assert tried["own"] == ""
    assert tried["packets"] == "Address family not supported by protocol"
    assert (tried["code"], tried["root"]) == ("Operation not permitted", "Operation not permitted")
    kafka = int(host.run("getent", "group", "kafka").split(":")[2])
    assert kafka in tried["groups"]


def test_a_reload_reads_the_brokers_file_again_and_restarts_nothing(host: BootedSystemd) -> None:
    before = host.show(AGENT, "MainPID", "NRestarts")
    host.run("sh", "-c", f"echo remote.wal.agent.shutdown.timeout.ms=9000 >> {CONFIG}")
    host.run("systemctl", "reload", AGENT)
    event = wait_until(lambda: _event(host, "configuration_changed"), "it is not told", PATIENCE_S)
    assert event["keys"] == ["remote.wal.agent.shutdown.timeout.ms"]
    assert host.show(AGENT, "MainPID", "NRestarts") == before


def test_an_agent_that_stands_still_is_started_anew(host: BootedSystemd) -> None:
    before = host.show(AGENT, "MainPID", "NRestarts")
    assert before["MainPID"] != "0"
    host.run("kill", "-STOP", before["MainPID"])
    wait_until(lambda: _restarted(host) > int(before["NRestarts"]), "it is not restarted", PATIENCE_S)
    said = [str(line["MESSAGE"]) for line in host.journal(AGENT)]
    assert any("Watchdog timeout" in line for line in said), said
    _expect_relaying(host, before["MainPID"])


def test_it_is_started_again_however_often_it_dies(host: BootedSystemd) -> None:
    """More often than systemd starts a unit by default before it gives up, which is five times in ten seconds."""
    for _ in range(7):
        before = host.show(AGENT, "MainPID", "NRestarts")
        host.run("systemctl", "kill", "--signal=KILL", AGENT, expect=None)  # Between two starts there is no process.
        wait_until(lambda: _restarted(host) > int(before["NRestarts"]), "it is not restarted", PATIENCE_S)  # noqa: B023
    _expect_relaying(host, before["MainPID"])


@pytest.mark.parametrize("timer", TIMERS)
def test_a_timer_runs_its_check_which_fails_where_it_cannot_find_out(host: BootedSystemd, timer: str) -> None:
    service = timer.replace(".timer", ".service")
    calendar = host.show(timer, "ActiveState", "Unit", "NextElapseUSecRealtime", "Persistent")
    assert (calendar["ActiveState"], calendar["Unit"], calendar["Persistent"]) == ("active", service, "yes")
    assert re.search(r"\d{4}-\d\d-\d\d", calendar["NextElapseUSecRealtime"])
    # Its time has come: once more at once, beside what the unit says.
    now = f"/etc/systemd/system/{timer}.d"
    host.run("mkdir", "-p", now)
    host.run("sh", "-c", f"printf '[Timer]\\nOnActiveSec=0\\nRandomizedDelaySec=0\\n' > {now}/now.conf")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", timer)
    wait_until(lambda: host.show(service, "ActiveState")["ActiveState"] == "failed", "it has no end", PATIENCE_S)
    told = host.show(service, "Result", "ExecMainStatus")
    assert told == {"Result": "exit-code", "ExecMainStatus": "3"}
    said = "\n".join(str(line["MESSAGE"]) for line in host.journal(service))
    assert '"exit_code": 3' in said, said
    assert '"error": "reach the cluster: no broker answers' in said, said


def test_the_balancer_is_started_again_when_no_broker_answers(host: BootedSystemd) -> None:
    host.run("systemctl", "start", BALANCER)
    wait_until(lambda: host.show(BALANCER, "NRestarts")["NRestarts"] != "0", "it is not restarted", PATIENCE_S)
    assert host.show(BALANCER, "User") == {"User": "remote-wal"}
    host.run("systemctl", "stop", BALANCER)
    said = "\n".join(str(line["MESSAGE"]) for line in host.journal(BALANCER))
    assert "no broker answers" in said, said
    assert "status=3" in said, said


def test_who_connects_while_it_is_away_waits_where_systemd_holds_its_sockets(host: BootedSystemd) -> None:
    unit = "/etc/systemd/system/remote-wal.socket"
    host.run("sh", "-c", f"sed s/10.0.1.11/127.0.0.1/ {LAID}/remote-wal.socket > {unit}")
    host.run("sh", "-c", f"echo remote.wal.agent.http.listener=127.0.0.1:19095 >> {CONFIG}")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "stop", AGENT)
    host.run("systemctl", "start", "remote-wal.socket")
    assert host.show(AGENT, "ActiveState") == {"ActiveState": "inactive"}
    assert host.run(ASKS_PROGRAM).strip() == "200"
    _expect_relaying(host, "0")
    unwanted = _event(host, "handed_socket_not_wanted")
    assert unwanted is not None
    assert "19903" in str(unwanted)  # of a broker that this cluster does not have
    host.run("systemctl", "restart", AGENT)
    assert host.run(ASKS_PROGRAM).strip() == "200"
    host.run("systemctl", "stop", "remote-wal.socket", AGENT)
    host.run("rm", unit)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "start", AGENT)


def test_a_broker_that_has_its_logs_starts_at_once_though_what_is_erased_would_be_recovered(
    host: BootedSystemd,
) -> None:
    below = "/etc/systemd/system/kafka.service.d"
    host.run("install", "-D", "-t", below, f"{LAID}/kafka.service.d/remote-wal-recover.conf")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "kafka.service")
    told = host.show("kafka.service", "ActiveState", "User", "TimeoutStartUSec", "Result")
    assert told == {"ActiveState": "active", "User": "kafka", "TimeoutStartUSec": "infinity", "Result": "success"}
    # Without them it does not start with empty ones: nobody tells here what is to be recovered.
    host.run("sh", "-c", "mv /srv/kafka/orders-0 /srv/kafka/meta.properties /var/tmp/")
    host.run("systemctl", "restart", "kafka.service", expect=None)
    assert host.show("kafka.service", "ActiveState", "Result") == {"ActiveState": "failed", "Result": "exit-code"}
    host.run("sh", "-c", "mv /var/tmp/orders-0 /var/tmp/meta.properties /srv/kafka/")
    host.run("rm", "-r", below)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "kafka.service")


def test_it_is_told_to_stop_and_has_the_time_to_finish(host: BootedSystemd) -> None:
    host.run("systemctl", "stop", AGENT)
    assert host.show(AGENT, "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert _event(host, "agent_stopped") is not None
    host.run("systemctl", "start", AGENT)


def _restarted(host: BootedSystemd) -> int:
    return int(host.show(AGENT, "NRestarts")["NRestarts"])


def _expect_relaying(host: BootedSystemd, not_by: str) -> None:
    def relays() -> bool:
        told = host.show(AGENT, "ActiveState", "StatusText", "MainPID")
        return (told["ActiveState"], told["StatusText"]) == ("active", "relaying") and told["MainPID"] != not_by

    wait_until(relays, "it does not relay again", PATIENCE_S)


def _event(host: BootedSystemd, name: str) -> Mapping[str, Any] | None:
    """The last that the agent logged by that name."""
    events = [_json(line) for line in host.journal(AGENT)]
    return next((event for event in reversed(events) if event.get("event") == name), None)


def _json(line: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        read = json.loads(str(line["MESSAGE"]))
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}

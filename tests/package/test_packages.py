"""The packages that deploy/packages builds, installed under a systemd that runs.

It is installed over this machine's files, whose changes are gone at the end.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.fleet.deploy import PARTS
from tests.package.bare_environment import ROOT, build
from tests.package.booted_systemd import BootedSystemd, why_not
from tests.package.test_systemd import UNITS
from tests.package.test_units_run import AGENT, CONFIG, IDENTITY, PROPERTIES

LAID = "/srv/packages"
COMMAND = ("env", "-i", "/usr/bin/remote-wal")
PLACES = "/opt/remote-wal /usr/bin/remote-wal /usr/share/remote-wal /var/lib/remote-wal"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of package and the commands of its hosts."""

    name: str
    builder: str
    install: str
    remove: str
    purge: str
    """Removes what is kept when the package is removed."""

    @property
    def prepare(self) -> str:
        return f"groupadd -f -r kafka\nchown -R root:kafka /etc/kafka /srv/kafka\n{self.install} {LAID}/*\n"


DEB = Kind("deb", "dpkg-deb", "dpkg --install", "dpkg --remove remote-wal", "dpkg --purge remote-wal")
# rpm does not know what Debian's own packages bring.
RPM = Kind("rpm", "rpmbuild", "rpm --install --nodeps", "rpm --erase remote-wal", "rm -r /var/lib/remote-wal")


@pytest.fixture(params=[pytest.param(one, id=one.name) for one in (DEB, RPM)])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    if shutil.which(found.builder) is None:
        pytest.skip(f"{found.builder} is not here")
    return found


@pytest.fixture
def package(kind: Kind, tmp_path: Path) -> Path:
    wheel = build("bdist_wheel", tmp_path / "wheel")
    (made := tmp_path / "made").mkdir()
    script = ROOT / "deploy" / "packages" / "build_package.sh"
    done = subprocess.run(
        [script, kind.name, wheel, made],
        env=os.environ | {"PIP_RETRIES": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 and "after connection broken by" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(why := why_not()), reason=why)
def test_it_is_installed_runs_an_agent_and_is_removed(kind: Kind, package: Path, tmp_path: Path) -> None:
    host = BootedSystemd(tmp_path / "host")
    host.mount(package, LAID)
    host.file(CONFIG, PROPERTIES)
    host.file("/srv/kafka/meta.properties", IDENTITY)
    host.prepare = kind.prepare
    with host:
        _expect_installed(host)
        _expect_commands(host)
        host.run("systemctl", "enable", "--now", AGENT)
        assert host.show(AGENT, "ActiveState", "StatusText") == {"ActiveState": "active", "StatusText": "relaying"}
        compiled = host.run("find", "/opt/remote-wal", "-newer", CONFIG, "-name", "*.pyc")
        assert compiled == "", "it was built with all that Python would compile"
        host.run(*kind.remove.split())
        assert host.show(AGENT, "ActiveState", "LoadState") == {"ActiveState": "inactive", "LoadState": "not-found"}
        assert host.run("ls", "/var/lib/remote-wal") != "", "state is kept until it is purged"
        host.run(*kind.purge.split())
        assert host.run("sh", "-c", f"ls -d {PLACES} 2> /dev/null", expect=None) == ""
        # It does not lay its files over an environment that was made by hand.
        host.run("sh", "-c", "mkdir -p /opt/remote-wal && touch /opt/remote-wal/pyvenv.cfg")
        host.run("sh", "-c", f"! {kind.install} {LAID}/*")
        assert host.run("ls", "/opt/remote-wal").split() == ["pyvenv.cfg"]


def _expect_installed(host: BootedSystemd) -> None:
    """Units are there, and none is enabled; so are the user and what an operator loads elsewhere."""
    told = [
        line.split() for line in host.run("systemctl", "list-unit-files", "--no-legend", "remote-wal*").splitlines()
    ]
    assert {unit for unit, *_ in told} == {
        path.name for kind in ("service", "timer") for path in UNITS.glob(f"*.{kind}")
    }
    assert not [unit for unit, state, *_ in told if state == "enabled"]
    assert {*host.run("id", "-nG", "remote-wal").split()} == {"remote-wal", "kafka"}
    assert {*host.run("ls", "/usr/share/remote-wal").split()} == set(PARTS)


def _expect_commands(host: BootedSystemd) -> None:
    assert host.run(*COMMAND, "--version").startswith("remote-wal 0.")
    assert "remote.wal.agent.ssl.ca.file=" in host.run(*COMMAND, "config", "init", "--broker-config", CONFIG)
    told = json.loads(host.run(*COMMAND, "config", "check", "--json", "--broker-config", CONFIG, expect=1))
    assert [one.partition(";")[0] for one in told["advice"]] == [
        "rsm.wal.config.directory: there is no directory /var/lib/remote-wal/store"
    ], "the agent makes it when it starts"

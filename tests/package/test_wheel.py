"""What is built and installed works without this checkout, and takes no name of anybody else's."""

import json
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from cli.extras import EXTRAS
from cli.fleet.deploy import PARTS
from cli.main import COMMANDS
from tests.package.bare_environment import (
    ROOT,
    BareEnvironment,
    bare_distributions,
    build,
    installed_bytes,
)

MOST_BYTES = 250_000_000
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("bdist_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> BareEnvironment:
    return BareEnvironment.with_wheel(tmp_path_factory.mktemp("bare"), wheel)


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if ".dist-info/" not in name}


def test_all_rooms_lie_below_one_package_with_all_their_files(wheel: Path) -> None:
    folders = [*PACKAGES, "remote_wal", *(f"deploy/{part}" for part in PARTS)]
    files = {path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    named = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    below = {name if name.startswith("remote_wal/") else f"remote_wal/{name}" for name in named}
    assert _names(wheel) - {"remote_wal/commit.txt"} == below


def test_the_rooms_are_all_but_what_is_for_this_checkout() -> None:
    assert {init.parent.name for init in ROOT.glob("*/__init__.py")} - {"tests", "perf", "remote_wal"} == set(PACKAGES)


def test_a_wheel_of_the_sdist_is_that_of_the_checkout(tmp_path: Path, wheel: Path) -> None:
    sdist = build("sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.name.startswith("remote_wal-"))
    assert not [package for package in PACKAGES if (unpacked / package).exists()]
    again = build("bdist_wheel", tmp_path / "again", unpacked)
    with zipfile.ZipFile(again) as found, zipfile.ZipFile(wheel) as expected:
        assert {name: found.read(name) for name in _names(again)} == {
            name: expected.read(name) for name in _names(wheel)
        }


def test_a_brokers_host_gets_no_more_than_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        own = sum(entry.file_size for entry in opened.infolist())
    assert 50_000_000 < installed_bytes(bare_distributions()) + own < MOST_BYTES


def test_the_version_tells_the_commit_that_was_built(bare: BareEnvironment) -> None:
    told = bare.run("remote-wal", "--version")
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True)
    commit = asked.stdout.strip() or "unknown"
    lines = dict(line.split(": ") for line in told.stdout.splitlines()[1:])
    assert told.stdout.startswith("remote-wal 0.")
    assert lines["commit"].removesuffix("-changed") == commit
    assert lines.keys() >= {"between agents", "linked fetches", "combined segments", "metadata records"}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_tells_its_help(bare: BareEnvironment, command: str) -> None:
    told = bare.run("remote-wal", command, "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert "Usage: remote-wal" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(("report", "--bootstrap-server", "127.0.0.1:1"), "report"), (("demo",), "demo"), (("cluster", "up"), "demo")],
)
def test_a_command_of_a_missing_extra_says_what_to_install(
    bare: BareEnvironment, arguments: tuple[str, ...], extra: str
) -> None:
    told = bare.run("remote-wal", *arguments)
    assert told.returncode == 3
    assert told.stderr.endswith(f" is not installed: this needs remote-wal[{extra}]\n")
    assert told.stderr.count("\n") == 1


def test_an_operator_without_a_checkout_writes_what_is_in_deploy(bare: BareEnvironment, tmp_path: Path) -> None:
    written = bare.run("remote-wal", "deploy", "write", str(tmp_path / "there"))
    assert (written.returncode, written.stderr) == (0, "")
    for part in PARTS:
        of_checkout = {path.relative_to(ROOT / "deploy"): path for path in (ROOT / "deploy" / part).rglob("*")}
        assert any(path.is_file() for path in of_checkout.values())
        for name, path in of_checkout.items():
            assert path.is_dir() or (tmp_path / "there" / name).read_bytes() == path.read_bytes()


def test_each_extra_that_commands_ask_for_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert EXTRAS.keys() == project["optional-dependencies"].keys() - {"checks"}
    assert all(
        any(text.startswith(module) for text in project["optional-dependencies"][extra])
        for extra, modules in EXTRAS.items()
        for module in modules - {"markupsafe"}  # Jinja's
    )


def test_doctor_opens_the_store_that_settings_name_by_its_class(bare: BareEnvironment, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").write_text(
        "version=1\nnode.id=1\ncluster.id=abcdefghijklmnopqrstuv\ndirectory.id=ABCDEFGHIJKLMNOPQRSTUV\n"
    )
    config = tmp_path / "server.properties"
    config.write_text(
        "node.id=1\nprocess.roles=broker\nlisteners=CLIENT://127.0.0.1:1,WAL://127.0.0.1:19901\n"
        f"inter.broker.listener.name=WAL\nlog.dirs={tmp_path / 'log'}\n"
        "listener.security.protocol.map=CLIENT:PLAINTEXT,WAL:PLAINTEXT\n"
        "remote.log.wal.storage.system.enable=true\nremote.wal.agent.replica.port.base=19900\n"
        f"remote.wal.agent.state.directory={tmp_path / 'state'}\n"
        "remote.log.wal.storage.manager.class.name=plugin.local_directory.LocalWalStorageManager\n"
        f"rsm.wal.config.directory={tmp_path / 'store'}\n"
        "remote.wal.agent.peer.listener=127.0.0.1:19090\nremote.wal.agent.peers=2@127.0.0.1:2\n"
    )
    told = bare.run("remote-wal", "doctor", "--json", "--broker-config", str(config))
    levels = {check["check"]: (check["level"], check["found"]) for check in json.loads(told.stdout)["checks"]}
    assert levels["settings"][0] == "ok", levels
    assert levels["store-settings"][0] == "ok", levels
    assert told.returncode == 6, "no broker answers"


def test_no_other_program_of_the_environment_sees_the_packages(bare: BareEnvironment) -> None:
    names = [*PACKAGES, *(f"remote_wal.{package}" for package in PACKAGES)]
    code = (
        f"import importlib.util as u, remote_wal\nprint([name for name in {names!r} if u.find_spec(name) is not None])"
    )
    told = bare.run("python", "-c", code)
    assert (told.stdout.strip(), told.stderr) == ("[]", "")

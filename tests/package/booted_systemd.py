"""A systemd that really runs: process 1 of namespaces, on a root whose changes are gone at the end.

Needs root, as mounts do. What it starts sees this machine's files, none of its network, processes and cgroups.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from local_cluster.polling import wait_until

PATIENCE_S = 120.0
NAMESPACES = ("-m", "-p", "-u", "-i", "-C", "-n")
BOOT = Path(__file__).with_name("boot_systemd.sh")
SYSTEMD = next(
    (path for path in map(Path, ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")) if path.exists()), None
)


def why_not() -> str:
    """What is missing here, in words for whoever reads that a test was skipped; empty where a systemd can be booted."""
    if os.geteuid() != 0:
        return "only root can boot a systemd in namespaces"
    if SYSTEMD is None or shutil.which("systemctl") is None:
        return "systemd is not here"
    if missing := [name for name in ("unshare", "nsenter", "ip", "pivot_root") if shutil.which(name) is None]:
        return f"{', '.join(missing)} is not here"
    if (cgroups := _cgroups()) is None or not os.access(cgroups, os.W_OK):
        return "no cgroup2 is mounted that can be written"
    with_mount = ("unshare", *NAMESPACES, "--fork", "mount", "-t", "cgroup2", "cgroup2", "/mnt")
    tried = subprocess.run(with_mount, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    return "" if tried.returncode == 0 else f"no namespaces with mounts of their own: {tried.stderr.strip()}"


def _cgroups() -> Path | None:
    """Where the second version of cgroups is mounted."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)


class BootedSystemd:
    """From `with` to its end. `show`, `journal` and `run` are for then; files are laid down before."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._mounts: dict[Path, Path] = {}
        self._files = scratch / "files"
        self._files.mkdir(parents=True)
        cgroups = _cgroups()
        assert cgroups is not None
        self._cgroup = cgroups / f"remote-wal-test-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self.prepare = ""
        """Shell lines that root runs before systemd starts, such as who owns what."""

    def file(self, path: str, content: str, mode: int = 0o644) -> None:
        laid = self._files / path.lstrip("/")
        laid.parent.mkdir(parents=True, exist_ok=True)
        laid.write_text(content)
        laid.chmod(mode)

    def mount(self, directory: Path, at: str) -> None:
        self._mounts[directory] = Path(at)

    def __enter__(self) -> Self:
        (self._scratch / "prepare").write_text(self.prepare)
        (self._scratch / "mounts").write_text("".join(f"{one} {at}\n" for one, at in self._mounts.items()))
        self._cgroup.mkdir()
        within = f"echo $$ > {shlex.quote(str(self._cgroup / 'cgroup.procs'))} && exec " + shlex.join(
            ["unshare", *NAMESPACES, "--fork", "--kill-child", "bash", str(BOOT), str(self._scratch), str(SYSTEMD)]
        )
        with (self._scratch / "console").open("wb") as console:
            self._process = subprocess.Popen(["bash", "-c", within], stdout=console, stderr=console)
        try:
            wait_until(self._is_up, f"systemd is not up, see {self._scratch / 'console'}", PATIENCE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)  # And with the first process all others of its namespace.
        self._process.kill()
        self._process.wait(PATIENCE_S)
        wait_until(self._are_cgroups_gone, "processes of the booted systemd are left", PATIENCE_S)

    def run(self, *command: str, expect: int | None = 0) -> str:
        """What a command that root runs in there prints. Raises AssertionError unless it ends with `expect`."""
        into = ["nsenter", "-t", str(self._pid), "-m", "-p", "-u", "-i", "-C", "-n", "--", *command]
        done = subprocess.run(
            into, check=False, capture_output=True, text=True, timeout=PATIENCE_S, start_new_session=True
        )
        assert expect is None or done.returncode == expect, (command, done.stdout, done.stderr)
        return done.stdout

    def show(self, unit: str, *properties: str) -> Mapping[str, str]:
        lines = self.run("systemctl", "show", unit, f"--property={','.join(properties)}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def journal(self, unit: str) -> Sequence[Mapping[str, Any]]:
        """What the unit's processes and systemd said of it, as dictionaries of journald."""
        lines = self.run("journalctl", "--no-pager", "-o", "json", f"--unit={unit}").splitlines()
        return [json.loads(line) for line in lines]

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._told()
        told = self._scratch / "pid"
        if not (told.exists() and told.read_text().strip()):
            return False
        self._pid = int(told.read_text())
        return self.run("systemctl", "is-active", "multi-user.target", expect=None).strip() == "active"

    def _told(self) -> str:
        return f"systemd did not come up: {(self._scratch / 'console').read_text()}"

    def _are_cgroups_gone(self) -> bool:
        for one in sorted(self._cgroup.rglob("*/"), reverse=True):
            _gone(one)
        return _gone(self._cgroup)


def _gone(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # A process of it is on its way out.
    return True

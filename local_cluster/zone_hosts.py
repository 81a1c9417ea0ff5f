"""A host for each zone, as a network namespace: the kernel counts the bytes that one zone sends to another.

Broker b is alone in the b-th zone, on <network>.b.b; its agent is the zone's gateway on <network>.b.(100 + b), as in
`local_cluster.zone_gateways`. All namespaces are connected to one bridge, and so is this host, on <network>.0.254,
which therefore reaches every broker and agent. Needs root and iproute2.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

CAN_MAKE = os.geteuid() == 0 and shutil.which("ip") is not None
MAY_FAIL = (OSError, subprocess.CalledProcessError)
"""The errors of making them if the machine does not allow it, as in many containers."""


@dataclass(frozen=True, slots=True)
class ZoneHosts:
    """The namespaces, named after this process and their network."""

    network: str
    """The first two numbers of all addresses."""
    broker_ids: Sequence[int] = (1, 2, 3)
    """The brokers, and numbers that no broker has for other things that need a host, such as an object store."""

    @property
    def here(self) -> str:
        """The address where all of them reach this host."""
        return f"{self.network}.0.254"

    def address(self, broker_id: int) -> str:
        """Return the address of a host."""
        return f"{self.network}.{broker_id}.{broker_id}"

    def namespace(self, broker_id: int) -> str:
        """Return the namespace where a broker, its agent and its zone's clients run."""
        return f"{self._name}-az{broker_id}"

    def prefix(self, broker_id: int) -> tuple[str, ...]:
        """Return the beginning of a command line that is to run there."""
        return ("ip", "netns", "exec", self.namespace(broker_id))

    def entered_bytes(self) -> dict[int, int]:
        """Return the bytes that entered each zone from others and from this host, including frames, as the kernel
        counts them.
        """
        return {one: self._count(one, "tx_bytes") for one in self.broker_ids}

    @contextmanager
    def made(self) -> Iterator[Self]:
        """Make the namespaces; they are removed at the end. Raises CalledProcessError, FileExistsError, other
        OSErrors.
        """
        if _is_ours(self.here):
            raise FileExistsError(f"{self.here} is an address of this machine already")
        try:
            self._make()
            yield self
        finally:
            self._destroy()

    @property
    def _name(self) -> str:
        return f"rw{os.getpid()}-{self.network.rpartition('.')[2]}"

    def _wire(self, broker_id: int) -> str:
        return f"{self._name}z{broker_id}"

    def _count(self, broker_id: int, counter: str) -> int:
        return int(Path(f"/sys/class/net/{self._wire(broker_id)}/statistics/{counter}").read_text())

    def _make(self) -> None:
        bridge = f"{self._name}b"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("address", "add", f"{self.here}/16", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for one in self.broker_ids:
            name, wire = self.namespace(one), self._wire(one)
            _ip("netns", "add", name)
            _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", wire, "master", bridge, "up")
            for host in (one, 100 + one):
                _ip("-n", name, "address", "add", f"{self.network}.{one}.{host}/16", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def _destroy(self) -> None:
        for one in self.broker_ids:
            _ip("link", "delete", self._wire(one), may_fail=True)
            _ip("netns", "delete", self.namespace(one), may_fail=True)
        _ip("link", "delete", f"{self._name}b", may_fail=True)


@contextmanager
def hosts_where_allowed(*hosts: ZoneHosts) -> Iterator[bool]:
    """Make them if root and the machine allow it; yield whether they exist. They are removed at the end."""
    with ExitStack() as made:
        try:
            for one in hosts if CAN_MAKE else ():
                made.enter_context(one.made())
        except MAY_FAIL:
            made.close()
            yield False
            return
        yield CAN_MAKE


def _is_ours(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _ip(*arguments: str, may_fail: bool = False) -> None:
    subprocess.run(["ip", *arguments], check=not may_fail, capture_output=True, text=True)

"""Network namespaces for clients, each of which reaches the addresses of one zone and no others. Needs root."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_cluster.zones import ZoneGateways

_CLIENT_HOST = 250
CAN_MAKE = os.geteuid() == 0 and shutil.which("ip") is not None


@dataclass(frozen=True, slots=True)
class ClientZone:
    """Where a client of one zone runs."""

    zone: str
    namespace: str
    interface: str
    """This machine's end of the wire to it."""

    @property
    def prefix(self) -> list[str]:
        """What a command line begins with that is to run there."""
        return ["ip", "netns", "exec", self.namespace]

    @property
    def received_bytes(self) -> int:
        """What the kernel counted from the brokers' and agents' side to the client."""
        return int(Path(f"/sys/class/net/{self.interface}/statistics/tx_bytes").read_text())


def can_reach(client: ClientZone, host: str) -> bool:
    found = subprocess.run([*client.prefix, "ip", "route", "get", host], capture_output=True, check=False)
    return found.returncode == 0


@contextmanager
def client_zones(gateways: ZoneGateways) -> Iterator[dict[str, ClientZone]]:
    """A namespace for each zone, and the addresses that brokers and agents of it listen at."""
    with_names = Path("/etc/netns")
    made: dict[str, ClientZone] = {}
    try:
        for number, zone in enumerate(gateways.zone_names, 1):
            client = ClientZone(zone, f"rwal{os.getpid()}-{zone}", f"rw{os.getpid() % 100000}z{number}")
            made[zone] = client
            _ip("netns", "add", client.namespace)
            _ip("link", "add", client.interface, "type", "veth", "peer", "name", "eth0", "netns", client.namespace)
            for host in [f"{gateways.subnet(zone)}.254", *gateways.addresses(zone)]:
                _ip("address", "add", f"{host}/24", "dev", client.interface)
            _ip("link", "set", client.interface, "up")
            inside = ["-n", client.namespace]
            _ip(*inside, "address", "add", f"{gateways.subnet(zone)}.{_CLIENT_HOST}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "link", "set", "lo", "up")
            directory = with_names / client.namespace
            directory.mkdir(parents=True)
            (directory / "hosts").write_text(gateways.hosts_file(zone))
        yield made
    finally:
        for client in made.values():
            subprocess.run(["ip", "link", "delete", client.interface], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "delete", client.namespace], check=False, capture_output=True)
            shutil.rmtree(with_names / client.namespace, ignore_errors=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

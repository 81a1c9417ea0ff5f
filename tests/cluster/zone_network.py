"""Network namespaces for clients, each of which reaches the addresses of one zone and no others. Needs root."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_cluster.zones import ZoneGateways
from tests.cluster.script import PATIENCE_S

_CLIENT_HOST = 250
CHECKOUT = Path(__file__).resolve().parents[2]
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

    @contextmanager
    def producing(self, *words: str) -> Iterator[list[str]]:
        """A `zone_client` that goes on until the end; yields the lines that it says.

        What it sent must all be acknowledged by then.
        """
        process = subprocess.Popen(
            self.command(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
        )
        assert process.stdin is not None
        assert process.stdout is not None
        lines = process.stdout
        told: list[str] = []
        reading = threading.Thread(target=lambda: told.extend(lines), daemon=True)
        reading.start()
        try:
            yield told
            process.stdin.close()
            reading.join(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            reading.join(PATIENCE_S)
            process.stdout.close()
        said = json.loads(told[-1])
        assert said["delivered"] == said["sent"], said
        assert (said["waiting"], said["failed"]) == (0, 0)

    def command(self, *words: str) -> list[str]:
        """Runs `zone_client` there."""
        return [*self.prefix, sys.executable, "-m", "tests.cluster.zone_client", *words]

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

"""Hosts in network namespaces: there where the machine allows it, and gone afterwards."""

import os
import subprocess
from pathlib import Path

import pytest

from local_cluster import zones
from local_cluster.zones import CAN_MAKE, ZoneHosts, hosts_where_allowed

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Networks are the machine's: each process of the tests has two of its own, beside those of `perf`."""
HOSTS = tuple(ZoneHosts(f"10.{200 + 2 * WORKER + one}", (1, 9)) for one in (0, 1))


def namespaces() -> set[str]:
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in told.splitlines()}


@pytest.fixture
def root_may() -> None:
    with hosts_where_allowed(ZoneHosts(HOSTS[0].network, ())) as are_there:
        if not are_there:
            pytest.skip("this machine allows no network namespaces")


@pytest.mark.usefixtures("root_may")
def test_each_host_reaches_the_others_of_its_network_and_they_go_in_the_end() -> None:
    own = {hosts.namespace(one) for hosts in HOSTS for one in hosts.broker_ids}
    with hosts_where_allowed(*HOSTS) as are_there:
        assert are_there
        assert own <= namespaces()
        for hosts in HOSTS:
            route = [*hosts.prefix(1), "ip", "route", "get", hosts.address(9)]
            assert "dev eth0" in subprocess.run(route, capture_output=True, text=True, check=True).stdout
            assert hosts.entered_bytes().keys() == {1, 9}
    assert not own & namespaces()


@pytest.mark.usefixtures("root_may")
def test_where_one_cannot_be_made_none_are_left() -> None:
    with HOSTS[1].make(), hosts_where_allowed(*HOSTS) as are_there:
        assert not are_there
        assert HOSTS[0].namespace(1) not in namespaces()
        assert HOSTS[1].namespace(1) in namespaces()


def test_without_root_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones, "CAN_MAKE", False)
    with hosts_where_allowed(*HOSTS) as are_there:
        assert not are_there


@pytest.mark.skipif(not CAN_MAKE, reason="needs root and iproute2")
def test_where_the_machine_refuses_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ip").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with hosts_where_allowed(*HOSTS) as are_there:
        assert not are_there


def test_what_fails_while_they_are_there_is_told() -> None:
    with pytest.raises(OSError, match="of the block"), hosts_where_allowed():
        raise OSError("of the block")

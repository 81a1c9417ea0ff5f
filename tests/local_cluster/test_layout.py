import random
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_cluster.layout import (
    HIGHEST_PORT,
    LAYOUT_FILE,
    ClusterLayout,
    LayoutError,
    NoFreePortsError,
    free_port_block,
    load_layout,
    port_is_free,
    save_layout,
)

layouts = st.builds(
    ClusterLayout,
    st.just(Path("/cluster")),
    st.text("abcABC019_-", min_size=22, max_size=22),
    st.integers(0, 9),
    st.integers(1, 65535),
    st.sampled_from(["", "10.78"]),
)


@given(layouts)
def test_a_layout_survives_its_file(layout: ClusterLayout) -> None:
    save_layout(layout)
    assert load_layout(layout.directory) == layout


def test_no_two_listeners_share_an_address(tmp_path: Path) -> None:
    layout = ClusterLayout.plan(tmp_path, 3, random.Random(2))
    addresses = [layout.client_address(broker) for broker in layout.broker_ids]
    addresses += [layout.controller_address(broker) for broker in layout.broker_ids]
    addresses += [f"127.0.0.1:{layout.replica_port(broker)}" for broker in layout.broker_ids]
    addresses += [layout.agent_http_address(broker) for broker in layout.broker_ids]
    addresses += [layout.peer_address(broker) for broker in layout.broker_ids]
    addresses += [
        f"{layout.agent_replica_host(broker)}:{layout.replica_port(other)}"
        for broker in layout.broker_ids
        for other in layout.broker_ids
    ]
    assert len(set(addresses)) == len(addresses) == 24


def test_brokers_on_hosts_of_their_own_share_no_address_with_each_other(tmp_path: Path) -> None:
    layout = ClusterLayout.plan(tmp_path, 3, random.Random(2), network="10.78")
    for broker in layout.broker_ids:
        listened = (layout.client_address, layout.controller_address, layout.peer_address, layout.agent_http_address)
        addresses = [address(broker) for address in listened]
        assert len(set(addresses)) == len(addresses)
        assert {address.partition(":")[0] for address in addresses} == {f"10.78.{broker}.{broker}"}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"version": 99}',
        '{"version": 1, "cluster_id": "x", "brokers": [{"broker_id": 1}], "replica_port_base": 5}',
        '{"version": 2, "cluster_id": "x", "brokers": [], "replica_port_base": 5, "network": ""}',
        '{"version": 2, "cluster_id": "x", "brokers": 3, "replica_port_base": 5}',
    ],
)
def test_a_file_that_is_no_layout_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / LAYOUT_FILE).write_text(text)
    with pytest.raises(LayoutError, match=LAYOUT_FILE):
        load_layout(tmp_path)


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server(("127.0.2.1", 0)) as server:
        assert not port_is_free(server.getsockname()[1])


def test_a_port_is_free_though_its_server_closed_a_connection_a_moment_ago() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = server.accept()
        accepted.close()  # first, so that the connection waits here for what may be late
    server.close()
    assert port_is_free(port)


def test_a_block_avoids_taken_ports_and_the_range_of_outgoing_connections() -> None:
    block = free_port_block(10, random.Random(3), is_free=lambda port: port % 50 != 0)
    assert len(block) == 10
    assert all(port % 50 and port <= HIGHEST_PORT for port in block)


def test_no_free_block_is_an_error() -> None:
    with pytest.raises(NoFreePortsError):
        free_port_block(2, random.Random(4), is_free=lambda port: port % 2 == 0)

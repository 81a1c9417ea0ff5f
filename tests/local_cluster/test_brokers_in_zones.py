"""Several brokers to a zone, of which some are controllers."""

from pathlib import Path

from local_cluster.broker_config import ClusterSettings, server_properties
from local_cluster.layout import ClusterLayout
from tests.cluster.brokers_in_zones import in_zones


def test_brokers_stand_in_their_zones_and_all_ask_the_same_controllers(tmp_path: Path) -> None:
    layout = ClusterLayout.plan(tmp_path, 4)
    before = ClusterSettings(None, {"num.io.threads": "2"}, {4: {"num.io.threads": "3"}})
    settings = in_zones(before, layout, {1: "a", 2: "a", 3: "b", 4: "b"}, (1, 2, 3))
    of = {one: server_properties(layout, one, settings) for one in layout.broker_ids}
    assert [of[one]["broker.rack"] for one in (1, 2, 3, 4)] == ["a", "a", "b", "b"]
    assert [of[one]["num.io.threads"] for one in (1, 4)] == ["2", "3"]
    [voters] = {found["controller.quorum.voters"] for found in of.values()}
    assert [voter.partition("@")[0] for voter in voters.split(",")] == ["1", "2", "3"]
    assert of[4]["process.roles"] == "broker"
    assert of[1]["process.roles"] != "broker"
    assert "CONTROLLER://" in of[1]["listeners"]
    assert "CONTROLLER://" not in of[4]["listeners"]
    assert "CLIENT" in of[4]["listeners"]

"""Several brokers in a zone, as in clusters of more than three; by default each has a zone of its own."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from local_cluster.broker_config import ClusterSettings, server_properties
from local_cluster.layout import ClusterLayout


def in_zones(
    settings: ClusterSettings, layout: ClusterLayout, zones: Mapping[int, str], controllers: Collection[int]
) -> ClusterSettings:
    """These settings for a cluster of this layout whose brokers, by their ids, stand in these zones.

    So many of them are controllers as well; by default all are, and the more vote, the longer a decision takes.
    """
    voters = ",".join(f"{one}@{layout.controller_address(one)}" for one in controllers)
    own = dict(settings.broker_overrides)
    for one, zone in zones.items():
        more = {"broker.rack": zone}
        if one not in controllers:
            listeners = server_properties(layout, one, ClusterSettings())["listeners"].split(",")
            kept = ",".join(address for address in listeners if not address.startswith("CONTROLLER"))
            more |= {"process.roles": "broker", "listeners": kept}
        own[one] = {**own.get(one, {}), **more}
    return replace(settings, broker_overrides=own, overrides={**settings.overrides, "controller.quorum.voters": voters})

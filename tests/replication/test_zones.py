"""Who stands in the leader's own zone gets its bytes as in stock Kafka; whose zone is not known does not."""

import pytest

from replication.leader.zones import Zones
from tests.replication.fetch_frames import partition
from tests.replication.test_relay_core import INLINE, Rig, is_linked, uploaded


def rig_in(own: str | None, followers: str | None) -> Rig:
    rig = Rig(zones=Zones(own))
    rig.context.zones.learned({2: followers})
    return rig


def test_a_follower_in_the_leaders_zone_is_sent_what_is_stored_inline_and_told_of_no_object() -> None:
    rig = rig_in("az1", "az1")
    rig.stored()
    rig.asked()
    assert rig.answered() == INLINE
    assert rig.core.uploaded(uploaded(0)) == []
    assert rig.led.fetches, "that it fetches still tells the load"


def test_a_follower_in_the_leaders_zone_waits_for_no_upload() -> None:
    rig = rig_in("az1", "az1")
    rig.asked()
    assert rig.answered() == INLINE
    assert rig.led.wanted == []
    assert rig.faults("link_wait_timeout") == 0


@pytest.mark.parametrize(("own", "followers"), [("az1", "az2"), ("az1", None), (None, "az1"), (None, None)])
def test_a_follower_elsewhere_or_in_a_zone_that_is_not_known_gets_links(own: str | None, followers: str | None) -> None:
    rig = rig_in(own, followers)
    rig.stored()
    rig.asked()
    is_linked(rig.answered())
    assert rig.core.uploaded(uploaded(0))


def test_a_follower_whose_zone_becomes_known_is_sent_inline_from_the_next_response_on() -> None:
    rig = Rig(zones=Zones("az1"))
    rig.linked()
    rig.context.zones.learned({2: "az1"})
    rig.asked()
    assert rig.answered() == INLINE


def test_a_zone_has_a_replica_where_a_follower_of_the_partition_stands() -> None:
    zones = Zones("az1")
    zones.learned({2: "az2", 3: None})
    zones.led({partition(0): frozenset({2, 3}), partition(1): frozenset()})
    assert [zones.has_replica(zone, partition(0)) for zone in ("az2", "az3")] == [True, False]
    assert zones.has_replica("az2", partition(1)) is False
    assert zones.has_replica("az2", partition(2)) is None
    zones.led({})
    assert zones.has_replica("az2", partition(0)) is None


def test_a_broker_that_is_away_keeps_its_zone_until_it_comes_back_in_another() -> None:
    zones = Zones("az1")
    zones.learned({2: "az1", 3: "az2"})
    zones.learned({3: "az2"})
    assert zones.is_own(2)
    assert zones.remote(frozenset({2, 3, 4})) == {3, 4}
    zones.learned({2: "az3", 3: "az1"})
    assert zones.remote(frozenset({2, 3, 4})) == {2, 4}
    zones.learned({3: None})
    assert not zones.is_own(3)

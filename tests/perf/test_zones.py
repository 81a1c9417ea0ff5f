"""What the benchmark of three zones makes of agents' counters, and where its partitions stand."""

from local_cluster.agent_metrics import parse_metrics
from perf.zones import LEADERS, ZONES, assignment, counted, rows

TOLD = """
# TYPE remote_wal_store_requests_total counter
remote_wal_store_requests_total{operation="put",store="wal",outcome="ok"} 100
remote_wal_store_requests_total{operation="get",store="wal",outcome="ok"} 210
# TYPE remote_wal_announcements_total counter
remote_wal_announcements_total 600
# TYPE remote_wal_shared_ranges_total counter
remote_wal_shared_ranges_total{role="asker",outcome="given"} 390
remote_wal_shared_ranges_total{role="asker",outcome="timeout"} 10
remote_wal_shared_ranges_total{role="giver",outcome="given"} 390
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
"""


def test_an_object_s_gets_and_readers_are_told_beside_what_neighbours_gave() -> None:
    found = counted("shared", 20.0, parse_metrics(TOLD).counters)
    assert (found.objects, found.other_zones, found.readers, found.gets) == (100, 2, 6.0, 2.1)
    assert (found.given, found.refused, found.cpu_ms) == (3.9, 0.1, 2.5)
    assert not found.is_sound, "nobody has compared the replicas yet"
    assert ("GETs of an object", "2.10") in rows([found])
    assert ("replicas", "DIFFERENT") in rows([found])


def test_each_partition_has_a_replica_in_each_zone_and_each_leader_six_followers_of_two_zones() -> None:
    replicas = assignment()
    assert all({ZONES[one] for one in found} == set(ZONES.values()) for found in replicas)
    assert {found[0] for found in replicas} == set(LEADERS)
    for leader in LEADERS:
        followers = {one for found in replicas if found[0] == leader for one in found[1:]}
        assert followers == {one for one, zone in ZONES.items() if zone != ZONES[leader]}

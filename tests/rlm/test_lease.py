"""A lease in the bucket: agents of one cluster share it, a clone of the cluster does not."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.lease_watch import LeaseWatch, make_lease
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.settings_records import Leases, LeaseValue, with_lease
from plugin import wall_clock
from plugin.blob_storage import BlobStorage
from plugin.errors import IncompleteListingError, RemoteStorageError
from rlm.lifecycle.lease import LOOK_S, RENEW_S, KnownLeases, Lease
from tests.metadata_topic.fake_blobs import FakeBlobs
from tests.plugin.two_zones import two_zones


class Cluster:
    """The settings topic of one cluster, and its agents' clock."""

    values = count()

    def __init__(self, blobs: FakeBlobs) -> None:
        self.blobs = blobs
        self.records: dict[int, Leases] = {}
        """By broker."""
        self.is_read = self.takes_records = True
        self.may_lack = False
        self.now_s = 0.0

    def agent(self, blobs: BlobStorage | None = None, broker_id: int | None = None) -> Lease:
        recorded = Recorded(self, len(self.records) if broker_id is None else broker_id)
        return Lease(blobs or self.blobs, recorded, lambda: f"value-{next(self.values)}", lambda: self.now_s)

    def clone(self) -> "Cluster":
        other = Cluster(self.blobs)
        other.records = dict(self.records)
        return other


class Recorded:
    """One broker's agent's way to the topic."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        cluster.records.setdefault(broker_id, ())

    def read(self) -> KnownLeases | None:
        values = frozenset(one for leases in self.cluster.records.values() for one in leases)
        return KnownLeases(values, self.cluster.may_lack) if self.cluster.is_read else None

    def record(self, lease: LeaseValue) -> None:
        if not self.cluster.takes_records:
            raise MetadataTopicError("write setting", "lease", "away")
        self.cluster.records[self.broker_id] = with_lease(self.cluster.records[self.broker_id], lease)


def live(agents: list[Lease], cluster: Cluster, duration_s: float) -> None:
    until_s = cluster.now_s + duration_s
    while cluster.now_s < until_s:
        for agent in agents:
            agent.look()
        cluster.now_s += LOOK_S
        if cluster.blobs.now_ms is not None:
            cluster.blobs.now_ms += int(LOOK_S * 1000)


def test_agents_of_one_cluster_renew_it_in_turn_and_may_delete() -> None:
    cluster = Cluster(FakeBlobs())
    agents = [cluster.agent() for _ in range(3)]
    assert not any(agent.may_delete for agent in agents), "before the first look"
    live(agents, cluster, 10 * RENEW_S)
    assert all(agent.may_delete and agent.lost_because is None for agent in agents)
    assert 10 <= max(one.number for leases in cluster.records.values() for one in leases) <= 16, "once an interval"
    assert len(cluster.blobs.blobs) == 2
    agents[0] = cluster.agent()  # restarted
    assert not agents[0].may_delete
    live(agents, cluster, 2 * LOOK_S)
    assert agents[0].may_delete


@pytest.mark.parametrize("original_runs", [True, False])
def test_a_clone_that_starts_later_or_the_original_when_it_comes_back_stops_and_a_person_decides(
    original_runs: bool,
) -> None:
    original = Cluster(FakeBlobs())
    first = original.agent()
    live([first], original, 2 * RENEW_S)
    clone = original.clone()
    if original_runs:
        live([first], original, 2 * RENEW_S)
    second = clone.agent()
    live([second], clone, 3 * LOOK_S)
    assert (second.lost_because is not None, second.may_delete) == (original_runs, not original_runs)
    live([first], original, 3 * LOOK_S)
    assert (first.lost_because is not None) is not original_runs
    live([second], clone, 2 * LOOK_S)
    assert not any(agent.may_delete for agent in (first, second)), "the one that goes on has been told, too"
    watches = [LeaseWatch(agent, lambda: 0, TTL_S) for agent in (first, second)]
    assert [watch.contested is not None for watch in watches] == [original_runs, not original_runs]

    (clone if original_runs else original).agent().take()
    for _ in range(3):
        live([first], original, 3 * LOOK_S)
        live([second], clone, 3 * LOOK_S)
    assert (first.lost_because is not None, first.may_delete) == (original_runs, not original_runs)
    assert (second.lost_because is not None, second.may_delete) == (not original_runs, original_runs)
    again = (clone if original_runs else original).clone().agent()
    again.look()
    live([first], original, 3 * LOOK_S)
    live([second], clone, 3 * LOOK_S)
    again.look()
    assert not any(agent.may_delete for agent in (first, second)), "a clone of the one that took it is another matter"


def test_an_agent_that_dies_between_record_and_object_harms_nobody() -> None:
    cluster = Cluster(FakeBlobs())
    agent = cluster.agent()
    live([agent], cluster, RENEW_S)
    Recorded(cluster, 7).record(LeaseValue(3, "of one that died"))
    live([agent], cluster, 2 * RENEW_S)
    assert agent.may_delete


def test_renewals_that_fail_do_not_hide_the_one_that_stands() -> None:
    cluster = Cluster(FakeBlobs())
    agent = cluster.agent()
    live([agent], cluster, RENEW_S)
    for _ in range(3):
        cluster.blobs.puts_before_it_fails = 0
        for _ in range(5):
            cluster.now_s += RENEW_S
            with pytest.raises(RemoteStorageError):
                agent.look()
        agent = cluster.agent(broker_id=0)  # restarted
    cluster.blobs.puts_before_it_fails = None
    assert len(cluster.records[0]) <= 5
    live([agent], cluster, 2 * LOOK_S)
    assert (agent.lost_because, agent.may_delete) == (None, True)


def test_without_an_answer_nothing_is_lost_and_after_some_time_nothing_deleted() -> None:
    cluster = Cluster(FakeBlobs())
    agent = cluster.agent()
    live([agent], cluster, RENEW_S)
    cluster.is_read = False
    live([agent], cluster, 10 * LOOK_S)
    assert (agent.lost_because, agent.may_delete) == (None, False)
    cluster.is_read, cluster.blobs.is_down = True, True
    with pytest.raises(RemoteStorageError):
        agent.look()
    cluster.blobs.is_down = False
    live([agent], cluster, 2 * LOOK_S)
    assert agent.may_delete


def test_a_lease_that_was_held_before_the_machine_was_suspended_is_not_held_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(FakeBlobs())
    stands_still = SimpleNamespace(
        CLOCK_BOOTTIME=7, clock_gettime=lambda which: cluster.now_s if which == 7 else 0.0, monotonic=lambda: 0.0
    )
    monkeypatch.setattr(wall_clock, "time", stands_still)
    agent = make_lease(cluster.blobs, Recorded(cluster, 1))  # type: ignore[arg-type]
    live([agent], cluster, RENEW_S)
    assert agent.may_delete
    cluster.now_s += 3600
    assert not agent.may_delete


def test_what_cannot_be_recorded_is_not_written() -> None:
    cluster = Cluster(FakeBlobs())
    cluster.takes_records = False
    with pytest.raises(MetadataTopicError):
        cluster.agent().look()
    assert not cluster.blobs.blobs


def test_records_are_read_as_written_and_keep_the_last_two_numbers() -> None:
    leases = with_lease(with_lease((LeaseValue(1, "a"),), LeaseValue(2, "b")), LeaseValue(2, "c"))
    assert leases == (LeaseValue(1, "a"), LeaseValue(2, "b"), LeaseValue(2, "c"))
    assert with_lease(leases, LeaseValue(3, "d")) == (*leases[1:], LeaseValue(3, "d"))


@pytest.mark.parametrize("may_lack", [True, False], ids=["remembers the loss", "a new host"])
def test_a_value_that_was_lost_with_the_settings_topic_is_not_taken_for_another_clusters(may_lack: bool) -> None:
    cluster = Cluster(FakeBlobs())
    agents = [cluster.agent(broker_id=one) for one in range(2)]
    live(agents, cluster, RENEW_S)
    known = dict(cluster.records)
    cluster.records, cluster.may_lack = {}, may_lack  # the topic was lost, and nobody has restored it yet
    alone = cluster.agent(broker_id=2)
    live([alone], cluster, RENEW_S)
    assert (alone.lost_because, alone.is_contested, alone.may_delete) == (None, False, False)
    assert "lease take" in (alone.unknown_because or "")
    cluster.records = {2: (), **known}  # the others are back
    live([alone, *agents], cluster, RENEW_S)
    assert [(one.lost_because, one.unknown_because, one.may_delete) for one in (alone, *agents)] == [
        (None, None, True)
    ] * 3
    cluster.records = {2: ()}
    number = alone.take()
    live([alone], cluster, RENEW_S)
    assert (alone.unknown_because, alone.may_delete) == (None, True), number


@pytest.mark.parametrize("zones", [("az1",), ("az1", "az2")])
def test_agents_of_several_zones_write_to_their_buckets_and_see_all(tmp_path: Path, zones: tuple[str, ...]) -> None:
    """With a bucket for each zone the newest number may be there in both."""
    cluster = Cluster(FakeBlobs())
    storages = [two_zones(tmp_path, zone, "cluster") for zone in zones]
    agents = [cluster.agent(one.blobs) for one in storages]
    live(agents, cluster, 3 * RENEW_S)
    assert all(agent.may_delete for agent in agents)
    stranger = Cluster(FakeBlobs())
    stranger.agent(storages[-1].blobs).take()
    live(agents, cluster, 2 * LOOK_S)
    assert all(agent.lost_because for agent in agents)
    for storage in storages:
        storage.close()


def test_a_bucket_that_does_not_answer_does_not_count_as_one_without_a_lease(tmp_path: Path) -> None:
    stranger, cluster = Cluster(FakeBlobs()), Cluster(FakeBlobs())
    both, one = two_zones(tmp_path, "az2", "cluster"), two_zones(tmp_path, "az1", "cluster", away=("az2",))
    before = two_zones(tmp_path, "az1", "cluster")
    live([cluster.agent(before.blobs)], cluster, 2 * LOOK_S)
    stranger.agent(both.blobs).take()
    agent, known = cluster.agent(one.blobs, broker_id=0), dict(cluster.records)
    for _ in range(3):
        with pytest.raises(IncompleteListingError):
            agent.look()
    assert (agent.may_delete, cluster.records) == (False, known)
    for storage in (one, both, before):
        storage.close()


NOW_MS, TTL_S = 1_700_000_000_000, 600.0


@pytest.mark.parametrize("ahead_ms", [0, -3_600_000, 3_600_000])
def test_an_agent_whose_clock_is_off_the_stores_deletes_nothing_until_it_is_set(ahead_ms: int) -> None:
    cluster = Cluster(FakeBlobs())
    cluster.blobs.now_ms = NOW_MS
    agents = [cluster.agent() for _ in range(3)]
    live(agents, cluster, 3 * RENEW_S)  # each has renewed, or seen another do so
    wall_ms = cluster.blobs.now_ms + ahead_ms
    watches = [LeaseWatch(agent, lambda: wall_ms, TTL_S) for agent in agents]
    told = [watch.clock_is_off is not None for watch in watches]
    assert told == [ahead_ms != 0] * 3
    found = [watch.host_is_ahead_ms for watch in watches]
    uncertain_ms = LOOK_S * 1000 + 1000  # when another agent wrote is known to one look
    assert all(0 <= (one if ahead_ms > 0 else -one) <= abs(ahead_ms) for one in found)
    assert all(abs(ahead_ms - one) <= uncertain_ms for one in found)
    wall_ms = cluster.blobs.now_ms  # set
    assert all(watch.clock_is_off is None for watch in watches)
    cluster.now_s += 30.0  # the clock does not go on
    wall_ms -= 3_600_000
    assert all(watch.clock_is_off for watch in watches), "a clock that jumps is noticed at once"


def test_a_store_that_does_not_tell_when_it_wrote_holds_nothing_back() -> None:
    cluster = Cluster(FakeBlobs())
    agent = cluster.agent()
    live([agent], cluster, RENEW_S)
    watch = LeaseWatch(agent, lambda: 0, TTL_S)
    assert (watch.may_delete, watch.clock_is_off) == (True, None)

"""Runs of replication whole find what they are there for: each of these defects harms a replica, or may."""

import pytest

from kafka_log.crc32c import Buffer
from kafka_log.record_batch import scan_batches
from replication.leader import link_index, link_planner
from replication.leader.link_index import LinkIndex
from replication.wire import link as splicing
from replication.wire.link import SegmentLink
from tests.simulation.planted_bugs import Plant, find
from tests.simulation.replicas.broker_model import BrokerModel
from tests.simulation.replicas.replica import Replica
from tests.simulation.replicas.replica_plan import is_replicated
from tests.simulation.test_planted_bugs import tell_listeners_before_the_put

OFFSET_BYTES = 8


def keep_the_index_over_an_election_and_trust_offsets(patch: pytest.MonkeyPatch) -> None:
    """The index is dropped, and batches are compared by their headers' beginnings: either would do alone."""
    patch.setattr(LinkIndex, "drop", lambda _self, _partition: None)
    patch.setattr(LinkIndex, "drop_from", lambda _self, _partition, _offset: None)
    for module in (link_index, link_planner):
        patch.setattr(module, "HEADER_PREFIX_BYTES", OFFSET_BYTES)


def skip_the_crc(patch: pytest.MonkeyPatch) -> None:
    def verify(link: SegmentLink, hydrated: Buffer, above: int = -1) -> int:
        batches = scan_batches(hydrated, 0, len(hydrated)) if len(hydrated) == link.length else []
        if not batches:
            raise splicing.SpliceError(link, "the bytes are no whole record batches")
        return batches[-1].last_offset

    patch.setattr(splicing, "verify_hydrated", verify)


def lose_truncations(patch: pytest.MonkeyPatch) -> None:
    """A model broker's bug: no follower is told that it has diverged. It shows that replicas are looked at."""

    def end_of_epoch(self: Replica, asked: int) -> object:
        return original(self, max(asked, self.last_epoch))

    original = Replica.end_of_epoch
    patch.setattr(Replica, "end_of_epoch", end_of_epoch)


def acknowledge_what_the_leader_alone_has(patch: pytest.MonkeyPatch) -> None:
    def advance(self: BrokerModel, replica: Replica) -> None:
        replica.followers.clear()
        replica.high_watermark = replica.end
        original(self, replica)

    original = BrokerModel.advance
    patch.setattr(BrokerModel, "advance", advance)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "found", "first"),
    [
        (tell_listeners_before_the_put, "before its PUT|told of and not there", 0),
        (keep_the_index_over_an_election_and_trust_offsets, "other bytes than the response|is not within", 107),
        (skip_the_crc, "has other records of|is given a corrupt batch", 11),
        (lose_truncations, "and leaders after|is given offset|come to an end", 0),
        (acknowledge_what_the_leader_alone_has, "were acknowledged", 0),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, found: str, first: int) -> None:
    find(monkeypatch, plant, found, filter(is_replicated, range(first, first + 100)))

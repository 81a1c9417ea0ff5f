"""An offered request counts as answered once, by its number."""

from dataclasses import replace
from typing import Any, cast

from gateway.broker_pipe import SpliceStage
from gateway.client_protocol import ClientSide
from replication.wire.peer_protocol import Hello, PeerCapabilities
from rlm.write_path.uploads.adoptable_records import AdoptableRecords
from tests.gateway.gateway_rig import plain_splicing


class Taken:
    """Stands for the write path: each offer is the object that was offered; which were answered."""

    def __init__(self) -> None:
        self.answered_offers: list[object] = []

    def offer(self, *offered: Any) -> object:
        return offered[0]

    def answered(self, offer: object, _now_s: float) -> None:
        self.answered_offers.append(offer)


class Request:
    """A routed request, as far as it is looked at."""

    custom_metadata, start_position, cuts = b"", 0, ()

    def __init__(self, number: int) -> None:
        self.number, self.object_id = number, f"object {number}"


async def test_offers_end_when_they_are_answered_or_with_their_connection() -> None:
    taken = Taken()
    context = replace(plain_splicing(), adoptable=cast(AdoptableRecords, taken))
    side = ClientSide(
        "az2", Hello("cluster", 2, 22), PeerCapabilities.ROUTED_PRODUCE | PeerCapabilities.ADOPTED_RECORDS
    )
    stage = SpliceStage(context, side, cast(Any, None), cast(Any, None))
    for number in (0, 1, 2):
        stage.offer(cast(Any, Request(number)), b"")
    for answered in (None, 1, 1, 7):
        stage.answered(answered)
    assert [cast(Any, one).object_id for one in taken.answered_offers] == ["object 1"]
    stage.close()
    assert {cast(Any, one).object_id for one in taken.answered_offers} == {"object 0", "object 1", "object 2"}

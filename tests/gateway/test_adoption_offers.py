"""An offered request counts as answered by its place on the connection, whatever correlation id its client chose."""

import struct
from typing import Any, cast

import pytest

from gateway.adoption_offers import AdoptionOffers
from replication.wire.kafka_frame import MalformedFrameError
from rlm.write_path.uploads.adoptable_records import AdoptableRecords
from tests.gateway.produce.produce_frames import produce, records

METADATA = struct.pack(">hhi", 3, 12, 7)
PRODUCE = produce({0: records()}, correlation_id=7)
ANSWER = struct.pack(">i", 7) + b"rest"


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


def test_what_else_has_the_id_of_an_offered_request_is_not_its_answer() -> None:
    taken = Taken()
    offers = AdoptionOffers(cast(AdoptableRecords, taken), cast(Any, None))
    offers.spliced(cast(Any, Request(1)), b"second", 0.0)
    offers.spliced(cast(Any, Request(0)), b"first", 0.0)
    for frame, number in ((METADATA, None), (PRODUCE, 0), (METADATA, None), (PRODUCE, 1)):
        offers.asked(frame, number)
    counts = []
    for _ in range(4):
        offers.answered(ANSWER, 0.0)
        counts.append([cast(Any, one).object_id for one in taken.answered_offers])
    assert counts == [[], ["object 0"], ["object 0"], ["object 0", "object 1"]]
    with pytest.raises(MalformedFrameError):
        offers.answered(ANSWER, 0.0)


def test_offers_end_with_their_connection_whether_the_broker_has_got_their_requests_or_not() -> None:
    taken = Taken()
    offers = AdoptionOffers(cast(AdoptableRecords, taken), cast(Any, None))
    for number in (0, 1):
        offers.spliced(cast(Any, Request(number)), b"", 0.0)
    offers.asked(PRODUCE, 0)
    offers.close(0.0)
    assert {cast(Any, one).object_id for one in taken.answered_offers} == {"object 0", "object 1"}

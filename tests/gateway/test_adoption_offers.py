"""An offered request counts as answered once, by its number."""

from typing import Any, cast

from gateway.adoption_offers import AdoptionOffers
from rlm.write_path.uploads.adoptable_records import AdoptableRecords


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


def test_offers_end_when_they_are_answered_or_with_their_connection() -> None:
    taken = Taken()
    offers = AdoptionOffers(cast(AdoptableRecords, taken), cast(Any, None))
    for number in (0, 1, 2):
        offers.spliced(cast(Any, Request(number)), b"", 0.0)
    for answered in (None, 1, 1, 7):
        offers.answered(answered, 0.0)
    assert [cast(Any, one).object_id for one in taken.answered_offers] == ["object 1"]
    offers.close(0.0)
    assert {cast(Any, one).object_id for one in taken.answered_offers} == {"object 0", "object 1", "object 2"}

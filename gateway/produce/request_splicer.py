"""Cuts the records out of a Produce request, and puts the same frame together again.

Nothing that fails a check here reaches a broker: the agent beside the leader then asks the gateway for the original.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.produce.produce_frame import ProduceRequestView
from gateway.produce.route_request import MAX_CUTS, RecordsCut, ZoneRouteRequest
from kafka_log.crc32c import Buffer, crc32c
from plugin.router_object_id import RouterObjectId

MIN_CUT_BYTES: Final = 64
"""Smaller records stay in the skeleton: naming their position takes ten bytes as well."""


class RouteSpliceError(Exception):
    """The bytes of an object are not those that were cut out of the request."""

    def __init__(self, request: ZoneRouteRequest, reason: str) -> None:
        super().__init__(f"{request.object_id} [{request.start_position}, {request.end_position}): {reason}")


@dataclass(frozen=True, slots=True)
class CutRequest:
    """A Produce request and the positions of the records to upload."""

    frame: Buffer
    spans: tuple[tuple[int, int], ...]
    """[start, end) positions in the frame, ascending and apart."""
    has_all: bool = True
    """Whether they are all the records in it."""

    @property
    def records(self) -> list[memoryview]:
        """The records to upload, in the order of the frame, as views of it: nothing is copied."""
        view = memoryview(self.frame)
        return [view[start:end] for start, end in self.spans]

    @property
    def linked_bytes(self) -> int:
        """The size of all records to upload."""
        return sum([end - start for start, end in self.spans])

    def routed(
        self, number: int, object_id: RouterObjectId, start_position: int, custom_metadata: bytes
    ) -> ZoneRouteRequest:
        """Return the request to send once its records are stored, one after the other, from `start_position` in this
        object on."""
        view = memoryview(self.frame)
        cuts: list[RecordsCut] = []
        skeleton: list[Buffer] = []
        position = skeleton_bytes = 0
        for start, end in self.spans:
            skeleton.append(view[position:start])
            skeleton_bytes += start - position
            cuts.append(RecordsCut(skeleton_bytes, end - start, crc32c(view[start:end])))
            position = end
        skeleton.append(view[position:])
        return ZoneRouteRequest(
            number, len(self.frame), object_id, start_position, tuple(cuts), skeleton, custom_metadata
        )


def cut_request(frame: Buffer, view: ProduceRequestView) -> CutRequest | None:
    """Return the request with the records that may go through object storage; None if there are none, or too many
    pieces."""
    spans = tuple(
        [(one.records_start, one.records_end) for one in view.fields
         if one.records_end - one.records_start >= MIN_CUT_BYTES]
    )  # fmt: skip
    has_all = len(spans) == sum(one.records_end > one.records_start for one in view.fields)
    return CutRequest(frame, spans, has_all) if 0 < len(spans) <= MAX_CUTS else None


def splice_request(request: ZoneRouteRequest, hydrated: Buffer) -> list[Buffer]:
    """Return the client's frame without its size prefix: buffers to be written one after the other.

    `hydrated` is what the object holds from `start_position` to `end_position`. Raises RouteSpliceError when it is
    anything but the bytes that were cut out.
    """
    if len(hydrated) != request.linked_bytes:
        raise RouteSpliceError(request, f"{len(hydrated)} bytes instead of {request.linked_bytes}")
    skeleton, records = memoryview(_joined(request.skeleton)), memoryview(hydrated)
    buffers: list[Buffer] = []
    position = taken = 0
    for cut in request.cuts:
        part = records[taken : taken + cut.length]
        if crc32c(part) != cut.crc32c:
            raise RouteSpliceError(request, f"the CRC32C of {cut.length} bytes from {taken} on differs")
        buffers += (skeleton[position : cut.skeleton_position], part)
        position, taken = cut.skeleton_position, taken + cut.length
    buffers.append(skeleton[position:])
    return buffers


def _joined(buffers: Sequence[Buffer]) -> Buffer:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)

"""The ids and blob names of the RouterChannel's objects.

An object of the channel holds the record bytes of Produce requests on their way to their leaders, in order, as they
came and without offsets. It lives as long as its requests.
"""

import re
from typing import Final, NamedTuple, Self

ROUTER_KIND: Final = "router"
"""Their kind of blobs."""
EPOCH_MS: Final = 10_000
"""The length of an epoch of the channel."""

_NAME: Final = re.compile(r"router/(0|[1-9][0-9]{0,9})/([0-9a-f]{12})/([0-9a-f]{10})/([0-9a-f]{12})", re.ASCII)


class RouterObjectId(NamedTuple):
    """The id of an object that a gateway wrote: writer, time, and number among that process's objects. No id is used
    twice."""

    gateway_id: int
    """The broker whose agent is the gateway, 0 to 2**31 - 1."""
    incarnation: int
    """One start of that agent, 48 bits, growing from start to start."""
    epoch: int
    """The writer's wall clock in periods of `EPOCH_MS`, 40 bits."""
    sequence: int
    """Counts the objects of one incarnation from 0, 48 bits."""

    @property
    def blob_name(self) -> str:
        """The object's name for `plugin.blob_storage`."""
        gateway_id, incarnation, epoch, sequence = self
        return f"{ROUTER_KIND}/{gateway_id}/{incarnation:012x}/{epoch:010x}/{sequence:012x}"

    @property
    def begun_ms(self) -> int:
        """The earliest time at which the object's upload may have begun, by the writer's clock: milliseconds since
        1970."""
        return self.epoch * EPOCH_MS

    @property
    def begun_until_ms(self) -> int:
        """The latest time at which the object's upload may have begun, in ms since 1970 by the writer's clock."""
        return self.begun_ms + EPOCH_MS

    @classmethod
    def parse(cls, blob_name: str) -> Self | None:
        """Parse a blob's name; None for a name that `blob_name` does not build."""
        match = _NAME.fullmatch(blob_name)
        if match is None or int(match[1]) >= 2**31:
            return None
        return cls(int(match[1]), int(match[2], 16), int(match[3], 16), int(match[4], 16))

    def __str__(self) -> str:
        return self.blob_name


def epoch_of(wall_ms: int) -> int:
    return wall_ms // EPOCH_MS

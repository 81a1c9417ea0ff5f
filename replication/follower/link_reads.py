"""Reads the bytes of a linked response in a small number of reads.

Links may name any positions of an object. The gap between two of them is read only if it is small: otherwise two links
of some bytes could cause a read of a whole object.
"""

import asyncio
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from plugin.format.archive_object_id import StoredObjectId
from replication.follower.hydration import HydrationCache
from replication.wire.link import SegmentLink
from replication.wire.peer_protocol import coalesce_ranges

READ_ALONG_BYTES: Final = 64 * 1024
"""Reading so many bytes between two links takes less time than another request."""

Range = tuple[int, int]


async def fetch_links(cache: HydrationCache, links: Sequence[SegmentLink]) -> list[memoryview]:
    """Return the links' bytes in their order. Raises HydrationError."""
    if len(links) == 1:
        only = links[0]
        return [await cache.fetch(only.object_id, only.start_position, only.end_position, only.custom_metadata)]
    wanted: defaultdict[StoredObjectId, list[Range]] = defaultdict(list)
    for link in links:
        wanted[link.object_id].append((link.start_position, link.end_position))
    reads = [(object_id, each) for object_id, ranges in wanted.items() for each in _reads(cache, object_id, ranges)]
    custom_metadata = {link.object_id: link.custom_metadata for link in links}
    asked = [cache.fetch(object_id, *each, custom_metadata[object_id]) for object_id, each in reads]
    fetched = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
    found: defaultdict[StoredObjectId, list[tuple[int, memoryview]]] = defaultdict(list)
    for (object_id, (start, _)), data in zip(reads, fetched, strict=True):
        found[object_id].append((start, data))
    return [_part_of(found[link.object_id], link) for link in links]


def _reads(cache: HydrationCache, object_id: StoredObjectId, wanted: list[Range]) -> Sequence[Range]:
    """Return the ranges to request, ascending. Gaps are left out if everything wanted is cached or being read."""
    exact = coalesce_ranges(wanted, max_gap_bytes=0, max_ranges=math.inf)
    if not any(cache.ranges.missing(object_id, *each) for each in exact):
        return exact
    return coalesce_ranges(wanted, READ_ALONG_BYTES, max_ranges=math.inf)


def _part_of(found: list[tuple[int, memoryview]], link: SegmentLink) -> memoryview:
    """Return the link's bytes out of an object's ranges, which ascend and each hold whole links."""
    start, data = found[bisect_right(found, link.start_position, key=itemgetter(0)) - 1]
    return data[link.start_position - start : link.end_position - start]

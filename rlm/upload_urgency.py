"""How an upload is wanted: as the most urgent of the partitions whose bytes it would take. Sans-IO."""

from collections.abc import Iterable

from metadata_topic.topic_settings import LinkPolicy
from rlm.led_partition import LedPartition
from rlm.link_policy import LinkDecider, LinkMode
from rlm.upload_pacer import Urgency


def urgency_of(partitions: Iterable[LedPartition | None], decider: LinkDecider, now_s: float) -> Urgency:
    """None stands for a partition that is not led any more. It ends at the first that wants links at once."""
    urgency = Urgency.ARCHIVE
    for led in partitions:
        if led is None:
            continue
        policy, bound_ms = led.assignment.link_policy, led.assignment.latency_bound_ms
        if decider.mode(policy, bound_ms, 0, now_s) is LinkMode.LINK:
            if policy is LinkPolicy.ALWAYS:
                return Urgency.LINKS
            urgency = Urgency.PAYING_LINKS
    return urgency

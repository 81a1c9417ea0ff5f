"""Finds logs for which a lost broker is the last in-sync replica, or the last one that may still be elected.

The controllers elect nobody else for them. (By KIP-966 nobody is in sync when the last one has died: it is then
eligible, and after an unclean shutdown it is the last known leader, which is elected again.) So once started, it leads
with what was restored, and Kafka's other replicas truncate to that. What was acknowledged and not uploaded before the
disk was lost is then gone everywhere, even if a replica that fell out of sync has it. No tool can tell which of them
reaches further while there is no leader; so a person must decide.
"""

from collections.abc import Iterable

from recovery.broker_recovery import PlannedLog
from recovery.errors import TargetRefusedError

_NAMED = 5


def last_in_sync(planned: Iterable[PlannedLog], node_id: int) -> list[PlannedLog]:
    """Return logs with other replicas, none of which may be elected, as far as the controllers say."""
    return [
        log
        for log in planned
        if log.has_other_replicas and {*log.replicas.in_sync, *log.replicas.eligible} <= {node_id}
    ]


def lead_refusal(leads: list[PlannedLog]) -> TargetRefusedError | None:
    """Return why they are not restored without a request; None if there are none."""
    if not leads:
        return None
    names = ", ".join(f"{log.name} to offset {log.plan.end_offset:,}" for log in leads[:_NAMED])
    more = f" and {len(leads) - _NAMED} more" if len(leads) > _NAMED else ""
    return TargetRefusedError(
        "recover broker",
        leads[0].name,
        f"this broker is the last replica in sync, so it would lead with what is restored ({names}{more}), and the "
        "other replicas would be cut down to that: what was acknowledged and not uploaded would be gone",
        "where another replica reaches further (kafka-dump-log.sh on its disk), elect it while this broker is down "
        "(kafka-leader-election.sh --election-type unclean) and recover then; else add --lead-with-what-is-restored",
    )

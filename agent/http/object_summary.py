"""Summarises the combined segments as JSON for the agent's HTTP endpoint. Each agent knows those of all brokers."""

from typing import Any

from metadata_topic.store.store import RemoteWalMetadataStore


def object_summary(store: RemoteWalMetadataStore, now_ms: int) -> dict[str, Any]:
    """Return counts, bytes of one copy and ages: `objects` by owner and state, `totals` by state.

    An age is the time in ms since the last record of a segment, so since it has its state. It is never negative,
    although clocks of hosts differ. Deleted segments are only in the totals. Goes through all segments, and decodes no
    entries.
    """
    return {
        "objects": [
            {
                "broker_id": row.broker_id,
                "caretaker_broker_id": store.caretaker_of(row.broker_id),
                "state": row.state.name,
                "segments": row.segments,
                "bytes": row.bytes,
                "oldest_age_ms": max(0, now_ms - row.oldest_ms),
                "newest_age_ms": max(0, now_ms - row.newest_ms),
            }
            for row in store.tally()
        ],
        "totals": [
            {"state": state.name, "segments": total.segments, "bytes": total.bytes}
            for state, total in store.count_by_state().items()
        ],
    }

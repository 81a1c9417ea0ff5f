"""Prints for people what `remote-wal recover` restored, or would restore."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cli.tables import plain_console, table

if TYPE_CHECKING:
    from rich.console import Console

    from recovery.broker_recovery import PlannedLog
    from recovery.logs.log_plan import Gap, LogPlan, PlanRules
    from recovery.logs.restore import GoneHead, RestoredLog
    from recovery.logs.timestamp_bound import TimestampBound


@dataclass(frozen=True, slots=True)
class LogRow:
    name: str
    start_offset: int
    end_offset: int
    size_bytes: int
    gap: tuple[int, int] | None
    recovery_point_ms: int | None
    leader_epochs: tuple[tuple[int, int], ...]
    status: str
    failed_copies: tuple[str, ...] = ()
    resumed_bytes: int = 0
    """The part of `size_bytes` that an earlier run had written."""
    declared_gaps: tuple[tuple[int, int], ...] = ()
    is_at_most: bool = False
    """The end is an upper bound: the exact end is known only when the log is read."""
    gone_head: "GoneHead | None" = None
    held_by_others: tuple[tuple[int, int], ...] = ()
    """Offsets [from, to) that the other replicas hold and object storage does not; the log is left to them."""
    is_behind_expired: bool = False
    """Whether records before its start have expired."""
    unreachable_in: tuple[str, ...] = ()
    """The unreachable buckets that have offsets of the gap."""
    missing: tuple[tuple[int, int], ...] = ()
    """The ranges that a compacted log would lack, so that nothing of it is restored."""
    lost: tuple[tuple[int, int], ...] = ()
    """Offsets [from, to) that the log lacks before its start or within, because their objects are lost or out of reach;
    it was asked for without them."""
    lacks_tier_epochs: bool = False
    """Whether the leader epochs of its older records, on KIP-405's tier, are unknown."""

    @property
    def is_complete(self) -> bool:
        is_whole = self.gap is None and not (self.missing or self.lost or self.lacks_tier_epochs)
        return is_whole and (self.gone_head is None or self.gone_head.is_expired)

    @property
    def told(self) -> str:
        """The text in the table's last column."""
        gaps = [*map(_declared, self.declared_gaps), *map(_missing, self.lost)]
        gaps += [_missing(self.gap)] if self.gap else []
        if self.unreachable_in:
            gaps.append(f"not lost: in {', '.join(self.unreachable_in)}, out of reach")
        missing = gaps or [self.status]
        if self.is_behind_expired:
            missing.append(f"before {self.start_offset:,} expired")
        if self.lacks_tier_epochs:
            missing.append(f"leader epochs before {self.start_offset:,}, on the tier, unknown")
        if self.gone_head is not None:
            why = "expired" if self.gone_head.is_expired else "deleted"
            missing.append(f"{self.gone_head.from_offset:,} to {self.gone_head.to_offset - 1:,} {why} meanwhile")
        return "; ".join(missing)


def planned_row(log: "PlannedLog", bound: "TimestampBound | None" = None) -> LogRow:
    """Return the row of a log that would be restored; `bound`: up to the requested point in time."""
    plan = log.plan
    if not log.is_restored(plan, plan.gap) and log.is_stored:
        return left_row(log, plan, plan.gap)
    if bound is not None:
        return LogRow(
            log.name,
            plan.start_offset,
            bound.end_offset,
            bound.size_bytes,
            None,
            bound.written_ms,
            tuple((epoch, start) for epoch, start in bound.leader_epochs),
            "to the timestamp, at most",
            is_at_most=True,
            lacks_tier_epochs=log.lacks_tier_epochs(plan),
        )
    if not log.is_stored:
        status = "nothing stored; other replicas" if log.has_other_replicas else "nothing stored"
    else:
        status = _status(plan.gap, plan.declared_gaps)
    return LogRow(
        log.name,
        plan.start_offset,
        plan.end_offset,
        plan.size_bytes,
        plan.gap,
        plan.written_ms,
        tuple((epoch, start) for epoch, start in plan.leader_epochs),
        status,
        declared_gaps=plan.declared_gaps,
        is_behind_expired=_is_behind_expired(plan.start_offset, log.rules),
        lacks_tier_epochs=log.lacks_tier_epochs(plan),
    )


def left_row(log: "PlannedLog", plan: "LogPlan", gap: "Gap | None") -> LogRow:
    """Return the row of a log that is left out of the recovery.

    Either other replicas have what `plan` lacks, or restoring a part would make a compacted log wrong.
    """
    missing = tuple(log.find_missing(plan, gap))
    held = () if missing else tuple(log.held_by_others(plan))
    (begin, end), *others = missing or held
    more = f" and {len(others)} more ranges" if others else ""
    why = "not restored, as it is compacted" if missing else "left to the other replicas"
    status = f"{why}: {begin:,} to {end - 1:,}{more} not in object storage"
    log_start = log.replicas.log_start or 0
    return LogRow(log.name, log_start, log_start, 0, None, None, (), status, held_by_others=held, missing=missing)


def _is_behind_expired(start_offset: int, rules: "PlanRules") -> bool:
    return start_offset > 0 and any(start_offset <= released.offset for released in rules.released)


def _status(gap: object, declared_gaps: Sequence[object]) -> str:
    return "gap" if gap else "whole but for declared gaps" if declared_gaps else "whole"


def restored_row(log: "PlannedLog", made: "RestoredLog") -> LogRow:
    status = "to the timestamp" if made.reached_timestamp and not made.gap else _status(made.gap, made.declared_gaps)
    return LogRow(
        made.job.name,
        made.job.plan.start_offset,
        made.end_offset,
        made.written_bytes,
        made.gap,
        made.job.plan.written_ms if made.written_ms is None and not made.reached_timestamp else made.written_ms,
        tuple((epoch, start) for epoch, start in made.leader_epochs),
        status,
        made.failed_copies,
        made.resumed_bytes,
        made.declared_gaps,
        gone_head=made.gone_head,
        is_behind_expired=_is_behind_expired(made.job.plan.start_offset, made.job.rules),
        lacks_tier_epochs=log.lacks_tier_epochs(made.job.plan),
    )


def _missing(gap: tuple[int, int]) -> str:
    return f"{gap[0]:,} to {gap[1] - 1:,} missing"


def _declared(gap: tuple[int, int]) -> str:
    return f"{_missing(gap)} within, as declared"


def print_recovery(document: dict[str, Any], rows: list[LogRow]) -> None:
    """Print the table; `document` is the content of `--json`."""
    console = plain_console()
    rows_told = [
        (
            row.name,
            f"{row.start_offset:,}",
            f"{row.end_offset:,}",
            f"{row.size_bytes / 1e6:,.1f}",
            _time(row.recovery_point_ms),
            row.told,
        )
        for row in rows
    ]
    title = "What would be restored" if document["dry_run"] else "Restored"
    title = f"{title}: broker {document['broker_id']} of cluster {document['cluster_id']}"
    console.print(table("log", ">from", ">to", ">MB", "recovery point", "", rows=rows_told, title=title))
    console.print(
        f"{document['size_bytes'] / 1e6:,.1f} MB of {document['objects']:,} objects; the newest was uploaded at "
        f"{_time(document['recovery_point_ms'])}. What was acknowledged after that and not uploaded is not here."
    )
    _print_about_rows(console, rows)
    _print_about_objects(console, document)
    _print_about_topics(console, document)


def _print_about_rows(console: "Console", rows: list[LogRow]) -> None:
    if any(row.is_at_most for row in rows):
        console.print(
            "At most: behind such an end there is a younger record first. Where time stamps do not go back along the "
            "log, it is the end.",
            soft_wrap=True,
        )
    if any(row.lacks_tier_epochs for row in rows):
        console.print(
            "Leader epochs unknown: once this broker leads such a log, Kafka deletes its older records from the tier.",
            soft_wrap=True,
        )
    if any(row.held_by_others or row.is_behind_expired for row in rows):
        console.print(
            "Objects are kept for remote.wal.retention.ms, by default an hour, or for the local retention. What is "
            "left to other replicas the broker copies from the leaders, inline. To have all of the local retention in "
            "objects from now on: remote-wal topics set --wal-retention-ms -2.",
            soft_wrap=True,
        )


def _print_about_topics(console: "Console", document: dict[str, Any]) -> None:
    for name in document["held"]:
        console.print(
            f"{name}: object storage holds records that the log has lost: remote-wal held. They are left out, also if "
            "an unclean election has brought them back: only the leader's log shows that.",
            soft_wrap=True,
        )
    if document["settings_unknown"]:
        console.print(
            f"The agents' settings are not known: {document['settings_unknown']}. So nobody looked for topics that "
            "Kafka hides from this client; nothing of them is restored.",
            soft_wrap=True,
        )
    for topic, why in document["left_out_topics"].items():
        console.print(
            f"{topic}: nothing of it is restored: {why}. If this broker is its last replica in sync, do not start it "
            "before its logs are there: Kafka would cut the others down",
            soft_wrap=True,
        )
    for name in document["only_in_sync_here"]:
        console.print(
            f"{name}: this broker is the last one in sync, so it will lead with what is restored",
            soft_wrap=True,
        )


def _print_about_objects(console: "Console", document: dict[str, Any]) -> None:
    for refusal in document["would_be_refused"]:
        console.print(f"would be refused: {refusal}", soft_wrap=True)
    for item in document["unreadable_objects"][:10]:
        console.print(f"cannot be read: {item['key']}: {item['reason']}", soft_wrap=True)
    if document["lost_objects"]:
        console.print(
            f"objects that the metadata tells of and the store does not have: {len(document['lost_objects'])}"
        )
    for bucket in document["unanswered_buckets"]:
        console.print(f"did not answer, so that more may be stored than is told here: {bucket}", soft_wrap=True)
    for doubt in document["metadata_doubts"]:
        console.print(
            f"metadata topic: {doubt}; what leaders declared may be missing: remote-wal metadata rebuild",
            soft_wrap=True,
        )
    if document["unreachable_objects"]:
        console.print(f"objects in buckets that are out of reach: {document['unreachable_objects']}")
    if document["foreign_objects"]:
        console.print(f"objects that are not ours, passed over: {document['foreign_objects']}")


def _time(ms: int | None) -> str:
    return "-" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"

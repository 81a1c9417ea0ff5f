"""`remote-wal recover`: rebuilds a broker's log directories from object storage."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import Json
from cli.exit_code import ExitCode
from cli.option_groups import grouped
from cli.progress import Tell, shown_progress
from cli.recovery.recovery_sources import Sources, StoredLogs, new_directory_id, open_sources
from cli.recovery.recovery_table import LogRow, left_row, planned_row, print_recovery, restored_row
from cli.tables import fail, tell_json

if TYPE_CHECKING:
    from recovery.broker_recovery import LostBroker, PlannedLog, Selection
    from recovery.errors import TargetRefusedError
    from recovery.logs.restore import RestoredLog
    from recovery.logs.timestamp_bound import TimestampBound


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    log_dir: Annotated[
        list[Path] | None, typer.Option(help="Only this entry of log.dirs; the others are there, and are left alone.")
    ] = None
    directory_id: Annotated[
        list[str] | None,
        typer.Option(help="PATH=ID: the directory.id that a log directory had, where nobody knows it."),
    ] = None
    to_timestamp: Annotated[
        str | None,
        typer.Option(help="End each log before its first batch with a younger record: ISO 8601, or ms since 1970."),
    ] = None
    after_last_gap: Annotated[
        bool,
        typer.Option("--after-last-gap", help="Restore what is behind the last gap, not what is before the first."),
    ] = False
    with_less: Annotated[
        bool,
        typer.Option(
            "--with-less-than-others",
            help="Also restore logs of which other replicas hold records that are not stored, and compacted logs that "
            "are not whole. Once this broker leads such a log, consumers miss these records or read older values of "
            "their keys, and Kafka deletes those before the log's start everywhere.",
        ),
    ] = False
    without_tier_epochs: Annotated[
        bool,
        typer.Option(
            "--without-tier-epochs",
            help="Also restore logs whose leader epochs on KIP-405's tier cannot be read. Once this broker leads such "
            "a log, Kafka deletes its older records from the tier.",
        ),
    ] = False
    lead: Annotated[
        bool,
        typer.Option(
            "--lead-with-what-is-restored",
            help="Also where this broker is the last replica in sync, so that others are cut down to what is restored.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class IfEmpty:
    """The options for running the command as a step before each start of the broker."""

    if_empty: Annotated[
        bool,
        typer.Option(
            "--if-empty",
            help="Restore the log directories that were erased, before the broker starts; nothing where logs are.",
        ),
    ] = False
    require_mount: Annotated[
        bool,
        typer.Option("--require-mount", help="With --if-empty: each empty log directory must be on a mounted disk."),
    ] = False


@grouped
def recover(
    logs: StoredLogs,
    what: RestoreOptions,
    step: IfEmpty,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be restored; write nothing.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=128, help="Requests to object storage at a time.")] = 8,
    json: Json = False,
) -> None:
    """Rebuild the log directories of a broker that has lost them, from object storage, so that it can be started.

    Run it on the broker's new host, with the broker stopped. Run again after an interruption, it goes on. Exits with 0
    if all logs are whole; with 1 if one of them ends before a gap, or is compacted and not restored as it is not whole,
    which are named, if the leader epochs of its records on the tier are unknown, if a bucket did not answer, or if the
    cluster does not tell enough of a topic, or of the agents' settings, to know which it hides; with 5
    if offsets are missing within a log alone that its leader has declared as gaps, which are named too; with 4 if
    nothing was written, as a directory is not empty, belongs to another cluster or node, or is locked, as the broker is
    the last replica in sync of a log, or as the leader epochs of a log's records on the tier cannot be read although a
    cluster answers; with 3 if it failed.
    """
    from recovery.broker_recovery import last_in_sync, lead_refusal
    from recovery.errors import TargetRefusedError

    if step.if_empty:
        what = replace(what, log_dir=_emptied(logs, what, step, json=json))
    selection = _selection(logs, what)
    ids = dict(pairs := [_directory_id(text) for text in what.directory_id or ()])
    if len(ids) < len(pairs):
        raise typer.BadParameter("a directory is given more than once", param_hint="--directory-id")
    with shown_progress("reading settings") as tell, open_sources(logs, tell) as sources:
        broker = _lost_broker(sources, what.log_dir, ids)
        is_all_shown = not sources.view.left_out and not sources.view.settings_unknown
        if step.if_empty and is_all_shown and not sources.view.replicas_of(broker.node_id):
            typer.echo(f"the cluster has no replica on broker {broker.node_id}: nothing is to be restored", err=True)
            raise typer.Exit(0)
        planned = _plan(broker, sources, selection)
        leads = last_in_sync(broker, sources.view)
        lead_refused = None if what.lead else lead_refusal(leads, planned, sources.view)
        try:
            if dry_run:
                tell("reading time stamps")
                bounds = _bounds(sources, planned, selection, threads)
                rows = [planned_row(log, bound) for log, bound in zip(planned, bounds, strict=True)]
            elif lead_refused is not None:
                raise lead_refused
            else:
                rows = _recover(tell, broker, sources, planned, selection, threads)
        except TargetRefusedError as error:
            fail(error, ExitCode.REFUSED, json=json)
    rows = [_with_lost(row, log, sources) for row, log in zip(rows, planned, strict=True)]
    refusals = _refusals(broker, planned, lead_refused) if dry_run else None
    document = _document(sources, rows, planned, [sources.view.name_of(one) for one in leads], refusals)
    if json:
        tell_json(document, _exit_code(document))
    else:
        print_recovery(document, rows)
    raise typer.Exit(_exit_code(document))


def _exit_code(document: dict[str, Any]) -> ExitCode:
    """Return the exit code for what was restored, or would be."""
    if document["complete"]:
        return ExitCode.GOOD
    return ExitCode.DECLARED if document["only_declared_gaps"] else ExitCode.FINDINGS


def _selection(logs: StoredLogs, what: RestoreOptions) -> "Selection":
    from recovery.broker_recovery import Selection

    return Selection(
        frozenset(logs.topic or ()),
        frozenset(logs.partition or ()),
        what.after_last_gap,
        _timestamp_ms(what.to_timestamp),
        what.with_less,
        what.without_tier_epochs or logs.cluster_metadata is not None,
    )


def _emptied(logs: StoredLogs, what: RestoreOptions, step: IfEmpty, *, json: bool) -> list[Path]:
    """Return the log directories to restore; end the command if there are none, or a disk may be missing."""
    from kafka_log.broker_files.server_properties import load_broker_properties
    from recovery.errors import TargetRefusedError
    from recovery.logs.log_directory_target import emptied_log_dirs

    if what.log_dir:
        raise typer.BadParameter("--if-empty finds out which log directories are empty", param_hint="--log-dir")
    try:
        found = emptied_log_dirs(
            load_broker_properties(logs.broker_config).log_dirs, must_be_mounted=step.require_mount
        )
    except TargetRefusedError as error:
        fail(error, ExitCode.REFUSED, json=json)
    if not found:
        typer.echo("all log directories have logs: nothing is to be restored", err=True)
        raise typer.Exit(0)
    return found


def _lost_broker(sources: Sources, log_dirs: list[Path] | None, ids: dict[Path, str]) -> "LostBroker":
    from recovery.broker_recovery import LostBroker

    broker = sources.broker
    lost = tuple(log_dirs) if log_dirs else broker.log_dirs
    for path in (*lost, *ids):
        if path not in broker.log_dirs:
            raise typer.BadParameter(f"{path} is not among log.dirs: {', '.join(map(str, broker.log_dirs))}")
    return LostBroker(
        broker.node_id, sources.cluster_id, broker.log_dirs, lost, broker.raw, {**sources.directory_ids, **ids}
    )


def _plan(broker: "LostBroker", sources: Sources, selection: "Selection") -> "list[PlannedLog]":
    from recovery.broker_recovery import plan_broker, plan_with_tier

    newest_ms = sources.reader.newest_timestamp_ms
    planned = plan_broker(broker, sources.view, sources.inventory, selection, sources.wall_ms(), newest_ms)
    return plan_with_tier(planned, sources.read_tier)


def _bounds(
    sources: Sources, planned: "list[PlannedLog]", selection: "Selection", threads: int
) -> "Sequence[TimestampBound | None]":
    """Return where the logs would end by the requested point in time."""
    from recovery.logs.timestamp_bound import timestamp_bounds

    if selection.to_timestamp_ms is None:
        return [None] * len(planned)
    reader = sources.reader
    return timestamp_bounds([log.plan for log in planned], reader, selection.to_timestamp_ms, threads)


def _recover(
    tell: Tell,
    broker: "LostBroker",
    sources: Sources,
    planned: "list[PlannedLog]",
    selection: "Selection",
    threads: int,
) -> list[LogRow]:
    from recovery.broker_recovery import recover_broker
    from recovery.logs.restore import RestoreProgress, restore_logs

    def show(progress: RestoreProgress) -> None:
        tell(f"restoring: {progress.read_bytes:,} of {progress.total_bytes:,} bytes")

    restore = partial(
        restore_logs,
        reader=sources.reader,
        to_timestamp_ms=selection.to_timestamp_ms,
        threads=threads,
        progress=show,
        wall_ms=sources.wall_ms,
    )
    restored = recover_broker(broker, sources.view, planned, restore, new_directory_id)
    done = {log.job.partition: log for log in restored}
    return [_made_row(log, done.get(log.partition)) for log in planned]


def _made_row(log: "PlannedLog", made: "RestoredLog | None") -> LogRow:
    if made is None:
        return planned_row(log)
    plan = made.job.plan
    return restored_row(log, made) if log.is_restored(plan, made.gap) else left_row(log, plan, made.gap)


def _with_lost(row: LogRow, log: "PlannedLog", sources: Sources) -> LogRow:
    """Return the row, with what of a log without a gap is lost, and the unreachable buckets that have what is missing.

    A gap names what is lost already; other replicas supply what a log lacks that is left to them.
    """
    is_named = row.gap is not None or row.missing or row.held_by_others
    if not is_named and (lost := tuple(one for one in log.lost_ranges if one[0] < row.end_offset)):
        row = replace(row, lost=lost, status="without lost offsets")
    gaps = row.missing or row.lost or ((row.gap,) if row.gap is not None else ())
    found = {place for gap in gaps for place in sources.inventory.unreachable_in(log.partition, *gap)}
    return replace(row, unreachable_in=tuple(sorted(found)))


def _refusals(
    broker: "LostBroker", planned: "list[PlannedLog]", lead_refused: "TargetRefusedError | None"
) -> list[str]:
    """Return why a recovery would be refused now."""
    from recovery.broker_recovery import tier_refusal
    from recovery.logs.log_directory_target import refusal_of

    lost = broker.lost_log_dirs
    found = [refusal_of(path, broker.cluster_id, broker.node_id, lost) for path in lost]
    found += [lead_refused, tier_refusal([(log, log.plan) for log in planned])]
    return [str(refusal) for refusal in found if refusal is not None]


def _document(
    sources: Sources,
    rows: list[LogRow],
    planned: "list[PlannedLog]",
    only_in_sync_here: list[str],
    refusals: list[str] | None,
) -> dict[str, Any]:
    """Return the JSON document; `refusals` are part of it in a dry run only."""
    inventory = sources.inventory
    held = sorted(log.name for log in planned if log.partition in inventory.held)
    view = sources.view
    is_all_known = not (
        inventory.unreadable
        or inventory.unanswered
        or inventory.doubts
        or held
        or view.left_out
        or view.settings_unknown
    )
    points = [row.recovery_point_ms for row in rows if row.recovery_point_ms is not None]
    return {
        "cluster_id": sources.cluster_id,
        "broker_id": sources.broker.node_id,
        "dry_run": refusals is not None,
        "would_be_refused": refusals or [],
        "complete": all(row.is_complete and not row.declared_gaps for row in rows) and is_all_known,
        "only_declared_gaps": all(row.is_complete for row in rows) and is_all_known,
        "recovery_point_ms": max(points, default=None),
        "size_bytes": sum(row.size_bytes for row in rows),
        "objects": inventory.objects,
        "unpublished_objects": inventory.unpublished_objects,
        "foreign_objects": inventory.foreign_objects,
        "unreadable_objects": [{"key": item.key, "reason": item.reason} for item in inventory.unreadable],
        "lost_objects": [str(lost.object_id) for lost in inventory.lost_objects],
        "unanswered_buckets": sorted(inventory.unanswered),
        "left_out_topics": dict(view.left_out),
        "settings_unknown": view.settings_unknown,
        "metadata_doubts": list(inventory.doubts),
        "held": held,
        "unreachable_objects": len(inventory.unreachable),
        "only_in_sync_here": only_in_sync_here,
        "logs": [_log_document(row) for row in rows],
    }


def _log_document(row: LogRow) -> dict[str, Any]:
    return {
        "log": row.name,
        "status": row.status,
        "start_offset": row.start_offset,
        "end_offset": row.end_offset,
        "size_bytes": row.size_bytes,
        "resumed_bytes": row.resumed_bytes,
        "gap": {"from_offset": row.gap[0], "to_offset": row.gap[1]} if row.gap else None,
        "unreachable_in": list(row.unreachable_in),
        "declared_gaps": _ranges(row.declared_gaps),
        "deleted_meanwhile": row.gone_head._asdict() if row.gone_head else None,
        "is_behind_expired": row.is_behind_expired,
        "held_by_others": _ranges(row.held_by_others),
        "missing": _ranges(row.missing),
        "lacks_tier_epochs": row.lacks_tier_epochs,
        "lost": _ranges(row.lost),
        "recovery_point_ms": row.recovery_point_ms,
        "leader_epochs": [{"leader_epoch": epoch, "start_offset": at} for epoch, at in row.leader_epochs],
        "failed_copies": list(row.failed_copies),
        "is_at_most": row.is_at_most,
    }


def _ranges(ranges: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"from_offset": begin, "to_offset": end} for begin, end in ranges]


def _timestamp_ms(text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither ISO 8601 nor milliseconds since 1970") from None
    if parsed.tzinfo is None:
        raise typer.BadParameter(f"{text!r} names no time zone; add one, such as Z")
    return int(parsed.timestamp() * 1000)


def _directory_id(text: str) -> tuple[Path, str]:
    path, equals, known = text.rpartition("=")
    if not equals or not path or not known:
        raise typer.BadParameter(f"{text!r} is not PATH=ID")
    return Path(path), known

"""Prints for people what `remote-wal recover` restored, or would restore."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cli.recovery.log_rows import LogRow
from cli.tables import plain_console, table

if TYPE_CHECKING:
    from rich.console import Console


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
            f"{name}: object storage holds records that the log has lost; they are left out: remote-wal held",
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

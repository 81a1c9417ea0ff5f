"""`remote-wal verify`: checks whether object storage could give a broker its logs back."""

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import Json
from cli.exit_code import ExitCode
from cli.option_groups import grouped
from cli.progress import Tell, shown_progress
from cli.recovery.recovery_sources import Sources, StoredLogs, open_sources
from cli.tables import fail, show, table, tell_json

if TYPE_CHECKING:
    from recovery.broker_recovery import LostBroker, PlannedLog
    from recovery.verification import Finding, Verification


@dataclass(frozen=True, slots=True)
class DrilledLog:
    """The findings of Kafka's dump-log in a restored log."""

    log: str
    end_offset: int
    batches: int
    fault: str
    """Empty if all is well."""


@grouped
def verify(
    logs: StoredLogs,
    sample: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="The share of the objects that are read, chosen at random.")
    ] = 1.0,
    replica: Annotated[
        list[Path] | None,
        typer.Option(
            "--replica-log-dir", help="A living replica's log directory to compare with.", exists=True, file_okay=False
        ),
    ] = None,
    drill: Annotated[
        Path | None,
        typer.Option(help="Restore into this scratch directory, and let Kafka's dump-log check it. It is left there."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=128, help="Requests to object storage at a time.")] = 8,
    json: Json = False,
) -> None:
    """Check that object storage holds the logs of this broker's partitions: gaps, checksums, leader epochs.

    Writes nothing into object storage. Exits with 0 if all is well; with 1 if records are missing or wrong; with 5 if
    those alone are missing that were declared as gaps; with 3 if it could not be checked; with 4 if the scratch
    directory is not empty.
    """
    from recovery.errors import TargetRefusedError

    try:
        document = _verified(logs, sample, replica or [], drill, threads)
    except TargetRefusedError as error:
        fail(error, ExitCode.REFUSED, json=json)
    if json:
        tell_json(document, _exit_code(document))
    else:
        _print(document)
    raise typer.Exit(_exit_code(document))


def _exit_code(document: dict[str, Any]) -> ExitCode:
    if not document["sound"]:
        return ExitCode.FINDINGS
    is_declared = any(finding["kind"] == "declared_gap" for finding in document["findings"])
    return ExitCode.DECLARED if is_declared else ExitCode.GOOD


def _verified(
    logs: StoredLogs, sample: float, replicas: list[Path], drill: Path | None, threads: int
) -> dict[str, Any]:
    """Verify, and restore if a drill is wanted. Raises TargetRefusedError where the drill has no empty directory."""
    from metadata_topic.topic.topic import SETTINGS_TOPIC
    from recovery.broker_recovery import Selection, plan_broker
    from recovery.verification import ObjectVerifier, check_inventory

    with shown_progress("reading settings") as tell, open_sources(logs, tell) as sources:
        selection = Selection(frozenset(logs.topic or ()), frozenset(logs.partition or ()))
        planned = plan_broker(
            _whole_broker(sources),
            sources.view,
            sources.inventory,
            selection,
            sources.wall_ms(),
            sources.reader.newest_timestamp_ms,
        )
        view = sources.view
        unknown = {SETTINGS_TOPIC: view.settings_unknown} if view.settings_unknown else {}
        findings = list(check_inventory(sources.inventory, planned, {**view.left_out, **unknown}.items()))
        verified = ObjectVerifier(planned, sources.inventory, replicas).verify(
            sources.reader,
            sample,
            random.Random(),  # noqa: S311 - it chooses a sample
            threads,
            sources.look_again,
            lambda done, total: tell(f"reading objects: {done:,} of {total:,}"),
        )
        drilled = _drill(drill, planned, sources.reader, threads, tell) if drill is not None else []
    return _document(sources, planned, [*findings, *verified.findings], verified, drilled)


def _whole_broker(sources: Sources) -> "LostBroker":
    from recovery.broker_recovery import LostBroker

    broker = sources.broker
    return LostBroker(broker.node_id, sources.cluster_id, broker.log_dirs, broker.log_dirs, broker.raw)


def _drill(directory: Path, planned: "list[PlannedLog]", reader: Any, threads: int, tell: Tell) -> list[DrilledLog]:
    from jvm.java import find_java
    from kafka_log.segment_files import list_segments, log_file_name
    from local_cluster.kafka_distribution import resolve_kafka
    from local_cluster.kafka_tools import KafkaToolError, KafkaTools
    from recovery.broker_recovery import run_drill

    java = find_java()
    tools = KafkaTools(java, resolve_kafka(java, progress=tell), "")
    tell("restoring into the scratch directory")
    drilled = []
    for log in run_drill(directory, planned, reader, threads=threads):
        tell(f"dump-log of {log.job.name}")
        segments = [log.job.directory / log_file_name(base) for base in list_segments(log.job.directory)]
        try:
            batches = tools.dump_log(*segments, deep=True)
        except KafkaToolError as error:
            drilled.append(DrilledLog(log.job.name, log.end_offset, 0, str(error)))
            continue
        invalid = [batch.base_offset for batch in batches if not batch.is_valid]
        end_offset = batches[-1].last_offset + 1 if batches else log.job.plan.start_offset
        fault = f"batch {invalid[0]} is not valid" if invalid else ""
        if end_offset != log.end_offset and not log.job.settings.is_compacted:
            fault = f"dump-log reads up to offset {end_offset}, restored were {log.end_offset}"
        if log.gap is not None:
            fault = f"offsets {log.gap.from_offset} to {log.gap.to_offset - 1} are missing"
        drilled.append(DrilledLog(log.job.name, log.end_offset, len(batches), fault))
    return drilled


def _document(
    sources: Sources,
    planned: "list[PlannedLog]",
    findings: "list[Finding]",
    verified: "Verification",
    drilled: list[DrilledLog],
) -> dict[str, Any]:
    return {
        "cluster_id": sources.cluster_id,
        "broker_id": sources.broker.node_id,
        "sound": not any(finding.kind.is_error for finding in findings) and not any(log.fault for log in drilled),
        "objects": sources.inventory.objects,
        "objects_read": verified.objects,
        "runs_read": verified.runs,
        "bytes_read": verified.bytes,
        "batches_compared_with_a_replica": verified.batches_compared,
        "objects_deleted_meanwhile": verified.objects_deleted_meanwhile,
        "logs": [
            {
                "log": log.name,
                "start_offset": log.plan.start_offset,
                "end_offset": log.plan.end_offset,
                "is_stored": log.is_stored,
            }
            for log in planned
        ],
        "findings": [
            {
                "kind": finding.kind.value,
                "error": finding.kind.is_error,
                "subject": finding.subject,
                "detail": finding.detail,
            }
            for finding in findings
        ],
        "drill": [asdict(log) for log in drilled],
    }


def _print(document: dict[str, Any]) -> None:
    from rich.text import Text

    compared = document["batches_compared_with_a_replica"]
    stored = sum(log["is_stored"] for log in document["logs"])
    show(
        f"{document['objects']:,} objects hold {stored:,} of the {len(document['logs']):,} logs of broker "
        f"{document['broker_id']}; {document['objects_read']:,} were read, {document['bytes_read'] / 1e6:,.1f} MB "
        f"in {document['runs_read']:,} runs"
        + (f"; {compared:,} batches were compared with a replica" if compared else "")
    )
    if document["findings"]:
        rows = [
            (Text(one["kind"], style="red" if one["error"] else "blue"), Text(one["subject"]), Text(one["detail"]))
            for one in document["findings"]
        ]
        show(table("kind", "subject", "detail", rows=rows))
    if document["drill"]:
        drilled = [
            (log["log"], f"{log['end_offset']:,}", f"{log['batches']:,}", log["fault"] or "sound")
            for log in document["drill"]
        ]
        title = "Drill, checked by Kafka's dump-log"
        show(table("restored log", ">end offset", ">batches", "", rows=drilled, title=title))
    show("sound" if document["sound"] else "records are missing, wrong, or not known")

"""`remote-wal report`: shows what is retained, and what it costs."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import Connection
from cli.costs.report_job import RunOptions, SourceOptions, run_report
from cli.exit_code import ExitCode
from cli.extras import need_extra
from cli.option_groups import grouped
from cli.tables import show, table, tell_json

if TYPE_CHECKING:
    from retention_job.page.report_data import ReportData


@grouped
def report(
    sources: SourceOptions,
    run: RunOptions,
    master: Annotated[str | None, typer.Option(help="Spark's master; not for spark-submit.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Spark's on this machine, by default 2560m, or a cluster's driver's; not for spark-submit."),
    ] = None,
) -> None:
    """Check that all is retained that must be and nothing else, and tell what replication costs.

    Exits with 0 when nothing was found, 1 when something is to be looked at (a warning), 6 when records are lost or
    about to be (critical), 3 when the report could not be made, and 2 when the command was wrong, or a file that it
    names.
    """
    need_extra("report")
    if memory is not None and not re.fullmatch(r"\d+[kmgt]?", memory):
        raise typer.BadParameter(f"{memory!r} is no size as 2560m or 3g", param_hint="--memory")
    Connection(sources.bootstrap_server, sources.command_config).client_config()
    raise typer.Exit(_show(run_report(sources, run, master, memory), run))


# What a run found.


def _show(data: "ReportData", run: RunOptions) -> ExitCode:
    from retention_job.page.report_data import report_json

    if run.textfile is not None:
        from retention_job.page.textfile import textfile

        _replace(run.textfile, textfile(data))
    code = exit_code(count.severity for count in data.finding_counts)
    if run.json:
        tell_json(report_json(data), code)
    else:
        _print(data, run.output)
    return code


def exit_code(severities: Iterable[str]) -> ExitCode:
    """Return the exit code for findings of these severities; an unknown severity counts as critical."""
    from retention_job.findings.kinds import Severity

    told = set(severities) - {Severity.INFO.value}
    if told - {Severity.WARNING.value}:
        return ExitCode.CRITICAL
    return ExitCode.FINDINGS if told else ExitCode.GOOD


def _print(data: "ReportData", output: str) -> None:
    from retention_job.page.html_report import money, size_text

    if data.finding_counts:
        rows = [
            (count.severity, count.kind, f"{count.count:,}", size_text(count.size_bytes))
            for count in data.finding_counts
        ]
        show(table("severity", "finding", ">count", ">bytes", rows=rows, title="Findings"))
    else:
        show("Nothing was found that is amiss.")
    if data.handover is not None and data.handover.segments:
        done = "could be handed to the agents by --apply" if data.handover.is_dry else "were handed to the agents"
        show(f"The deletions of {data.handover.segments:,} objects {done}.")
    costs = data.costs
    if costs.compared_usd is None:
        show("What replication cost and saved is not known yet.")
    else:
        (paid, stock), saved = costs.compared_usd, costs.compared_usd[1] - costs.compared_usd[0]
        told = f"{money(saved)} saved" if saved >= 0 else f"{money(-saved)} more than stock Kafka"
        show(
            f"Replication cost {money(paid)}; stock Kafka's would have cost {money(stock)}; {told}, over "
            f"{len(costs.compared)} days, at prices of {costs.prices_confirmed}."
        )
    if costs.left_out_text:
        show(f"{costs.left_out_text}.")
    show(f"The page: {output.rstrip('/')}/report.html")


def _replace(file: Path, content: bytes) -> None:
    """Replace the file as a whole: collectors may read it at any time."""
    unfinished = file.with_name(f".{file.name}.writing")
    unfinished.write_bytes(content)
    unfinished.replace(file)

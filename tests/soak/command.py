"""`python -m perf soak`."""

import json as json_format
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.soak.fault_plan import FaultKind
from tests.soak.run import ByGateway, SoakOptions, SoakReport, run_soak


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults strike.")] = 10.0,
    seed: Annotated[int, typer.Option(help="From which all faults follow; printed, and in the report.")] = 1,
    fault: Annotated[list[FaultKind] | None, typer.Option(help="Only faults of this kind.")] = None,
    gateway: Annotated[ByGateway | None, typer.Option(help="Let clients go by the gateways of their zones.")] = None,
    control: Annotated[bool, typer.Option("--control", help="The same again without agents, for comparison.")] = False,
    keep: Annotated[
        Path | None, typer.Option(file_okay=False, help="Keep data and logs in this new directory.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the report to this file.")] = None,
) -> None:
    """Let records flow for long while faults strike at random; then see that nothing was lost, doubled or reordered,
    that replicas are equal, and that the store holds every wanted offset.

    Exits with 1 if a promise was broken; data and logs then stay. SIGTERM and Ctrl-C take everything down.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = SoakOptions(minutes * 60, seed, tuple(fault or FaultKind), gateway=gateway)
    directory = keep if keep is not None else Path(tempfile.mkdtemp(prefix="remote-wal-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    reports: list[SoakReport] = []
    try:
        for with_agents in (True, False) if control else (True,):
            name = "agents" if with_agents else "control"
            typer.echo(f"{name}: {minutes:g} minutes of faults by seed {seed}")
            place = (directory / name).absolute()
            reports.append(run_soak(options, place, typer.echo, with_agents=with_agents))
            _show(name, reports[-1])
            if json is not None:
                json.write_text(json_format.dumps([report.as_json() for report in reports], indent=2) + "\n")
    except KeyboardInterrupt:
        typer.echo("interrupted: all processes are gone")
        _clean(directory, is_kept=keep is not None)
        raise typer.Exit(130) from None
    is_broken = any(report.findings for report in reports)
    _clean(directory, is_kept=keep is not None or is_broken)
    raise typer.Exit(int(is_broken))


def _clean(directory: Path, *, is_kept: bool) -> None:
    import shutil

    if is_kept:
        typer.echo(f"data and logs are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _show(name: str, report: SoakReport) -> None:
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(report.faults.items()))
    sys.stdout.write(f"{name}: {report.seconds:,.0f} s, seed {report.seed}; faults: {faults or 'none'}\n")
    for producer in report.records.ledger.producers if report.records is not None else ():
        sys.stdout.write(
            f"  {producer.name}: {producer.sent:,} sent, {producer.acknowledged:,} acknowledged, {producer.consumed:,} "
            f"read, {producer.lost} lost, {producer.duplicates} doubled, {producer.reordered} reordered, "
            f"{producer.altered} altered, {producer.at_wrong_offset} at another offset, {producer.aborted_but_read} "
            "aborted and read\n"
        )
    for figure, value in report.figures.items():
        sys.stdout.write(f"  {figure.replace('_', ' ')}: {value}\n")
    for finding in report.findings:
        sys.stdout.write(f"  BROKEN: {finding}\n")
    sys.stdout.write(f"{name}: {'promises were broken' if report.findings else 'all promises were kept'}\n")
    sys.stdout.flush()

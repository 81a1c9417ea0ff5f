"""`python -m perf`: the ladder of benchmarks, paired with stock Kafka in one run."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from local_cluster.child_processes import ends_what_it_started
from perf.catchup import catchup
from perf.expiration import expiration
from perf.idle import idle
from perf.ladder import RUNGS, Ladder, Length, Measured, object_store
from perf.metadata import metadata
from perf.options import LatencyMs, Partitions, Rounds, Scale, WarmUp, WorkloadNames, chosen_workloads
from perf.reassign import reassign
from perf.rebuild import rebuild
from perf.report import agent_rows, compare, plot, write_json
from perf.report_job import report
from perf.restart import restart
from perf.soak.command import command as soak
from perf.versions import versions
from perf.workloads import WORKLOADS

app = typer.Typer(help=__doc__, no_args_is_help=True)
app.command()(catchup)
app.command()(idle)
app.command()(metadata)
app.command()(report)
app.command()(reassign)
app.command()(rebuild)
app.command()(expiration)
app.command()(versions)
app.command()(restart)
app.command("soak")(soak)


@app.command()
def ladder(
    workload: WorkloadNames = None,
    rung: Annotated[list[str] | None, typer.Option(help="Only these rungs, beside stock.")] = None,
    rounds: Rounds = 3,
    scale: Scale = 1.0,
    warm_up: WarmUp = 0.5,
    partitions: Partitions = None,
    latency_ms: LatencyMs = 5,
    tools_as_shipped: Annotated[
        bool,
        typer.Option(help="Run Kafka's tools with their scripts' JVM options, not with those that warm up sooner."),
    ] = False,
    results: Annotated[Path, typer.Option(file_okay=False, help="Where table data and plot go.")] = Path(
        "perf/results"
    ),
) -> None:
    """Run Kafka's perf tools against stock and against agents in turns; print tables, write JSON and a plot."""
    from rich.console import Console

    console = Console()
    workloads = chosen_workloads(workload, partitions)
    rungs = [one for one in RUNGS if rung is None or one.name in rung]
    if not workloads or not rungs:
        names = ", ".join(one.name for one in (*WORKLOADS, *RUNGS))
        raise typer.BadParameter(f"nothing to run; there are {names}")
    results.mkdir(parents=True, exist_ok=True)
    with console.status("preparing") as line, tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory:

        def keep(measured: Sequence[Measured]) -> None:
            about = {
                "rounds": rounds,
                "scale": scale,
                "warm_up": warm_up,
                "partitions": {one.name: one.partitions for one in workloads},
                "latency_ms": latency_ms,
                "tools_as_shipped": tools_as_shipped,
            }
            write_json(results / "ladder.json", workloads, measured, **about)

        length = Length(rounds, scale, warm_up)
        climbing = Ladder(Path(directory), workloads, length, line.update, keep, tools_as_shipped)
        for kind in dict.fromkeys(one.store for one in rungs):
            with object_store(kind, latency_ms) as store:
                climbing.climb(store, [one for one in rungs if one.store == kind])
    measured = climbing.measured
    plot(results / "ladder.png", workloads, measured)
    _print(console, compare(workloads, measured), agent_rows(measured))
    console.print(f"written: {results / 'ladder.json'} and {results / 'ladder.png'}")


def _print(console: Any, rows: list[dict[str, Any]], agents: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("load", "figure", "rung", title="Beside stock Kafka in the same round (medians)")
    for column in ("stock", "rung's", "compared", "range"):
        table.add_column(column, justify="right")
    for row in rows:
        unit = "x" if row["comparison"] == "ratio" else " ms"
        sign = "" if row["comparison"] == "ratio" else "+"
        table.add_row(
            row["workload"],
            row["figure"],
            row["rung"],
            f"{row['stock']:.1f}",
            f"{row['value']:.1f}",
            f"{row['compared']:{sign}.2f}{unit}",
            f"{row['compared_min']:{sign}.2f} to {row['compared_max']:{sign}.2f}",
        )
    console.print(table)
    costs = Table("load", "rung", title="What the agents did, all three together")
    for column in ("cores", "linked MB", "inline MB", "zone share", "PUT", "GET", "KB/object"):
        costs.add_column(column, justify="right")
    stages = Table("load", "rung", "stage p50 / p99 in ms", title="Where the time goes")
    for row in agents:
        costs.add_row(
            row["workload"],
            row["rung"],
            f"{row['agent_cores']:.2f}",
            f"{row['linked_bytes'] / 1e6:,.1f}",
            f"{row['inline_bytes'] / 1e6:,.1f}",
            f"{row['zone_share']:.2%}",
            f"{row['puts']:,.0f}",
            f"{row['gets']:,.0f}",
            f"{row['linked_bytes'] / 2e3 / max(row['puts'], 1):,.0f}",
        )
        times = "  ".join(f"{name} {q['p50']:.1f}/{q['p99']:.0f}" for name, q in row["stages_ms"].items())
        stages.add_row(row["workload"], row["rung"], times)
    console.print(costs)
    console.print(stages)


if __name__ == "__main__":
    with ends_what_it_started():
        app()

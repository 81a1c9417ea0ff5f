"""Command-line options that several benchmarks share, and their evaluation."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from perf.ladder.workloads import WORKLOADS, Workload

WorkloadNames = Annotated[list[str] | None, typer.Option(help="Only these loads.")]
Rounds = Annotated[int, typer.Option(min=1)]
Scale = Annotated[float, typer.Option(min=0.01, help="Shorter or longer loads.")]
WarmUp = Annotated[float, typer.Option(min=0, help="How much of a load runs before the first round.")]
Partitions = Annotated[int | None, typer.Option(min=1, help="Of each load's topic, in place of its own.")]
LatencyMs = Annotated[int, typer.Option(min=0, help="The store's latency for PUT and for GET.")]
Results = Annotated[Path, typer.Option(file_okay=False, help="Where the figures go.")]


def chosen_workloads(names: Sequence[str] | None, partitions: int | None) -> list[Workload]:
    """Return the loads of these names, or all; with this many partitions, or each with its own number."""
    chosen = [one for one in WORKLOADS if names is None or one.name in names]
    if not chosen:
        raise typer.BadParameter(f"nothing to run; there are {', '.join(one.name for one in WORKLOADS)}")
    return chosen if partitions is None else [replace(one, partitions=partitions) for one in chosen]

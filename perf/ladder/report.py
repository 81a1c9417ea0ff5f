"""The ladder's results as tables and JSON."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from cli.tables import show, table
from local_cluster.agent_metrics import Counters
from perf.ladder.turns import CROSSED, STOCK, Comparison, Measured, Workload

LINKED_MIN: Final = 0.99
"""The minimum share of the topic's bytes: below it, a rung that wants links for every byte is void."""


def compare(workloads: Sequence[Workload], measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return one row per load, rung and compared figure: medians, and the median of the round-by-round comparisons.

    Figures are None if every round failed to keep up with the load; `not_kept_up_with` names the cluster and the round.
    """
    rows: list[dict[str, Any]] = []
    for workload in workloads:
        runs = [run for run in measured if run.workload == workload.name]
        rungs = list(dict.fromkeys(run.rung for run in runs if run.rung.name != STOCK))
        for figure, comparison in {**workload.compared, CROSSED: Comparison.RATIO}.items():
            for rung in rungs:
                own = [run for run in runs if run.rung == rung]
                if figure == CROSSED and not any(CROSSED in run.figures for run in own):
                    continue
                stock = [run for run in runs if run.rung.name == STOCK and run.rung.pair == rung.pair]
                rows.append(
                    {"workload": workload.name, "figure": figure, "rung": rung.name}
                    | _compared(figure, comparison, own, stock)
                    | {"void": _is_void(own)}
                )
    return rows


def _compared(
    figure: str, comparison: Comparison, own: Sequence[Measured], stock: Sequence[Measured]
) -> dict[str, Any]:
    values, beside = (
        {run.round: run.figures[figure] for run in runs if figure in run.figures} for runs in (own, stock)
    )
    both = [(value, beside[number]) for number, value in values.items() if number in beside]
    compared = [value / other if comparison is Comparison.RATIO else value - other for value, other in both]
    return {
        "stock": median(beside.values()) if beside else None,
        "value": median(values.values()) if values else None,
        "comparison": comparison.value,
        "compared": median(compared) if compared else None,
        "compared_min": min(compared, default=None),
        "compared_max": max(compared, default=None),
        "not_kept_up_with": [
            f"{run.rung.name}, round {run.round + 1}: {run.not_kept_up_with}"
            for run in (*stock, *own)
            if not run.figures
        ],
    }


def _is_void(runs: Iterable[Measured]) -> bool:
    """Return whether too few bytes were linked in these rounds together, where links are wanted for all."""
    counted = [run.usage.counted for run in runs if run.rung.is_always_linked and run.figures and run.usage.agents]
    return bool(counted) and sum(counted, Counters()).topics_linked_share < LINKED_MIN


def line_of(run: Measured) -> str:
    """Return the line that is printed after each load."""
    told = [f"{value:,.1f} {name}" for name, value in run.figures.items()]
    if run.not_kept_up_with:
        told.append(f"not kept up with: {run.not_kept_up_with}")
    counted = run.usage.counted
    if _is_void([run]):
        told.append(f"void, as {counted.topics_linked_share:.1%} was linked")
    if (ways := _put_and_get_ms(counted))["p50"]:
        told.append(f"PUT + GET {ways['p50']:.1f} ms at p50, {ways['p99']:.1f} at p99")
    return f"{run.workload}, {run.rung.name}, round {run.round + 1}: {', '.join(told)}"


def _put_and_get_ms(counted: Counters) -> dict[str, float]:
    """Return the sums of both quantiles. The sum for p99 is more than what both together take at p99."""
    stages = counted.stages_ms()
    both = [stages[one] for one in ("uploaded", "fetched") if one in stages]
    return {quantile: sum(one[quantile] for one in both) for quantile in ("p50", "p99")}


def agent_rows(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    """Return one row per load and rung with agents: what the agents cost, summed over the completed rounds."""
    by_rung = defaultdict[tuple[str, str], list[Measured]](list)
    for run in measured:
        if run.usage.agents is not None and run.figures:
            by_rung[run.workload, run.rung.name].append(run)
    return [
        {"workload": workload, "rung": rung, "void": _is_void(runs)} | _agents_row(runs)
        for (workload, rung), runs in by_rung.items()
    ]


def _agents_row(runs: Sequence[Measured]) -> dict[str, Any]:
    total = sum((run.usage.counted for run in runs), Counters())
    seconds, ways = sum(run.usage.seconds for run in runs), _put_and_get_ms(total)
    return {
        "seconds": seconds,
        "cpu_of_brokers": total.cpu_s / max(sum(run.usage.brokers_cpu_s for run in runs), 1e-9),
        "linked_share": total.topics_linked_share,
        "put_and_get_ms": ways["p50"],
        "put_and_get_p99_ms": ways["p99"],
        "agent_cores": total.cpu_s / seconds,
        "agent_cpu_s": total.cpu_s,
        "linked_bytes": total.linked_bytes,
        "inline_bytes": total.inline_bytes,
        "zone_bytes": total.zone_bytes,
        "zone_share": total.zone_bytes / max(total.linked_bytes + total.inline_bytes, 1),
        "puts": total.puts,
        "gets": total.gets,
        "stages_ms": total.stages_ms(),
        "faults": {why: times for why, times in total.sum_by("remote_wal_faults_total", "reason").items() if times},
    }


def write_json(file: Path, workloads: Sequence[Workload], measured: Sequence[Measured], **about: Any) -> None:
    """Write everything, with every round's own figures."""
    rounds = [
        {"workload": run.workload, "rung": run.rung.name, "round": run.round, "seconds": run.usage.seconds}
        | dict(run.figures)
        | ({"not_kept_up_with": run.not_kept_up_with} if run.not_kept_up_with else {})
        for run in measured
    ]
    document = about | {"partitions": {one.name: one.partitions for one in workloads}}
    document |= {"compared": compare(workloads, measured), "agents": agent_rows(measured), "rounds": rounds}
    file.write_text(json.dumps(document, indent=1))


def print_tables(workloads: Sequence[Workload], measured: Sequence[Measured]) -> None:
    """Print medians compared with stock, and what the agents did."""
    agents = agent_rows(measured)
    failed = [
        (run.workload, run.rung.name, str(run.round + 1), run.not_kept_up_with) for run in measured if not run.figures
    ]
    faults = [
        (row["workload"], row["rung"], why, f"{count:,.0f}")
        for row in agents
        for why, count in sorted(row["faults"].items())
    ]
    show(
        table(
            "load", "figure", "rung", ">stock", ">rung's", ">compared", ">range",
            rows=map(_figure, compare(workloads, measured)), title="Beside stock Kafka in the same round (medians)",
        ),
        table(
            "load", "rung", ">cores", ">of brokers' CPU", ">linked", ">MB",
            ">inline MB", ">zone share", ">PUT", ">GET", ">KB/object",
            rows=map(_cost, agents), title="What the agents did, all three together",
        ),
        table(
            "load", "rung", ">CPU ms/object", ">CPU ms/MB", ">PUT + GET p50 / p99 ms", "stage p50 / p99 in ms",
            rows=map(_stages, agents), title="Where the time goes",
        ),
        *([table("load", "rung", "fault", ">times", rows=faults, title="What agents survived")] if faults else []),
        *([table("load", "rung", ">round", "reason", rows=failed, title="Not kept up with")] if failed else []),
    )  # fmt: skip


def _figure(row: Mapping[str, Any]) -> tuple[str, ...]:
    sign, unit = ("", "x") if row["comparison"] == Comparison.RATIO.value else ("+", " ms")
    verdict, extent = "not kept up with", ""
    if row["compared"] is not None:
        doubts = f"{', void' if row['void'] else ''}{', not in each round' if row['not_kept_up_with'] else ''}"
        verdict = f"{row['compared']:{sign}.2f}{unit}{doubts}"
        extent = f"{row['compared_min']:{sign}.2f} to {row['compared_max']:{sign}.2f}"
    values = ("" if row[key] is None else f"{row[key]:.1f}" for key in ("stock", "value"))
    return row["workload"], row["figure"], row["rung"], *values, verdict, extent


def _cost(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["workload"],
        row["rung"],
        f"{row['agent_cores']:.2f}",
        f"{row['cpu_of_brokers']:.2f}",
        f"{row['linked_share']:.1%}{', void' if row['void'] else ''}",
        *(f"{row[key] / 1e6:,.1f}" for key in ("linked_bytes", "inline_bytes")),
        f"{row['zone_share']:.2%}",
        *(f"{row[key]:,.0f}" for key in ("puts", "gets")),
        f"{row['linked_bytes'] / 2e3 / max(row['puts'], 1):,.0f}",
    )


def _stages(row: Mapping[str, Any]) -> tuple[str, ...]:
    cpu_ms, replicated_mb = row["agent_cpu_s"] * 1e3, row["linked_bytes"] / 2e6
    return (
        row["workload"],
        row["rung"],
        f"{cpu_ms / max(row['puts'], 1):.1f}",
        f"{cpu_ms / max(replicated_mb, 1e-9):.1f}",
        f"{row['put_and_get_ms']:.1f}/{row['put_and_get_p99_ms']:.0f}",
        "  ".join(f"{name} {found['p50']:.1f}/{found['p99']:.0f}" for name, found in row["stages_ms"].items()),
    )

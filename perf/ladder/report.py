"""The ladder's results as table, JSON and plot."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from cli.tables import show, table
from perf.ladder.turns import STOCK, Measured
from perf.ladder.workloads import Comparison, Workload


def compare(workloads: Sequence[Workload], measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """One row per load, rung and compared figure: medians, and the median of the comparisons round by round."""
    rows: list[dict[str, Any]] = []
    for workload in workloads:
        runs = [run for run in measured if run.workload == workload.name]
        rungs = list(dict.fromkeys(run.rung for run in runs if run.rung != STOCK))
        for figure, comparison in workload.compared.items():
            for rung in rungs:
                values = {run.round: run.figures[figure] for run in runs if run.rung == rung}
                store = next(run.store for run in runs if run.rung == rung)
                stock = {run.round: run.figures[figure] for run in runs if run.rung == STOCK and run.store == store}
                compared = [_compare(comparison, values[number], stock[number]) for number in values]
                rows.append(
                    {
                        "workload": workload.name,
                        "title": workload.title,
                        "figure": figure,
                        "rung": rung,
                        "stock": median(stock.values()),
                        "value": median(values.values()),
                        "comparison": comparison.value,
                        "compared": median(compared),
                        "compared_min": min(compared),
                        "compared_max": max(compared),
                    }
                    | _published(workload, figure)
                )
    return rows


def _published(workload: Workload, figure: str) -> dict[str, float]:
    if figure not in workload.published:
        return {}
    without, with_objects = workload.published[figure]
    return {"published_ratio": with_objects / without}


def _compare(comparison: Comparison, value: float, stock: float) -> float:
    return value / stock if comparison is Comparison.RATIO else value - stock


def line_of(run: Measured) -> str:
    """What is told as soon as a load is over."""
    figures = ", ".join(f"{value:,.1f} {name}" for name, value in run.figures.items())
    return f"{run.workload}, {run.rung}, round {run.round + 1}: {figures}"


def agent_rows(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    """One row per load and rung with agents: what they cost, summed over the rounds."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    totals: dict[tuple[str, str], Any] = {}
    brokers_cpu_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    for run in measured:
        if run.agents is None:
            continue
        key = (run.workload, run.rung)
        total = totals[key] = totals[key] + run.agents if key in totals else run.agents
        row = rows.setdefault(key, {"workload": run.workload, "rung": run.rung, "seconds": 0.0})
        row["seconds"] += run.seconds
        brokers_cpu_s[key] += run.brokers_cpu_s
        stages = total.stages_ms()
        row |= {
            "cpu_of_brokers": total.cpu_s / max(brokers_cpu_s[key], 1e-9),
            "linked_share": total.topics_linked_share,
            "put_and_get_ms": sum(stages[one]["p50"] for one in ("uploaded", "fetched") if one in stages),
            "agent_cores": total.cpu_s / row["seconds"],
            "agent_cpu_s": total.cpu_s,
            "linked_bytes": total.linked_bytes,
            "inline_bytes": total.inline_bytes,
            "zone_bytes": total.zone_bytes,
            "zone_share": total.zone_bytes / max(total.linked_bytes + total.inline_bytes, 1),
            "puts": total.puts,
            "gets": total.gets,
            "stages_ms": stages,
            "faults": {why: times for why, times in total.by("remote_wal_faults_total", "reason").items() if times},
        }
    return list(rows.values())


def write_json(file: Path, workloads: Sequence[Workload], measured: Sequence[Measured], **about: Any) -> None:
    """All of it, with every round's own figures."""
    rounds = [
        {"workload": run.workload, "rung": run.rung, "round": run.round, "seconds": run.seconds} | dict(run.figures)
        for run in measured
    ]
    points = {one.name: asdict(one.point) for one in workloads if one.point is not None}
    document = {
        "points": points,
        "compared": compare(workloads, measured),
        "agents": agent_rows(measured),
        "rounds": rounds,
    }
    file.write_text(json.dumps(about | document, indent=1))


def print_tables(workloads: Sequence[Workload], measured: Sequence[Measured]) -> None:
    """Medians beside stock, and what the agents did."""
    agents = list(agent_rows(measured))
    figures, costs, stages = map(_figure, compare(workloads, measured)), map(_cost, agents), map(_stages, agents)
    faults = [
        (row["workload"], row["rung"], why, f"{count:,.0f}")
        for row in agents
        for why, count in sorted(row["faults"].items())
    ]
    show(
        table(
            "load", "figure", "rung", ">stock", ">rung's", ">compared", ">range", ">published",
            rows=figures, title="Beside stock Kafka in the same round (medians)",
        ),
        table(
            "load", "rung", ">cores", ">of brokers' CPU", ">linked", ">MB",
            ">inline MB", ">zone share", ">PUT", ">GET", ">KB/object",
            rows=costs, title="What the agents did, all three together",
        ),
        table(
            "load", "rung", ">CPU ms/object", ">CPU ms/MB", ">PUT + GET ms", "stage p50 / p99 in ms",
            rows=stages, title="Where the time goes",
        ),
        *([table("load", "rung", "fault", ">times", rows=faults, title="What agents survived")] if faults else []),
    )  # fmt: skip


def _figure(row: Mapping[str, Any]) -> tuple[str, ...]:
    sign, unit = ("", "x") if row["comparison"] == Comparison.RATIO.value else ("+", " ms")
    return (
        *(row[key] for key in ("workload", "figure", "rung")),
        *(f"{row[key]:.1f}" for key in ("stock", "value")),
        f"{row['compared']:{sign}.2f}{unit}",
        f"{row['compared_min']:{sign}.2f} to {row['compared_max']:{sign}.2f}",
        f"{row['published_ratio']:.2f}x" if "published_ratio" in row else "",
    )


def _cost(row: Mapping[str, Any]) -> tuple[str, ...]:
    puts, replicated_kb = max(row["puts"], 1), row["linked_bytes"] / 2e3
    return (
        row["workload"],
        row["rung"],
        f"{row['agent_cores']:.2f}",
        f"{row['cpu_of_brokers']:.2f}",
        f"{row['linked_share']:.1%}",
        *(f"{row[key] / 1e6:,.1f}" for key in ("linked_bytes", "inline_bytes")),
        f"{row['zone_share']:.2%}",
        *(f"{row[key]:,.0f}" for key in ("puts", "gets")),
        f"{replicated_kb / puts:,.0f}",
    )


def _stages(row: Mapping[str, Any]) -> tuple[str, ...]:
    cpu_ms, replicated_mb = row["agent_cpu_s"] * 1e3, row["linked_bytes"] / 2e6
    return (
        row["workload"],
        row["rung"],
        f"{cpu_ms / max(row['puts'], 1):.1f}",
        f"{cpu_ms / max(replicated_mb, 1e-9):.1f}",
        f"{row['put_and_get_ms']:.1f}",
        "  ".join(f"{name} {found['p50']:.1f}/{found['p99']:.0f}" for name, found in row["stages_ms"].items()),
    )


def plot(file: Path, workloads: Sequence[Workload], measured: Sequence[Measured]) -> None:
    """One panel per load: stock and every rung, a bar each with the range over the rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [workload for workload in workloads if any(run.workload == workload.name for run in measured)]
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    chart, panels = plt.subplots(lines, columns, figsize=(5.2 * columns, 3.4 * lines), squeeze=False)
    for panel in panels.flat[len(shown) :]:
        panel.axis("off")
    for panel, workload in zip(panels.flat, shown, strict=False):
        figure = next(iter(workload.compared))
        runs = [run for run in measured if run.workload == workload.name]
        rungs = list(dict.fromkeys(run.rung for run in runs))
        values = [[run.figures[figure] for run in runs if run.rung == rung] for rung in rungs]
        medians = [median(of_rung) for of_rung in values]
        ranges = [
            [middle - min(of_rung) for middle, of_rung in zip(medians, values, strict=True)],
            [max(of_rung) - middle for middle, of_rung in zip(medians, values, strict=True)],
        ]
        colours = ["#8a8a8a" if rung == STOCK else "#2f6fab" for rung in rungs]
        panel.bar(rungs, medians, yerr=ranges, color=colours, capsize=3)
        panel.set_title(workload.title, fontsize=9)
        panel.set_ylabel(figure)
        panel.tick_params(axis="x", labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    chart.tight_layout()
    chart.savefig(file, dpi=120)
    plt.close(chart)

"""Latency over the rate of records, by policy, out of what runs of the ladder have written."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from perf.ladder.turns import STOCK

_NAMES = {STOCK: "stock", "cost": "cost, the default", "latency": "latency", "links": "always"}
"""Of the rungs that are shown, as the policies are called."""
_COLOURS = {STOCK: "#8a8a8a", "cost": "#2f6fab", "latency": "#3a9a5b", "links": "#c0562f"}

Curves = dict[str, dict[str, dict[int, dict[str, float]]]]
"""By curve, rung, records per second and quantile: milliseconds."""


def rates(
    ladders: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="The ladder's JSON files.")],
    image: Annotated[Path, typer.Option(dir_okay=False, help="Where the plot goes.")] = Path("perf/results/rates.svg"),
) -> None:
    """Plot latency over the rate of records for stock and each policy, out of runs of the ladder."""
    if not plot_rates(image, ladders):
        raise typer.BadParameter("none of these has loads of several rates, such as librdkafka-50")
    typer.echo(f"written: {image}")


def curves_of(ladders: Sequence[Path]) -> Curves:
    """Medians over the rounds of all of these runs that were kept up with."""
    found: defaultdict[tuple[str, str, int, str], list[float]] = defaultdict(list)
    for file in ladders:
        document = json.loads(file.read_text())
        for run in document["rounds"]:
            point = document["points"].get(run["workload"])
            if point is not None and run["rung"] in _NAMES and "not_kept_up_with" not in run:
                for quantile in ("p50", "p99"):
                    place = (point["curve"], run["rung"], point["records_per_s"], quantile)
                    found[place].append(run[f"{quantile} ms"])
    curves: Curves = {}
    for (curve, rung, records_per_s, quantile), values in found.items():
        curves.setdefault(curve, {}).setdefault(rung, {}).setdefault(records_per_s, {})[quantile] = median(values)
    return curves


def plot_rates(file: Path, ladders: Sequence[Path]) -> bool:
    """One panel for each curve; says whether there was one."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    curves = curves_of(ladders)
    if not curves:
        return False
    chart, panels = plt.subplots(1, len(curves), figsize=(5.2 * len(curves), 3.8), squeeze=False, sharey=True)
    for panel, (title, rungs) in zip(panels.flat, curves.items(), strict=True):
        for rung in sorted(rungs, key=list(_NAMES).index):
            points = sorted(rungs[rung].items())
            for quantile, style in (("p50", "-"), ("p99", ":")):
                panel.plot(
                    [rate for rate, _ in points],
                    [values[quantile] for _, values in points],
                    style,
                    marker="o",
                    markersize=3,
                    color=_COLOURS[rung],
                    label=f"{_NAMES[rung]}, {quantile}",
                )
        panel.set(title=title, xlabel="records of 1 KB per second", xscale="log", yscale="log")
        panel.set_xticks(sorted({rate for values in rungs.values() for rate in values}), minor=False)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.tick_params(axis="x", which="minor", bottom=False)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels.flat[0].set_ylabel("ms to the acknowledgement, acks=all")
    panels.flat[-1].legend(fontsize=8, frameon=False)
    chart.tight_layout()
    chart.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(chart)
    return True

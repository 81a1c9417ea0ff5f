"""Latency over rate: the rounds of several runs of the ladder make one curve for each policy."""

from pathlib import Path

import pytest
import typer

from perf.ladder.rates import curves_of, plot_rates, rates
from perf.ladder.report import write_json
from perf.ladder.turns import STOCK, Measured
from perf.ladder.workloads import LATENCY, OnCurve, Workload


def workload(records_per_s: int) -> Workload:
    point = OnCurve("librdkafka", records_per_s)
    return Workload(f"at-{records_per_s}", "", 1, LATENCY, lambda _tools, _topic, _scale: {}, point=point)


def ladder(file: Path, p50_ms: float, rungs: tuple[str, ...] = (STOCK, "cost", "links-s3")) -> Path:
    loads = [workload(50), workload(200)]
    measured = [
        Measured(load.name, "directory", rung, 0, {"p50 ms": p50_ms, "p99 ms": 2 * p50_ms}, 1.0, None)
        for load in loads
        for rung in rungs
    ]
    write_json(file, loads, measured)
    return file


def test_rounds_of_several_runs_are_put_together_by_rate_and_policy(tmp_path: Path) -> None:
    files = [ladder(tmp_path / f"{value}.json", value) for value in (1.0, 3.0, 8.0)]
    both = {rate: {"p50": 3.0, "p99": 6.0} for rate in (50, 200)}
    assert curves_of(files) == {"librdkafka": {STOCK: both, "cost": both}}


def test_the_plot_names_each_policy(tmp_path: Path) -> None:
    image = tmp_path / "rates.svg"
    assert plot_rates(image, [ladder(tmp_path / "ladder.json", 1.0, (STOCK, "cost", "latency", "links"))])
    text = image.read_text()
    assert all(name in text for name in ("stock, p50", "cost, the default, p99", "latency, p50", "always, p99"))


def test_without_loads_of_several_rates_there_is_no_plot(tmp_path: Path) -> None:
    write_json(tmp_path / "ladder.json", [], [])
    with pytest.raises(typer.BadParameter, match="librdkafka-50"):
        rates([tmp_path / "ladder.json"], tmp_path / "rates.svg")
    assert not (tmp_path / "rates.svg").exists()

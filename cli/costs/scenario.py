"""`remote-wal scenario`: computes what a workload would cost, without asking any other process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import Json
from cli.tables import show, table, tell_json

if TYPE_CHECKING:
    from retention_job.cost.scenarios import Scenario


def scenario(
    name: Annotated[
        str | None, typer.Argument(help="The workload; without one, all are listed, with the parameters of --set.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="parameter=value of the workload, for instance interval_ms=20.")
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(help="A price file in the place of the one that comes along.", exists=True, dir_okay=False),
    ] = None,
    json: Json = False,
) -> None:
    """Compute what a named workload costs, with stock Kafka and with remote WAL, for each broker and month."""
    from retention_job.cost.scenarios import load_scenario, parameter_meanings, scenario_json, scenario_names

    if name is None:
        if set_ or prices is not None:
            raise typer.BadParameter("--set and --prices belong to a workload: name one")
        names, parameters = scenario_names(), parameter_meanings()
        if json:
            tell_json({"scenarios": names, "parameters": parameters})
        else:
            show(table("scenario", "about", rows=names.items()))
            show(table("parameter (--set)", "meaning", rows=parameters.items()))
        return
    found = load_scenario(name, set_ or [], prices)
    if json:
        tell_json(scenario_json(found))
    else:
        _print_scenario(found)


def _print_scenario(scenario: "Scenario") -> None:
    cost = scenario.cost
    columns = (cost.baseline, cost.remote_wal)
    parts = [part for part in cost.remote_wal.parts if any(way.parts[part] for way in columns)]
    rows = [(part.replace("_", " "), *(f"{way.parts[part]:,.2f}" for way in columns)) for part in parts]
    title = "dollars per broker and month"
    made = table(title, ">stock Kafka", ">remote WAL", rows=rows, title=scenario.name)
    made.add_section()
    made.add_row("total", *(f"{way.total:,.2f}" for way in columns))
    each_ms = 3_600_000 * scenario.workload.hours_per_month / (cost.objects_per_month or 1)
    way = (
        f"as links, an object each {each_ms:.3g} ms"
        if cost.linked
        else "inline"
        if cost.objects_per_month
        else "inline, and nothing is uploaded"
    )
    pays_from = "never" if cost.break_even_mb_s is None else f"from {cost.break_even_mb_s:.3g} MB/s to each broker"
    replication = cost.replication_saved_ratio
    show(
        made,
        f"{scenario.about}{_changed(scenario)}. {scenario.text}",
        f"{_compared(cost.saved_ratio)} of this total: instances, their disks, object storage and replication across "
        f"zones{_without(scenario)}. Clients' traffic is not in it: remote-wal estimate has it.",
        *([] if replication is None else [f"{_compared(replication)} of what replication across zones costs."]),
        f"Records travel {way}; links pay {pays_from}. Prices: {scenario.prices.confirmed}.{_held(scenario)}",
    )
    if scenario.inferred:
        show(f"Inferred, as its source does not tell: {', '.join(scenario.inferred)}.")


def _held(scenario: "Scenario") -> str:
    from metadata_topic.settings.topic_settings import LinkPolicy

    load = scenario.workload
    if not scenario.cost.linked or not load.producers_wait or load.link_policy is not LinkPolicy.COST:
        return ""
    return " Where links would hold such producers back, a topic goes inline instead, and saves less."


def _changed(scenario: "Scenario") -> str:
    """Tell what was set, as the description is that of the workload without it."""
    return f" (but with your {', '.join(scenario.overridden)})" if scenario.overridden else ""


def _compared(saved_ratio: float) -> str:
    return f"{abs(100 * saved_ratio):.1f} % {'saved' if saved_ratio >= 0 else 'more paid'}"


def _without(scenario: "Scenario") -> str:
    left_out = [part.replace("_", " ") for part in scenario.workload.leaves_out]
    return f", without {' and '.join(left_out)}" if left_out else ""

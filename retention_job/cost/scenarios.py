"""Named scenarios from `scenarios.toml`, with parameters that the caller may override."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from plugin.prices import PriceTable, network_of
from retention_job.cost.scenario_model import (
    STORAGE_PARTS,
    ClientsCost,
    MonthlyCost,
    ScenarioCost,
    ScenarioError,
    Workload,
    clients_cost,
    cost_of,
)

_FILE: Final = "scenarios.toml"
CURRENT_PRICES: Final = "current"
_PARAMETERS: Final = tuple(parameter.name for parameter in dataclasses.fields(Workload))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload with its price table."""

    name: str
    about: str
    workload: Workload
    prices: PriceTable
    inferred: tuple[str, ...]
    """The parameters that the scenario's source does not give, but that follow from its figures."""
    overridden: tuple[str, ...]

    @property
    def cost(self) -> ScenarioCost:
        """The cost of replication. Raises PriceError."""
        return cost_of(self.workload, self.prices)

    @property
    def clients(self) -> ClientsCost:
        """The cost of clients' bytes, which comes on top. Raises PriceError."""
        return clients_cost(self.workload, self.prices)


def scenario_names() -> dict[str, str]:
    """Return every scenario with a one-line description."""
    return {name: str(scenario.get("about", "")) for name, scenario in _read()["scenarios"].items()}


def load_scenario(name: str, overrides: Sequence[str] = (), prices_file: Path | None = None) -> Scenario:
    """Return a scenario with `overrides`, each `parameter=value`; `prices=current` takes the price file.

    Raises ScenarioError for an unknown name, parameter or value, PriceError for a price file without a date.
    """
    tables = _read()
    changed = dict(_split(override) for override in overrides)
    raw = {**_with_bases(name, tables["scenarios"]), **changed}
    prices = _prices(str(raw.get("prices", CURRENT_PRICES)), tables["prices"], prices_file)
    try:
        workload = TypeAdapter(Workload).validate_python({key: raw[key] for key in _PARAMETERS if key in raw})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parameter = ".".join(map(str, first["loc"])) or "parameters"
        raise ScenarioError(f"scenario {name}: {parameter}: {first['msg']}") from None
    return Scenario(
        name,
        str(raw.get("about", "")),
        workload,
        prices.with_network(network_of(workload.store)),
        tuple(key for key in raw.get("inferred", ()) if key not in changed),
        tuple(changed),
    )


def scenario_json(scenario: Scenario) -> dict[str, object]:
    """Return dollars per broker and month, with their parts, for JSON output. Raises PriceError."""
    cost = scenario.cost
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "unit": "US dollars per broker and month",
        "baseline": _cost_json(cost.baseline),
        "remote_wal": _cost_json(cost.remote_wal),
        "saved_percent": round(100 * cost.saved_ratio, 1),
        "all_brokers_saved": round(scenario.workload.brokers * (cost.baseline.total - cost.remote_wal.total), 2),
        "clients": {
            **{way: _clients_json(usd) for way, usd in scenario.clients.ways.items()},
            "linked": scenario.clients.linked,
        },
        "linked": cost.linked,
        "objects_per_month": round(cost.objects_per_month),
        "object_bytes": round(cost.object_bytes),
        "break_even_mb_s": None if cost.break_even_mb_s is None else round(cost.break_even_mb_s, 3),
        "prices": {"source": scenario.prices.source, "confirmed": scenario.prices.confirmed},
        "parameters": TypeAdapter(Workload).dump_python(scenario.workload, mode="json"),
        "inferred_parameters": list(scenario.inferred),
        "overridden_parameters": list(scenario.overridden),
    }


def _clients_json(cost: MonthlyCost) -> dict[str, float]:
    return {"total": round(cost.total, 2), **{part: round(usd, 2) for part, usd in cost.parts.items()}}


def _cost_json(cost: MonthlyCost) -> dict[str, float]:
    storage = cost.sum_of(*STORAGE_PARTS[: 3 if "wal_storage" in cost.parts else 2])
    return {
        "total": round(cost.total, 2),
        "storage_and_instance": round(storage, 2),
        "transfer": round(cost.total - storage, 2),
        **{part: round(usd, 2) for part, usd in cost.parts.items()},
    }


def _read() -> dict[str, Any]:
    return tomllib.loads((resources.files("retention_job.cost") / _FILE).read_text(encoding="utf-8"))


def _with_bases(name: str, scenarios: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a scenario's own keys over those of the scenario that it is based on."""
    if name not in scenarios:
        raise ScenarioError(f"scenario {name}: unknown; there are: {', '.join(scenarios)}")
    own = scenarios[name]
    return {**_with_bases(own["base"], scenarios), **own} if "base" in own else own


def _split(override: str) -> tuple[str, str]:
    parameter, equals, value = override.partition("=")
    parameter = parameter.strip().replace("-", "_")
    if not equals or (parameter not in _PARAMETERS and parameter != "prices"):
        raise ScenarioError(f"{override!r}: not parameter=value; the parameters are: prices, {', '.join(_PARAMETERS)}")
    return parameter, value.strip()


def _prices(name: str, tables: Mapping[str, Any], prices_file: Path | None) -> PriceTable:
    if name == CURRENT_PRICES:
        return PriceTable.load(prices_file)
    if name not in tables:
        raise ScenarioError(f"prices {name}: unknown; there are: {', '.join((CURRENT_PRICES, *tables))}")
    return PriceTable.of(tables[name], f"{_FILE} [prices.{name}]")

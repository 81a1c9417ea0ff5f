"""Named plans from `scenarios.toml`, with parameters that the caller may override, and their cost by `cost_model`."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, get_type_hints

from pydantic import TypeAdapter, ValidationError

from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from metadata_topic.settings.wal_retention import WalRetention
from plugin.errors import fault_text, meant
from plugin.prices import BYTES_PER_GB, EXPRESS, PriceTable, network_of
from plugin.text_settings import is_pythons_number
from retention_job.cost.cost_model import PARTS, Amounts, Leader, LedLog, Rules, Tariff, Where

_FILE: Final = "scenarios.toml"
CURRENT_PRICES: Final = "current"
_LISTED: Final = "`remote-wal scenario` lists all with their meaning"
_STANDS_FOR: Final = {"acks": "; producers_wait=true stands for acks=all, and false for acks=1"}


class ScenarioError(ValueError):
    """A scenario, or a parameter of one, is unknown or invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A cluster's load, per broker, with the meaning of each parameter. All brokers are alike; an object has entries of
    all partitions that one broker leads."""

    brokers: Annotated[int, "The number of brokers, all alike."]
    rate_mb_s: Annotated[
        float,
        "Megabytes (10^6) per second that producers write to the partitions that one broker leads.",
    ]
    interval_ms: Annotated[float, "remote.wal.log.manager.combiner.task.interval.ms"]
    replication_factor: Annotated[int, "The number of replicas of each partition."]
    remote_followers: Annotated[int, "The number of followers of each partition in other zones than the leader."]
    wal_hours: Annotated[float, "The life time of an object in hours: remote.wal.retention.ms."]
    stored_copies: Annotated[float, "Copies of each byte on the brokers' disks."]
    local_hours: Annotated[float, "The hours for which a byte stays on the brokers' disks in stock Kafka."]
    local_hours_with_wal: Annotated[float, "The same with remote WAL."]
    link_policy: Annotated[LinkPolicy, "remote.wal.link.policy"] = LinkPolicy.COST
    is_kept: Annotated[
        bool | None,
        "Whether objects are stored even if links do not pay: for the archive, or as long as the log for a "
        "recovery. None: the default, which is true with one or two replicas.",
    ] = None
    zone_reads: Annotated[bool, "Whether one broker of a zone reads an object for all of its zone."] = True
    partitions: Annotated[
        int,
        "The number of partitions that a broker leads; their followers are spread by chance.",
    ] = 12
    producers_wait: Annotated[
        bool,
        "Whether producers wait, as with acks=all. If none waits, objects are uploaded later, and are larger.",
    ] = True
    upload_wait_ms: Annotated[float, "remote.wal.link.upload.wait.max.ms"] = 100
    archive_interval_ms: Annotated[
        float,
        "remote.wal.archive.interval.ms: the upload interval of an object that is stored although links do not pay.",
    ] = 1000
    upload_bytes: Annotated[
        int,
        "remote.wal.log.manager.combiner.task.upload.bytes: an object is uploaded early when it is full.",
    ] = 4 * 1024 * 1024
    pack_ratio: Annotated[float, "Bytes that cross zones for each inline byte, once agents have packed it."] = 1.0
    hours_per_month: Annotated[float, "The hours of a month."] = 720
    store: Annotated[str, "The section of the price table for the objects' store."] = EXPRESS
    zones: Annotated[int, "The number of zones that brokers are spread over."] = 3
    leaves_out: Annotated[tuple[str, ...], "Parts of the cost that the scenario's source leaves out."] = ()

    def __post_init__(self) -> None:
        for name in ("brokers", "rate_mb_s", "interval_ms", "hours_per_month", "archive_interval_ms", "upload_bytes",
                     "replication_factor", "partitions", "upload_wait_ms", "pack_ratio"):  # fmt: skip
            if not 0 < getattr(self, name) < math.inf:
                raise ScenarioError(f"{name}: must be above 0, not {getattr(self, name)!r}")
        for name in ("wal_hours", "stored_copies", "local_hours", "local_hours_with_wal", "remote_followers"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ScenarioError(f"{name}: must not be below 0, nor {getattr(self, name)!r}")
        if self.zones < 2:
            raise ScenarioError(f"zones: must be 2 or more, not {self.zones}")
        if self.remote_followers >= self.replication_factor:
            raise ScenarioError(
                f"remote_followers: {self.remote_followers} cannot be with a replication factor of "
                f"{self.replication_factor}: one replica is the leader"
            )
        if unknown := set(self.leaves_out) - set(PARTS):
            told = ", ".join(sorted(unknown))
            raise ScenarioError(f"leaves_out: {told}: no part of the cost; {', '.join(PARTS)} are")

    @property
    def gb_per_month(self) -> float:
        return self.rate_mb_s * 1e6 * 3600 * self.hours_per_month / BYTES_PER_GB

    @property
    def rules(self) -> Rules:
        """The agents' settings that this workload assumes."""
        return Rules(
            self.interval_ms / 1000,
            self.upload_wait_ms / 1000,
            self.archive_interval_ms / 1000,
            self.upload_bytes,
            self.wal_hours * 3600,
            self.zone_reads,
            self.producers_wait,
        )

    def led(self) -> tuple[dict[Where, LedLog], dict[int, str]]:
        """Return the logs that one broker leads, and the followers' zones. Equal workloads give equal results."""
        drawn = Random(self.partitions)  # noqa: S311 - nobody is to be surprised
        others = self.zones - 1
        in_zone = max(self.brokers // self.zones, math.ceil(self.remote_followers / others))
        zones = {zone * in_zone + one: f"zone {zone}" for zone in range(others) for one in range(in_zone)}
        is_kept = self.is_kept
        if is_kept is None:
            is_kept = WalRetention().is_kept(TopicSettings(enable=True), self.replication_factor)
        led: dict[Where, LedLog] = {}
        for number in range(self.partitions):
            followers = set[int]()
            while len(followers) < self.remote_followers:
                followers.add(len(followers) % others * in_zone + drawn.randrange(in_zone))
            where = ("scenario", number)
            led[where] = self.rules.led_log(
                where, followers, self.link_policy, is_kept=is_kept, pack_ratio=self.pack_ratio
            )
        return led, zones


STORAGE_PARTS: Final = ("instance", "local_storage", "wal_storage")
"""The parts of the KIP's line "Storage/Instance Cost"; the other parts are its "Transfer Cost"."""


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """Dollars per broker and month, by part."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def sum_of(self, *names: str) -> float:
        return sum(self.parts[name] for name in names)


@dataclass(frozen=True, slots=True)
class ScenarioCost:
    """The cost of replication with stock Kafka and with links, and the rate from which links pay."""

    baseline: MonthlyCost
    remote_wal: MonthlyCost
    linked: bool
    """Whether the records travel as links; False if the policy by cost sends them inline."""
    objects_per_month: float
    """0 if nothing is uploaded, because no objects are needed."""
    object_bytes: float
    """0 if nothing is uploaded."""
    break_even_mb_s: float | None
    """The broker's rate from which links are used by cost; None: never at these prices."""

    @property
    def saved_ratio(self) -> float:
        """The saved part of the whole cost: brokers, their disks, the store and replication."""
        return 1 - self.remote_wal.total / self.baseline.total

    @property
    def replication_saved_ratio(self) -> float | None:
        """The saved part of replication's cost, without brokers and their disks; None if stock pays nothing."""
        stock, ours = self.baseline.sum_of(*PARTS), self.remote_wal.sum_of(*PARTS)
        return 1 - ours / stock if stock else None


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
    def text(self) -> str:
        """A description of the workload."""
        load = self.workload
        acks = "producers that wait (acks=all)" if load.producers_wait else "producers that do not wait (acks=1)"
        return (
            f"{load.brokers} brokers in {load.zones} zones, {load.rate_mb_s:g} MB/s to each from {acks}; "
            f"{load.replication_factor} replicas, {load.remote_followers} of them in other zones than the leader; "
            f"{load.partitions} partitions led by a broker; objects are stored for {load.wal_hours:g} h."
        )

    @property
    def cost(self) -> ScenarioCost:
        """The cost of replication, stock and with links. Raises PriceError."""
        load, tariff = self.workload, Tariff.of(self.prices, self.workload.store)
        rate, seconds = load.rate_mb_s * 1e6, load.hours_per_month * 3600
        led, zones = load.led()
        leader = Leader(led, tariff, load.rules, zones, rate * load.rules.interval_s)
        found = leader.replicate(dict.fromkeys(led, rate / load.partitions))
        stock, ours = Amounts(crossing_bytes=rate * load.remote_followers * seconds), Amounts()
        for one in found.values():
            ours.add(one.amounts, seconds)
        broker = {
            "instance": self.prices.usd("broker", "instance_hour") * load.hours_per_month,
            "local_storage": self._disk_usd(load.local_hours),
        }
        baseline = broker | stock.usd(tariff)
        parts = {part: 0.0 if part in load.leaves_out else usd for part, usd in ours.usd(tariff).items()}
        remote_wal = broker | {"local_storage": self._disk_usd(load.local_hours_with_wal)} | parts
        paying_rate = leader.paying_rate(load.partitions)
        return ScenarioCost(
            MonthlyCost(baseline),
            MonthlyCost(remote_wal),
            any(one.inline is None for one in found.values()),
            ours.puts,
            ours.uploaded_bytes / ours.puts if ours.puts else 0.0,
            None if paying_rate is None else paying_rate / 1e6,
        )

    def _disk_usd(self, hours: float) -> float:
        load = self.workload
        gb = load.gb_per_month / load.hours_per_month * hours * load.stored_copies
        return gb * self.prices.usd("broker", "disk_gb_month")


_PARAMETERS: Final = tuple(parameter.name for parameter in dataclasses.fields(Workload))


def parameter_meanings() -> dict[str, str]:
    """Return every parameter of a workload with its meaning."""
    hints = get_type_hints(Workload, include_extras=True)
    meanings = {name: hints[name].__metadata__[0] for name in _PARAMETERS}
    return {**meanings, "prices": f"{CURRENT_PRICES} for the price file, or the name of prices of scenarios.toml"}


def scenario_names() -> dict[str, str]:
    """Return every scenario with a one-line description."""
    return {name: str(scenario.get("about", "")) for name, scenario in _read()["scenarios"].items()}


def load_scenario(name: str, overrides: Sequence[str] = (), prices_file: Path | None = None) -> Scenario:
    """Return a scenario with `overrides`, each `parameter=value`; `prices=current` takes the price file.

    Raises ScenarioError for an unknown name, parameter or value, PriceError for a price file without a date.
    """
    tables = _read()
    pairs = [_split(override) for override in overrides]
    changed = dict(pairs)
    if len(changed) < len(pairs):
        raise ScenarioError(f"scenario {name}: a parameter is set twice: {', '.join(overrides)}")
    raw = {**_with_bases(name, tables["scenarios"]), **changed}
    if "leaves_out" in changed:
        raw["leaves_out"] = changed["leaves_out"].split(",")
    prices = _prices(str(raw.get("prices", CURRENT_PRICES)), tables["prices"], prices_file)
    try:
        workload = TypeAdapter(Workload).validate_python({key: raw[key] for key in _PARAMETERS if key in raw})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        told = fault_text(first)
        if first["loc"]:  # else the workload itself names its parameter
            told = f"{first['loc'][0]}: {told}, not {first['input']!r}"
        raise ScenarioError(f"scenario {name}: {told}") from None
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
    replication = cost.replication_saved_ratio
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "workload": scenario.text,
        "unit": "US dollars per broker and month",
        "baseline": _cost_json(cost.baseline),
        "remote_wal": _cost_json(cost.remote_wal),
        "saved_percent": round(100 * cost.saved_ratio, 1),
        "replication_saved_percent": None if replication is None else round(100 * replication, 1),
        "all_brokers_saved": round(scenario.workload.brokers * (cost.baseline.total - cost.remote_wal.total), 2),
        "linked": cost.linked,
        "objects_per_month": round(cost.objects_per_month),
        "object_bytes": round(cost.object_bytes),
        "break_even_mb_s": None if cost.break_even_mb_s is None else round(cost.break_even_mb_s, 3),
        "prices": {"source": scenario.prices.source, "confirmed": scenario.prices.confirmed},
        "parameters": TypeAdapter(Workload).dump_python(scenario.workload, mode="json"),
        "inferred_parameters": list(scenario.inferred),
        "overridden_parameters": list(scenario.overridden),
    }


def _cost_json(cost: MonthlyCost) -> dict[str, float]:
    storage = cost.sum_of(*STORAGE_PARTS)
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
    if not equals:
        raise ScenarioError(f"{override!r}: not parameter=value, such as rate_mb_s=10; {_LISTED}")
    if parameter not in (*_PARAMETERS, "prices"):
        near = _STANDS_FOR.get(parameter) or meant(parameter, _PARAMETERS, least=0.5)
        raise ScenarioError(f"{override!r}: no parameter has this name{near}; {_LISTED}")
    if parameter != "prices" and is_pythons_number(value):
        raise ScenarioError(f"{override!r}: {value.strip()} is no number")
    return parameter, value.strip()


def _prices(name: str, tables: Mapping[str, Any], prices_file: Path | None) -> PriceTable:
    if name == CURRENT_PRICES:
        return PriceTable.load(prices_file)
    if name not in tables:
        raise ScenarioError(f"prices {name}: unknown; there are: {', '.join((CURRENT_PRICES, *tables))}")
    if prices_file is not None:
        raise ScenarioError(f"prices {name}: they come with the scenario; prices={CURRENT_PRICES} takes {prices_file}")
    return PriceTable.of(tables[name], f"{_FILE} [prices.{name}]")

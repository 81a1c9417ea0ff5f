"""`remote-wal estimate`: what a cluster pays across zones, and what it would pay with agents, before there are any."""

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from cli.connection import Connection, Json
from cli.exit_code import ExitCode
from cli.option_groups import grouped
from cli.progress import shown_progress
from cli.tables import fail, fitted, show, table, tell_json

if TYPE_CHECKING:
    from cli.costs.prometheus_rates import TopicRates
    from plugin.prices import PriceTable
    from retention_job.cost.cost_model import Rules
    from retention_job.cost.estimate import Estimate, Sample

_TIMEOUT_S: Final = 30.0
_MOST_TOPICS: Final = 40
_WAYS: Final = {
    "today": "today",
    "client_rack": "client.rack alone",
    "packing": "packing alone",
    "links": "agents",
    "links_and_client_rack": "agents, client.rack",
    "gateway": "agents, gateway",
}


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The options that name a Prometheus, for rates over a longer time than the command can sample."""

    prometheus: Annotated[
        str, typer.Option(help="URL of a Prometheus that has the brokers' metrics: take rates from there.")
    ] = ""
    weeks: Annotated[float, typer.Option(help="How many weeks of Prometheus' rates to average.", min=0.01)] = 4.0
    bytes_in: Annotated[
        str,
        typer.Option(help="Counter of produced bytes (labels allowed), or a PromQL query of bytes a second by topic."),
    ] = ""
    bytes_out: Annotated[str, typer.Option(help="The same for bytes that consumers read.")] = ""

    def rates(self, now_s: float) -> "TopicRates | None":
        """Return the rates that Prometheus has; None if no Prometheus is named. Raises PrometheusError,
        BadParameter."""
        from cli.costs.prometheus_rates import is_address, read_rates

        if not self.prometheus:
            return None
        if not is_address(self.prometheus):
            raise typer.BadParameter("expected http://HOST:PORT or https://HOST:PORT", param_hint="--prometheus")
        return read_rates(self.prometheus, self.weeks, self.bytes_in, self.bytes_out, now_s)


@grouped
def estimate(
    connection: Connection,
    longer: Prometheus,
    minutes: Annotated[float, typer.Option(help="How long to look.", min=0.05)] = 10.0,
    every: Annotated[float, typer.Option(help="Seconds from one sample to the next.", min=1.0)] = 10.0,
    store: Annotated[str, typer.Option(help="The store's section of the price table.")] = "s3_express",
    acks: Annotated[
        Literal["all", "1"],
        typer.Option(help="all: producers wait for followers; 1: they do not, or agents hold their answers."),
    ] = "all",
    prices: Annotated[
        Path | None,
        typer.Option(help="A price file in the place of the one that comes along.", exists=True, dir_okay=False),
    ] = None,
    read_records: Annotated[
        bool, typer.Option(help="Read some records of each topic, to see how small agents pack them.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Write an HTML page there, too.")] = None,
    json: Json = False,
) -> None:
    """Estimate dollars a month: today, with links, with client.rack alone, with the gateway. Needs no agent.

    Reads offsets, log sizes, racks, replicas and groups' offsets for some minutes, and changes nothing. Ctrl-C ends it
    early, with what is known by then. With --prometheus, the rates of topics are averages over weeks. Without
    --read-records, nothing counts as packed: then agents save more than this says.
    """
    if page is not None and not page.absolute().parent.is_dir():  # before it looks for minutes
        raise typer.BadParameter(f"{page.parent} is no directory", param_hint="--page")
    from plugin.prices import PriceTable, network_of
    from plugin.wall_clock import wall_ms
    from retention_job.cost.estimate import NO_AVERAGES, estimate_json
    from retention_job.cost.estimate import estimate as estimated

    price_table = PriceTable.load(prices).with_network(network_of(store))
    price_table.store(store)
    rates = longer.rates(wall_ms() / 1000)
    client = connection.client_config()
    from cli.costs.cluster_samples import Sampler

    samples: list[Sample] = []
    with Sampler(client, _TIMEOUT_S, time.monotonic) as sampler, shown_progress("reading the cluster") as tell:
        try:
            _look(sampler.sample, samples, minutes * 60, every, tell, time.monotonic)
        except KeyboardInterrupt:
            if len(samples) < 2:
                raise
    if len(samples) < 2:
        fail("the cluster was seen once; look for longer", ExitCode.UNKNOWN, json=json)
    rules = default_rules(store, producers_wait=acks == "all")
    ratios: dict[str, float] = {}
    if read_records:
        from cli.costs.packed_samples import pack_ratios

        ratios = pack_ratios(client, samples[-1].logs, _TIMEOUT_S)
    found = estimated(samples, price_table, store, rules, rates.averages if rates else NO_AVERAGES, ratios)
    document = estimate_json(found) | {"prices": price_source(price_table, store), "acks": acks}
    document["prometheus"] = rates.document(samples[-1]) if rates else None
    if page is not None:
        page.write_text(html_page(document), encoding="utf-8")
    if json:
        tell_json(document)
    else:
        _print(found, document)


def _look(
    sample: "Callable[[], Sample]",
    samples: "list[Sample]",
    seconds: float,
    every_s: float,
    tell: Callable[[str], None],
    clock: Callable[[], float],
) -> None:
    """Take samples until the time is over. Leaves out those that fail once there are two, which is enough to end with.

    Raises KafkaClusterError, ReassignmentError.
    """
    from kafka_cluster.errors import KafkaClusterError
    from recovery.errors import ReassignmentError

    while True:
        try:
            samples.append(sample())
            looked_s = samples[-1].at_s - samples[0].at_s
            logs = f"{len(samples[-1].logs):,} partitions"
            tell(f"looking: {looked_s:.0f} of {seconds:.0f} s, {logs}; Ctrl-C ends it with what is known")
        except (KafkaClusterError, ReassignmentError) as error:
            if len(samples) < 2:
                raise
            looked_s = clock() - samples[0].at_s
            tell(f"a look failed and is left out: {error}")
        left_s = seconds - looked_s
        if left_s <= 0:
            return
        _wait(min(every_s, left_s))


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def default_rules(store: str, *, producers_wait: bool) -> "Rules":
    """Return the agents' default settings that costs depend on."""
    from agent.settings.agent_settings import AgentSettings
    from retention_job.cost.cost_model import Rules

    settings = AgentSettings()
    limits = settings.log_manager
    return Rules(
        limits.combiner_task_interval_s,
        settings.link.upload_wait_at(store),
        settings.log_manager.archive_interval_s,
        limits.combiner_task_upload_bytes,
        settings.lifecycle.retention_s or math.inf,
        True,
        producers_wait,
    )


def price_source(prices: "PriceTable", store: str) -> dict[str, str]:
    """Return where the prices come from, and their date."""
    provider = {"network": "AWS", "network_gcp": "Google Cloud", "network_azure": "Azure"}[prices.network]
    return {"provider": provider, "store": store, "source": prices.source, "confirmed": prices.confirmed}


def _cells(row: dict[str, Any], *, tells_rate: bool) -> list[str]:
    from agent.http.status_page import size

    share = row["linked_share"]
    return [
        row["topic"],
        size(row["produced_bytes"]) + (f" {row['rate']}" if tells_rate else ""),
        size(row["read_bytes"]),
        *(f"{usd:,.2f}" for usd in row["usd"].values()),
        f"{1 / row['pack_ratio']:.1f} times" if row["pack_ratio"] < 1 else "",
        "none" if share is None else f"{100 * share:.0f} %",
    ]


def _why_inline(row: dict[str, Any]) -> str:
    from agent.http.status_page import size

    return ", ".join(f"{reason} {size(moved)}" for reason, moved in row["inline_bytes"].items())


_COLUMNS: Final = (
    "topic", ">produced", ">read", *(f">{name}" for name in _WAYS.values()), ">packed", ">linked",
)  # fmt: skip
_BY_TOPIC: Final = "By topic and month: bytes, and dollars by each way"
_LESS_NEEDED: Final = ("read", "packing alone", "client.rack alone", "packed", "agents, client.rack", "agents, gateway")
"""Columns that a narrow terminal does without, the first ones first: the table of all topics has them, too."""


def _summary(document: dict[str, Any]) -> "list[list[str]]":
    usd = document["total"]["usd"]
    return [
        [name, f"{usd[way]:,.2f}", f"{usd['today'] - usd[way]:,.2f}", document["acks_all_added"][way]]
        for way, name in _WAYS.items()
    ]


def _told(document: dict[str, Any]) -> list[str]:
    prices, mb_s, size = document["prices"], document["break_even_mb_s"], document["break_even_bytes"]
    is_packed = document["total"]["pack_ratio"] < 1
    beside = ", as inline records are packed" if is_packed else ""
    pays = "Links never pay at these prices." if size is None else (
        f"Links pay from {size / 1e3:,.0f} KB an object{beside}, that is from {mb_s:.2f} MB/s for each broker."
    )  # fmt: skip
    total = document["total"]
    replication, written = total["replication_usd"]["today"], total["parts_usd"]["produce_today"]
    return [
        f"Of today's ${total['usd']['today']:,.2f}, replication is ${replication:,.2f}, and producers' records that go "
        f"to another zone's leader are ${written:,.2f}; the rest is what consumers read. Agents and packing save of "
        "the first alone, the gateway of all.",
        f"By agents: links where they cost less, else inline{' and packed' if is_packed else ''}. {pays}",
        *_told_waiting(document),
        *_told_rates(document["prometheus"]),
        f"From {document['sampled_s']:,.0f} s of {document['brokers']} brokers in {document['zones']} zones. Prices: "
        f"{prices['provider']}, {prices['store']}, confirmed {prices['confirmed']} ({prices['source']}); --prices "
        "replaces them.",
        *(f"{note[0].upper()}{note[1:]}." for note in document["notes"]),
    ]


def _told_waiting(document: dict[str, Any]) -> list[str]:
    held = document["total"]["held_linked_share"]
    if document["acks"] != "all" or held is None:
        return []
    return [
        "What is linked, and what agents cost, is for producers that wait for followers (--acks all). Whether agents "
        f'hold their answers is not asked; if they do, {100 * held:.0f} % are linked, as in "{_WAYS["gateway"]}": '
        "--acks 1 shows that by topic."
    ]


def _told_rates(prometheus: dict[str, Any] | None) -> list[str]:
    if prometheus is None:
        return []
    lacking = prometheus["sampled_topics"]
    text = (
        f"Rates of {prometheus['topics']:,} topics are averages of {prometheus['days']:,} days, {prometheus['begin']} "
        f"to {prometheus['end']}, by Prometheus at {prometheus['address']}: {'; '.join(prometheus['queries'])}."
    )
    if len(prometheus["queries"]) == 1:
        text += " It has nothing of what consumers read, which is sampled."
    if lacking:
        more = f" and {len(lacking) - _MOST_TOPICS:,} more" if len(lacking) > _MOST_TOPICS else ""
        text += f" It lacks {len(lacking):,}, whose rates are sampled: {', '.join(lacking[:_MOST_TOPICS])}{more}."
    return [text]


_SUMMARY: Final = ("way", ">dollars a month", ">saved", "acks=all, added to the median")


def _print(found: "Estimate", document: dict[str, Any]) -> None:
    from rich.text import Text

    tells_rate = document["prometheus"] is not None
    shown = document["topics"][:_MOST_TOPICS]
    rows = [_cells(row, tells_rate=tells_rate) for row in (*shown, document["total"])]
    made = fitted(*_COLUMNS, rows=rows, drop=_LESS_NEEDED, title=_BY_TOPIC)
    reasons = [f"{row['topic']}: inline a month, by reason: {why}" for row in shown if (why := _why_inline(row))]
    if (more := len(found.topics) - _MOST_TOPICS) > 0:
        made.caption = f"and {more:,} more topics, all in the total"
    show(
        made,
        *map(Text, reasons),
        table(*_SUMMARY, rows=_summary(document), title="All topics", without_lines=True),
        *_told(document),
    )


def html_page(document: dict[str, Any]) -> str:
    """Return the estimate as one self-contained HTML page, in the style of agents' status pages."""
    from html import escape

    from agent.http.status_page import page_style

    def row(cells: Iterable[str], mark: str = "td") -> str:
        return f"<tr>{''.join(f'<{mark}>{escape(cell)}</{mark}>' for cell in cells)}</tr>"

    usd, prices, tells_rate = document["total"]["usd"], document["prices"], document["prometheus"] is not None
    best = min(_WAYS, key=lambda way: usd[way])
    pays = usd[best] < usd["today"]
    facts = (
        f"{document['brokers']} brokers in {document['zones']} zones",
        f"prices of {prices['provider']}, {prices['store']}, {prices['confirmed']}",
    )
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>${one}</dd><p>a month, ${saved} saved. acks=all: {escape(acks)}</p></div>"
        for name, one, saved, acks in _summary(document)
    )
    names = (one.removeprefix(">") for one in _COLUMNS)
    body = "".join(
        row(_cells(one, tells_rate=tells_rate))
        + (f'<tr class="why"><td colspan="{len(_COLUMNS)}">inline a month: {escape(why)}</td></tr>' if why else "")
        for one in (*document["topics"], document["total"])
        for why in [_why_inline(one)]
    )
    told = f"By {_WAYS[best]}: <b>${usd[best]:,.2f}</b>." if pays else "<b>No way would cost less.</b>"
    return f"""<!doctype html>
<html lang="en" class="{"good" if pays else "look"}"><head><meta charset="utf-8"><title>remote-wal estimate</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
{page_style()}<style>dl {{ grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)) }} dd {{ white-space: nowrap }}
th {{ white-space: normal }} tr.why {{ border: 0 }} .why td {{ white-space: normal; color: var(--soft) }}
main .notes {{ margin-top: .75rem }}</style></head>
<body><header><h1>remote-wal estimate</h1><ul>{"".join(f"<li>{escape(fact)}</li>" for fact in facts)}</ul></header>
<main><p class="answer">What crosses zones costs ${usd["today"]:,.2f} a month today. {told}</p><dl>{tiles}</dl>
<section><h2>{_BY_TOPIC}</h2><div class="wide"><table>
<thead>{row(names, "th")}</thead><tbody>{body}</tbody>
</table></div></section>
<ul class="notes">{"".join(f"<li>{escape(text)}</li>" for text in _told(document))}</ul></main></body></html>
"""

"""What people see who run it for the first time: its steps, and the report."""

import textwrap
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from demo.measurement import LINKED
from demo.plan import LEDGER_TOPIC
from demo.report import MB_PER_MIB, FaultSeen, Report, Traffic
from local_cluster.object_store.store_spec import OwnStore

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PAGE_WIDTH = 80
"""Columns that a page is laid out for."""


_STORES = {
    OwnStore.LOCAL: "a local directory (5 ms per request)",
    OwnStore.S3_NATIVE: "a native S3 server on this machine, under TLS",
}

_PICTURE = """
 the leader's zone                                    two followers' zones
 ┌────────────────┐                                   ┌──────────────────┐
 │ broker   agent─┼─ links, packed: [crossed.] ──────▶│ agents   brokers │
 └────────────┬───┘                                   └──▲───────────────┘
              │              ┌────────────────┐          │
              └[put.....]───▶│ object storage ├[get.....]┘
                             └────────────────┘
"""


class Progress:
    """Shows the demo's steps. Begin and end them on one thread, within `with`."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._status = console.status("")
        self._title: str | None = None
        self._note = ""
        self._begun_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def begin(self, title: str, note: str = "") -> None:
        """Begin a step; the one before, if it still runs, ends."""
        self.end()
        self._title, self._begun_s = title, time.monotonic()
        self.note(note)

    def note(self, text: str) -> None:
        """Show a text about the running step."""
        if self._title is not None:
            self._note = text
            self._status.update(f"[bold]{self._title}[/] {text}")

    def end(self, note: str | None = None) -> None:
        """End the running step, and show how long it took and its result."""
        if self._title is None:
            return
        took_s, told = time.monotonic() - self._begun_s, self._note if note is None else note
        self._console.print(
            textwrap.fill(f"{took_s:5.1f} s  {self._title}: {told}", self._console.width, subsequent_indent=" " * 9),
            highlight=False,
        )
        self._title = None


def show_introduction(console: "Console", store: OwnStore) -> None:
    """Print what the demo is about to do."""
    console.print()
    console.print("[bold]remote-wal[/]  Kafka replicates across zones through object storage")
    console.print(
        "[dim]Three stock Kafka brokers stand for three zones. Beside each runs an agent, which sends followers a link "
        f"to bytes in object storage instead of the bytes. The store is {_STORES[store]}.[/]",
        highlight=False,
    )
    console.print()


def show_report(console: "Console", report: Report) -> None:
    """Print the report."""
    for part in (_picture, _records, _money, _faults, _producers):
        console.print()
        console.print(part(report))
    console.print()
    _promises(console, report)


def _picture(report: Report) -> "RenderableType":
    from rich.panel import Panel
    from rich.text import Text

    traffic = report.phases["saturated"]
    crossed = f"{_megabytes(traffic.zone_bytes.with_links):^10}"
    drawn = _PICTURE.replace("[crossed.]", crossed)
    for token, size in (("[put.....]", traffic.request_bytes["put"]), ("[get.....]", traffic.request_bytes["get"])):
        drawn = drawn.replace(token, f"{_megabytes(size):^10}")
    text = Text(drawn)
    ratio = traffic.zone_bytes.ratio
    style = "bold green" if ratio is None or ratio <= 1 else "bold red"
    text.highlight_words([crossed.strip()], style)
    text.append("\n While the producers wrote as fast as they could, ")
    text.append(_megabytes(traffic.zone_bytes.with_links), style=style)
    text.append(" crossed zones.\n Stock Kafka would have sent ")
    text.append(_megabytes(traffic.zone_bytes.stock), style="bold red")
    text.append("." if ratio is None else f": {100 * ratio:.1f} % of it is left.")
    return Panel(text, title="across zones", title_align="left", border_style="green", width=PAGE_WIDTH - 2)


def _money(report: Report) -> "RenderableType":
    table = _table("where the money goes", "", "whole run", "saturated", "paced")
    columns = (report.whole, report.phases["saturated"], report.phases["paced"])

    def row(title: str, cells: Iterable[str], style: str = "") -> None:
        table.add_row(title, *cells, style=style)

    crossed = [(one.zone_bytes.with_links, one.zone_bytes.stock) for one in columns]
    costs = [one.cost_per_gb for one in columns]
    row("producers wrote", (_megabytes(traffic.produced_bytes) for traffic in columns))
    row("followers got, in two copies", (_megabytes(one.linked_bytes + one.inline_bytes) for one in columns))
    row("  as links", (_megabytes(one.linked_bytes) for one in columns))
    row("  the share of links", (_percent(one.link_share) for one in columns))
    row("  inline, packed on the way", (_megabytes(one.inline_bytes) for one in columns))
    row("crossed zones, all told", (_coloured(_megabytes(ours), ours, stock) for ours, stock in crossed))
    row("  stock Kafka would have sent", (_megabytes(traffic.zone_bytes.stock) for traffic in columns), "red")
    row("  left of it", (_percent(traffic.zone_bytes.ratio) for traffic in columns))
    row("objects", (f"{traffic.objects:,}" for traffic in columns))
    row("  their mean size", map(_object_size, columns))
    for request in ("put", "get"):
        row(f"{request.upper()} requests", (f"{traffic.requests[request]:,}" for traffic in columns))
    table.add_section()
    row("per GB written: stock Kafka", (_dollars(traffic, "stock") for traffic in columns), "red")
    spent = (("-", 0.0, 0.0) if one is None else (_usd(one.remote_wal), one.remote_wal, one.stock) for one in costs)
    row("per GB written: remote-wal", (_coloured(*one) for one in spent))
    row("  of it requests and their bytes", (_dollars(traffic, "remote_wal_requests") for traffic in columns), "dim")
    row("  of it zone crossings", (_dollars(traffic, "remote_wal_zone") for traffic in columns), "dim")
    prices = "S3 Express" if report.store is OwnStore.LOCAL else "S3 Standard"
    return _captioned(
        table,
        f"{prices} and zone prices of plugin/prices.toml, times the requests and bytes counted here. "
        "For a small load (paced) an object would cost more than it saves, so most bytes go inline, and packing saves. "
        f"Topic {LEDGER_TOPIC}, whose records are checked one by one, goes by links always (policy `always`), so that "
        "faults strike links: its small objects make the bill higher than it is by default. "
        "What producers and consumers send across zones themselves is in neither bill.",
    )


def _records(report: Report) -> "Table":
    records = report.records
    table = _table("what became of the records", "", "")

    def row(title: str, count: int, good: int | None = None) -> None:
        style = "" if good is None else "bold green" if count == good else "bold red"
        table.add_row(title, f"{count:,}", style=style)

    row("sent", records.sent)
    row("acknowledged", records.acknowledged)
    row("consumed", records.consumed)
    row("aborted in transactions, not consumed", records.aborted)
    row("lost: acknowledged with acks=all, not consumed", records.lost, good=0)
    row("out of order", records.reordered, good=0)
    row("doubled or altered", records.duplicates + records.altered, good=0)
    row("lost with acks=1 as its leader was killed, as in stock Kafka", records.lost_acks_1)
    replicas = report.replicas
    table.add_row(
        f"replicas byte by byte: {replicas.partitions} partitions, {_megabytes(replicas.bytes)} each",
        "identical" if replicas.identical else "DIFFERENT",
        style="bold green" if replicas.identical else "bold red",
    )
    return table


def _faults(report: Report) -> "RenderableType":
    table = _table("what was broken on purpose", "", "")
    table.columns[1].justify = "left"
    table.columns[0].no_wrap = True
    for fault in report.faults:
        title, *lines = _seen(fault)
        table.add_row(f"{title}\n[dim]{fault.target}, at {fault.at_s:.0f} s[/]", ",\n".join(lines))
    return table


def _seen(fault: FaultSeen) -> tuple[str, ...]:
    """Print a title, and what was seen."""
    seen = fault.seen
    if fault.fault == "leader_killed":
        return (
            "kill -9 of a broker that leads",
            f"broker {seen['new_leader']} leads after {seen['new_leader_after_s']} s",
            f"produce is acknowledged again after {seen['produce_resumed_after_s']} s",
            f"all replicas in sync again after {seen['all_in_sync_after_s']} s",
        )
    waited = f"the longest wait for acks=all was {seen['longest_acknowledgement_s']} s"
    if fault.fault == "agent_killed":
        return "kill -9 of an agent", f"it was ready again after {seen['ready_again_after_s']} s", waited
    inline, again = seen["inline_bytes"], seen["links_again_after_s"]
    went = _megabytes(inline) if isinstance(inline, int) else inline
    ended = f"links were used again after {again} s" if again is not None else "links were not used again"
    return "no object storage", f"for {fault.seconds} s {went} went inline", waited, ended


def _producers(report: Report) -> "RenderableType":
    title = "Kafka's producer-perf-test, how records went, and why inline most"
    table = _table(title, "", "MB/s", "p50", "p99", "linked", "inline")
    table.columns[0].no_wrap = True
    for before, run in zip((None, *report.producers), report.producers, strict=False):
        result = run.result
        if before is None or before.phase != run.phase:
            table.add_row(run.phase)
        inline = [f"{_megabytes(size)} {why}" for why, size in run.moved.items() if why != LINKED]
        table.add_row(
            f"  {run.way}",
            f"{result.mib_per_s * MB_PER_MIB:.1f}",
            *(f"{value:,.0f} ms" for value in (result.p50_ms, result.p99_ms)),
            _percent(run.link_share),
            inline[0] if inline else "",
        )
    return _captioned(
        table,
        "Saturated, a record mostly waits in the producer; all brokers, agents and clients share this machine. By "
        "agents: brokers get acks=all as acks=1, and agents hold the answers until the records are replicated "
        "(remote.wal.gateway.acks.pipelined.enable). `remote-wal describe --why` says what the reasons mean.",
    )


def _promises(console: "Console", report: Report) -> None:
    if report.broken_promises:
        for line in report.broken_promises:
            console.print(f"[bold red]✗ broken promise:[/] {line}", highlight=False, soft_wrap=True)
        return
    console.print(
        f"[bold green]✓[/] every promise held in {report.total_s:.0f} s: nothing acknowledged was lost, nothing came "
        "out of order, and all replicas are the same bytes. Every figure above was counted in this run.",
        highlight=False,
    )


def _table(title: str, *columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    headed = any(columns)
    table = Table(
        title=f"[bold]{title}" + ("" if headed else "\n"),
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD if headed else None,
        show_header=headed,
        padding=(0, 1, 0, 0) if headed else (0, 2),
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _captioned(table: "Table", caption: str) -> "RenderableType":
    """Rich would wrap a caption at the table's width."""
    from rich.console import Group
    from rich.padding import Padding

    return Group(table, Padding(f"[dim]{caption}[/]", (0, 2)))


def _megabytes(size: int) -> str:
    value = size / 1e6
    return f"{value:,.0f} MB" if value >= 100 else f"{value:,.1f} MB"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _object_size(traffic: Traffic) -> str:
    return f"{traffic.request_bytes['put'] / traffic.objects / 1000:,.0f} kB" if traffic.objects else "-"


def _coloured(text: str, ours: float, stock: float) -> str:
    """Green where it is less than in stock Kafka, red where it is more, and neither where it is as much."""
    colour = "" if ours == stock else "bold green" if ours < stock else "bold red"
    return f"[{colour}]{text}[/]" if colour else text


def _usd(value: float) -> str:
    return f"${value:.4f}" if value >= 0.0001 or not value else f"${value:.5f}"


def _dollars(traffic: Traffic, part: str) -> str:
    cost = traffic.cost_per_gb
    return "-" if cost is None else _usd(getattr(cost, part))

"""Makes the report as one HTML page that needs no other file: no script, no style sheet, no picture.

Names of topics and texts of findings come from elsewhere, so all inserted text is escaped. Plots are our own SVG, drawn
without a display, from plain values.
"""

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from retention_job.findings.kinds import SEVERITIES
from retention_job.page.report_data import Bar, DayCosts, ReportData

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TEMPLATE: Final = "report.html"
_UNKNOWN: Final = "unknown"
_REMOTE: Final = "#2a6f97"
_STOCK: Final = "#b0b7bf"
_SAVED: Final = "#3a7d44"
_LOST: Final = "#b23a48"
COST_PARTS: Final = {
    "put_usd": ("PUT", "PUT requests", "#013a63"),
    "upload_usd": ("upload", "upload", "#2a6f97"),
    "get_usd": ("GET", "GET requests", "#61a5c2"),
    "retrieval_usd": ("retrieval", "retrieval", "#a9d6e5"),
    "storage_usd": ("storage", "storage", "#7f5539"),
    "read_fee_usd": ("read fees", "cross-zone reads", "#ddb892"),
    "crossing_usd": ("cross-zone left", "cross-zone traffic left", "#e09f3e"),
    "clients_store_usd": ("clients' store", "clients' object storage", "#3d6b56"),
    "clients_crossing_usd": ("clients' cross-zone", "clients' cross-zone traffic left", "#8fb996"),
    "archive_put_usd": ("archive PUT", "archive PUT requests", "#5a4a78"),
    "archive_get_usd": ("archive GET", "archive GET requests", "#9c89b8"),
    "archive_storage_usd": ("archive storage", "archive storage", "#cdc3dc"),
}
"""The parts of the cost, in the order of tables' columns: heading, label in plots, colour."""
_TOPICS: Final = 12
_NAME_CHARACTERS: Final = 32


def html_report(data: ReportData) -> str:
    """Return the report as one HTML page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    drawn = {name: svg(figure) for name, figure in plots(data).items()}

    def figure(name: str, caption: str) -> "Markup":
        if name not in drawn:
            return Markup("")
        return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(Markup(drawn[name]), escape(caption))  # noqa: S704 - our own SVG

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters.update(
        time=_time,
        duration=_duration,
        age=lambda ms: "" if ms is None else _duration(ms / 1000),
        size=size_text,
        money=money,
        count=lambda n: f"{n or 0:,.0f}",
    )
    template = environment.from_string((resources.files("retention_job.page") / _TEMPLATE).read_text(encoding="utf-8"))
    return template.render(
        data=data,
        costs=data.costs,
        severities=SEVERITIES,
        shown_parts={name: heading for name, (heading, _, _) in COST_PARTS.items() if data.costs.parts.get(name)},
        all_known=all(day.is_complete for day in data.costs.days),
        untold=any(clients.amounts["untold_bytes"] for clients in data.costs.clients),
        figure=figure,
    )


def money(usd: float | None) -> str:
    """Format dollars shortly: without cents from $100 on, with two significant digits below a cent."""
    if not usd:
        return _UNKNOWN if usd is None else "$0"
    sign, usd = ("-" if usd < 0 else ""), abs(usd)
    if usd < 0.01:
        return f"{sign}${usd:.2g}" if usd >= 1e-4 else f"{sign}${usd:.1e}"
    return f"{sign}${usd:,.2f}" if usd < 100 else f"{sign}${usd:,.0f}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(seconds: float) -> str:
    for unit, length_s in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.0f} s"


def size_text(size: float | None) -> str:
    """Format bytes in a fitting unit."""
    if size is None:
        return _UNKNOWN
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= length:
            return f"{size / length:,.1f} {unit}"
    return f"{size:,.0f} B"


# Plots.


def plots(data: ReportData) -> dict[str, "Figure"]:
    """Return the report's figures by name; those without data are left out."""
    costs, objects = data.costs, data.objects
    drawn: dict[str, Figure | None] = {
        "cost_by_day": _cost_by_day(costs.days),
        "savings": _savings(costs.days),
        "cost_by_topic": _cost_by_topic(data),
        "sizes": _sizes(objects.sizes),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def svg(figure: "Figure") -> str:
    """Return the figure as an SVG element, without the XML prologue; the same figure gives the same text."""
    from matplotlib import rc_context

    written = io.StringIO()
    with rc_context({"svg.hashsalt": "remote-wal", "svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _figure(height_inches: float = 3.0, width_inches: float = 10.8) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e3e6e8", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _dollars(axis: "object") -> None:
    from matplotlib.ticker import FuncFormatter

    def text(value: float, _position: int) -> str:
        return f"${value:,.0f}" if abs(value) >= 10 and value == round(value) else money(value)

    axis.set_major_formatter(FuncFormatter(text))  # type: ignore[attr-defined]


def _cost_by_day(days: Sequence[DayCosts]) -> "Figure | None":
    if not days:
        return None
    figure, axes = _figure(3.4)
    at = range(len(days))
    stock = [day.stock_usd or 0.0 for day in days]
    axes.bar([x - 0.2 for x in at], stock, 0.38, color=_STOCK, label="stock Kafka: cross-zone traffic")
    bottom = [0.0] * len(days)
    for name, (_, label, colour) in COST_PARTS.items():
        values = [day.parts.get(name, 0.0) for day in days]
        if any(values):
            # The rest of cross-zone traffic can be negative if small frames were packed.
            axes.bar([x + 0.2 for x in at], values, 0.38, bottom=bottom, color=colour, label=label)
            bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    axes.set_xticks(list(at), _day_labels(days))
    axes.set_ylabel("dollars a day")
    _dollars(axes.yaxis)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _day_labels(days: Sequence[DayCosts]) -> list[str]:
    """Return month and day; a star if usage records lack a broker. With many days, some labels are left out."""
    step = max(1, len(days) // 12)
    return [
        day.date[5:] + ("" if day.is_complete else "*") if number % step == 0 else "" for number, day in enumerate(days)
    ]


def _savings(days: Sequence[DayCosts]) -> "Figure | None":
    if all(day.saved_usd is None for day in days):
        return None
    figure, axes = _figure()
    known = [(number, day.saved_usd) for number, day in enumerate(days) if day.saved_usd is not None]
    at, saved = [number for number, _ in known], [usd for _, usd in known]
    axes.bar(at, saved, 0.6, color=[_SAVED if usd >= 0 else _LOST for usd in saved], label="of the day")
    axes.plot(at, list(accumulate(saved)), color="#22333b", marker="o", markersize=4, label="summed up")
    axes.axhline(0, color="#6c757d", linewidth=0.8)
    axes.set_xticks(range(len(days)), _day_labels(days))
    axes.set_xlim(-0.6, len(days) - 0.4)
    axes.set_ylabel("saved against stock Kafka")
    _dollars(axes.yaxis)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _cost_by_topic(data: ReportData) -> "Figure | None":
    topics = [topic for topic in data.costs.topics if topic.remote_wal_usd is not None][:_TOPICS]
    if not topics:
        return None
    figure, axes = _figure(1.0 + 0.42 * len(topics))
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#e3e6e8", linewidth=0.8)
    at = range(len(topics))
    axes.barh(
        [y - 0.2 for y in at], [topic.stock_usd or 0.0 for topic in topics], 0.38, color=_STOCK, label="stock Kafka"
    )
    axes.barh([y + 0.2 for y in at], [topic.remote_wal_usd or 0.0 for topic in topics], 0.38, color=_REMOTE,
              label="remote WAL")  # fmt: skip
    axes.set_yticks(list(at), [_shortened(topic.topic) for topic in topics])
    axes.invert_yaxis()
    axes.set_xlabel("dollars in the report's time")
    _dollars(axes.xaxis)
    axes.locator_params(axis="x", nbins=6)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _shortened(name: str) -> str:
    # A dollar sign would begin a formula.
    name = name.replace("$", r"\$")
    return name if len(name) <= _NAME_CHARACTERS else name[: _NAME_CHARACTERS - 1] + "…"


def _sizes(bars: Sequence[Bar]) -> "Figure | None":
    if not bars:
        return None
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure, axes = _figure(2.6, 5.6)
    axes.bar(range(len(bars)), [bar.count for bar in bars], 0.8, color=_REMOTE)
    axes.set_xticks(range(len(bars)), [bar.label for bar in bars], fontsize=8 if len(bars) < 8 else 7)
    if len(bars) > 9:
        axes.tick_params(axis="x", labelrotation=45)
    axes.set_xlabel("size of object, from")
    axes.set_ylabel("objects")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:,.0f}"))
    return figure

"""Makes the report as one HTML page that needs no other file: no script, no style sheet, no picture.

Names of topics and texts of findings come from elsewhere, so all inserted text is escaped; plots are our own SVG.
"""

from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Final

from retention_job.findings.kinds import SEVERITIES
from retention_job.page.plots import COST_PARTS, money, plots, svg
from retention_job.page.report_data import ReportData

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATE: Final = "report.html"
UNKNOWN: Final = "unknown"


def html_report(data: ReportData) -> str:
    """Return the whole page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    drawn = {name: svg(figure) for name, figure in plots(data).items()}

    def figure(name: str, caption: str) -> "Markup":
        if name not in drawn:
            return Markup("")
        return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(Markup(drawn[name]), escape(caption))  # noqa: S704 - our own SVG

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters.update(
        time=_time, duration=_duration, age=_age, size=size_text, money=_money, count=lambda n: f"{n or 0:,.0f}"
    )
    template = environment.from_string((resources.files("retention_job.page") / TEMPLATE).read_text(encoding="utf-8"))
    return template.render(
        data=data,
        costs=data.costs,
        severities=SEVERITIES,
        shown_parts={name: heading for name, (heading, _, _) in COST_PARTS.items() if data.costs.parts.get(name)},
        all_known=all(day.is_complete for day in data.costs.days),
        untold=any(clients.amounts["untold_bytes"] for clients in data.costs.clients),
        figure=figure,
    )


def _money(usd: float | None) -> str:
    return UNKNOWN if usd is None else money(usd)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(ms: int | None) -> str:
    return "" if ms is None else _duration(ms / 1000)


def _duration(seconds: float) -> str:
    for unit, length_s in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.0f} s"


def size_text(size: float | None) -> str:
    """Return bytes in a fitting unit."""
    if size is None:
        return UNKNOWN
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= length:
            return f"{size / length:,.1f} {unit}"
    return f"{size:,.0f} B"

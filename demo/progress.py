"""What is shown while the demonstration runs: the steps, and figures that move.

On a terminal one picture is kept up to date; otherwise each step is a line, so that a log reads well.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from demo.measurement import Moment

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WINDOW_S = 3.0
_SPARKS = " ▁▂▃▄▅▆▇█"
_SPARK_COUNT = 48


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Rates over the last seconds, and totals as of now."""

    records: int
    records_per_s: float
    produced_mb_per_s: float
    zone_mb_per_s: float
    stock_mb_per_s: float
    link_share: float | None
    upload_lag_mb: float
    oldest_unstored_s: float


class LiveRates:
    """Rates from a window of moments. Sans-IO; `add` is called in the order of time."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._moments: deque[Moment] = deque()

    def add(self, moment: Moment) -> LiveFigures | None:
        """The figures as of this moment; None for the first one."""
        self._moments.append(moment)
        while len(self._moments) > 2 and self._moments[1].at_s <= moment.at_s - self._window_s:
            self._moments.popleft()
        first = self._moments[0]
        seconds = moment.at_s - first.at_s
        if seconds <= 0:
            return None
        grown = moment.totals.since(first.totals)
        linked, inline = grown.linked_bytes, grown.inline_bytes
        return LiveFigures(
            moment.records_in_logs,
            max(0, moment.records_in_logs - first.records_in_logs) / seconds,
            grown.of("remote_wal_appended_bytes_total") / seconds / 1e6,
            grown.zone_bytes / seconds / 1e6,
            grown.stock_bytes / seconds / 1e6,
            linked / (linked + inline) if linked + inline else None,
            moment.upload_lag_bytes / 1e6,
            moment.oldest_unstored_s,
        )


@dataclass(slots=True)
class _Step:
    title: str
    begun_s: float
    note: str = ""
    took_s: float | None = None


class Progress:
    """Steps are begun and ended by one thread; figures may come from another."""

    def __init__(self, console: "Console", clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._steps: list[_Step] = []
        self._rates = LiveRates()
        self._figures: LiveFigures | None = None
        self._sparks: deque[float] = deque(maxlen=_SPARK_COUNT)
        self._live: object | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        if self._console.is_terminal:
            live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)
            live.start()
            self._live = live
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from rich.live import Live

        self._figures = None
        if isinstance(self._live, Live):
            self._live.stop()

    def begin(self, title: str, note: str = "") -> None:
        """The step before, if it still runs, is done."""
        self.end()
        self._steps.append(_Step(title, self._clock(), note))

    def note(self, text: str) -> None:
        """What the step under way does now, or what came of it."""
        self._steps[-1].note = text

    def end(self, note: str | None = None) -> None:
        """The step under way is done."""
        if not self._steps or self._steps[-1].took_s is not None:
            return
        step = self._steps[-1]
        step.took_s = self._clock() - step.begun_s
        step.note = step.note if note is None else note
        if self._live is None:
            self._console.print(f"{step.took_s:5.1f} s  {step.title:<34} {step.note}", highlight=False, soft_wrap=True)

    def figures(self, moment: Moment) -> None:
        """Take the newest figures."""
        figures = self._rates.add(moment)
        if figures is not None:
            self._figures = figures
            self._sparks.append(figures.produced_mb_per_s)

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.panel import Panel
        from rich.spinner import Spinner
        from rich.table import Table

        steps = Table.grid(padding=(0, 1))
        for width in (7, 1, None, None):
            steps.add_column(width=width, justify="right" if width == 7 else "left", no_wrap=width is not None)
        for step in self._steps:
            if step.took_s is None:
                since = f"{self._clock() - step.begun_s:.0f} s"
                steps.add_row(f"[dim]{since}", Spinner("dots", style="cyan"), f"[bold]{step.title}", f"{step.note}")
            else:
                steps.add_row(f"[dim]{step.took_s:.1f} s", "[green]✓", step.title, f"[dim]{step.note}")
        if self._figures is None:
            return Group(steps)
        body = Table.grid(padding=(0, 2))
        body.add_column(style="dim")
        body.add_column(justify="right")
        body.add_column()
        for row in _live_rows(self._figures, self._sparks):
            body.add_row(*row)
        return Group(steps, Panel(body, title="now", title_align="left", border_style="cyan", width=96))


def _live_rows(figures: LiveFigures, sparks: Iterable[float]) -> list[tuple[str, str, str]]:
    share = "-" if figures.link_share is None else f"{figures.link_share:.0%}"
    return [
        ("producers write", f"[bold]{figures.produced_mb_per_s:.1f} MB/s", f"[cyan]{sparkline(sparks)}"),
        ("", f"{figures.records_per_s:,.0f} records/s", f"[dim]{figures.records:,} in the logs"),
        (
            "across zones",
            f"[bold green]{figures.zone_mb_per_s:.2f} MB/s",
            f"[dim]stock Kafka would send {figures.stock_mb_per_s:.1f} MB/s",
        ),
        ("sent as links", share, "[dim]of what followers get; the rest goes inline"),
        (
            "not yet stored",
            f"{figures.upload_lag_mb:.1f} MB",
            f"[dim]the oldest byte for {figures.oldest_unstored_s:.1f} s",
        ),
    ]


def sparkline(values: Iterable[float]) -> str:
    """One character for each value, by its share of the largest."""
    known = list(values)
    top = max(known, default=0.0) or 1.0
    return "".join(_SPARKS[round(value / top * (len(_SPARKS) - 1))] for value in known)

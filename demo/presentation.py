"""The report for people."""

from pathlib import Path
from typing import TYPE_CHECKING

from demo.plan import StoreKind
from demo.report import Report

if TYPE_CHECKING:
    from rich.console import Console


def show_introduction(console: "Console", store: StoreKind) -> None:
    """What is about to happen."""
    console.print(f"remote-wal demo on {store.description}")


def show_report(console: "Console", report: Report, kept: Path | None) -> None:
    """Everything."""
    console.print_json(report.to_text())

"""How grave findings are, and what a run's exit code says of them."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Of `remote-wal report`. 2 is left to wrong command lines."""

    CLEAN = 0
    """The run ended, and found nothing to do; notes of severity info do not count."""
    FAILED = 1
    """The run could not be made: a source, a price or the output is missing. Nothing is said of the cluster."""
    WARNING = 3
    """Something should be looked at."""
    CRITICAL = 4
    """Records are lost, or about to be."""


SEVERITIES: Final = ("critical", "warning", "info")
"""The gravest first."""


def exit_code(severities: Iterable[str]) -> ExitCode:
    """The code for findings of these severities; one that is not known counts as critical."""
    codes = {"info": ExitCode.CLEAN, "warning": ExitCode.WARNING}
    return max((codes.get(severity, ExitCode.CRITICAL) for severity in severities), default=ExitCode.CLEAN)

"""What a check says."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad it is, the harmless first."""

    OK = "ok"
    INFORMATION = "information"
    """As it may well be meant; to be known."""
    UNKNOWN = "unknown"
    """The check could not be made."""
    WARNING = "warning"
    ERROR = "error"


class Verdict(NamedTuple):
    """What a check says, in words for people."""

    level: Level
    found: str
    change: str = ""
    """What to change; empty when there is nothing to."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The same, with the check's name."""

    check: str
    level: Level
    found: str
    change: str = ""


def exit_code(findings: "list[Finding]") -> int:
    """2: an error; 1: a warning, or a check that could not be made; 0: neither."""
    levels = {finding.level for finding in findings}
    if Level.ERROR in levels:
        return 2
    return int(bool(levels & {Level.WARNING, Level.UNKNOWN}))

"""The results of checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from doctor.facts import UnknownFactError
from plugin.errors import in_words

F = TypeVar("F")

_NAMED: Final = 5


class Level(StrEnum):
    """How bad a finding is, the harmless first."""

    OK = "ok"
    INFORMATION = "information"
    """It may be intended; for information."""
    UNKNOWN = "unknown"
    """The check could not be made."""
    WARNING = "warning"
    ERROR = "error"


class Verdict(NamedTuple):
    """A check's level and text for people."""

    level: Level
    found: str
    change: str = ""
    """What to change; empty when there is nothing to change."""


Fault = tuple[Level, str, str]
"""A verdict that may be one of several."""


def worst(faults: Sequence[Fault]) -> Verdict:
    """Combine several findings to one verdict, with the level of the worst."""
    level = max((one for one, _, _ in faults), key=list(Level).index)
    return Verdict(level, "; ".join(found for _, found, _ in faults), "; ".join(change for _, _, change in faults))


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with the check's name."""

    check: str
    level: Level
    found: str
    change: str = ""


def judge(facts: F, checks: Mapping[str, Callable[[F], Verdict]]) -> list[Finding]:
    """Run the checks, and return one finding for each. An unexpected error in one does not affect the others."""
    findings = []
    for name, check in checks.items():
        try:
            verdict = check(facts)
        except UnknownFactError as error:
            verdict = Verdict(Level.UNKNOWN, str(error))
        except Exception as error:
            verdict = Verdict(Level.UNKNOWN, f"the check failed, which is a fault of remote-wal: {in_words(error)}")
        findings.append(Finding(name, *verdict))
    return findings


def some_of(names: Sequence[str]) -> str:
    """Return the first few names as text, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

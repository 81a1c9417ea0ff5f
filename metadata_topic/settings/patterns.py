"""Matches topics' names with patterns: regular expressions that RE2 understands, for whole names.

Anybody who may create a topic chooses its name, and agents match names in their event loops. RE2 takes time linear in
the name's length for every pattern, where Python's `re` may take minutes.
"""

from functools import lru_cache
from typing import Protocol, cast

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True


class _Compiled(Protocol):
    def fullmatch(self, text: str) -> object | None: ...


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> _Compiled:
    return cast(_Compiled, re2.compile(pattern, _OPTIONS))


def fault_in(pattern: str) -> str | None:
    """Return what is wrong with the pattern, as text for people; None if it is valid."""
    try:
        _compiled(pattern)
    except re2.error as error:
        return f"no regular expression that RE2 understands: {error.args[0].decode(errors='replace')}"
    return None


def is_match(pattern: str, topic: str) -> bool:
    """Return whether the pattern matches the topic's whole name. The pattern must be valid (`fault_in`)."""
    return _compiled(pattern).fullmatch(topic) is not None


@lru_cache(maxsize=1 << 17)
def first_match(patterns: tuple[str, ...], topic: str) -> str | None:
    """Return the first of these patterns that matches the topic's whole name; None if none does.

    Any change of the settings asks anew for all topics, of which a large cluster has 100,000. The number of remembered
    names is bounded, as clients choose names, too.
    """
    return next((pattern for pattern in patterns if is_match(pattern, topic)), None)

"""Which log lines are shown while a command does its work, and where."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logs_from(level: int, *, to_stderr: bool = False) -> Iterator[None]:
    """Those of at least this level (`logging`'s), none of them on standard output with `to_stderr`. Then as before."""
    import structlog

    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr) if to_stderr else None,
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)

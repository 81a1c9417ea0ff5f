"""Chooses the log lines to show while a command works: never on standard output, which is for the answer."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

KAFKA_CLIENTS: Final = ("metadata_topic.librdkafka", "kafka")
"""Loggers of librdkafka and kafka-python: they log each broker that does not answer, which a command reports once.

The names are repeated here, because importing the module that has ours takes as long as importing all commands.
"""


def show_log(*, verbose: bool) -> None:
    """Show log lines of warnings, except those of Kafka's clients; with `verbose` all lines. For the whole process."""
    import structlog

    level = logging.INFO if verbose else logging.WARNING
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    if not verbose:
        handler.addFilter(lambda line: not line.name.startswith(KAFKA_CLIENTS))
    logging.basicConfig(level=level, handlers=[handler], force=True)


@contextmanager
def logs_from(level: int) -> Iterator[None]:
    """Show log lines of at least this level (`logging`'s) inside the block."""
    import structlog

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level), cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)

"""Which log lines are shown while a command does its work: never on standard output, which is the answer's."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

KAFKA_CLIENTS: Final = ("metadata_topic.librdkafka", "kafka")
"""Loggers of librdkafka and kafka-python: they tell of each broker that does not answer, which a command does once.

Named anew, as the module that names ours takes as long to import as all commands.
"""


def show_log(*, verbose: bool) -> None:
    """Warnings, those of Kafka's clients left out; all lines with `verbose`. For the whole process."""
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
    """Lines of at least this level (`logging`'s). Then as before."""
    import structlog

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level), cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)

"""Reads the cluster's and broker's id from the log directories, and waits until they are formatted."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from kafka_log.broker_files.meta_properties import MetaProperties, read_meta_properties

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 0.2


def formatted_directory(log_dirs: Sequence[Path]) -> MetaProperties | None:
    """Return the identity in the first formatted directory; None if none is formatted yet.

    Raises MalformedFileError, and OSError when no directory can be read and none may come.
    """
    unreadable: OSError | None = None
    waits = False
    for directory in log_dirs:
        try:
            return read_meta_properties(directory)
        except FileNotFoundError:
            waits = True
        except OSError as error:  # a failed disk: like the broker, we use its other directories
            unreadable = error
    if unreadable is not None and not waits:
        raise unreadable
    return None


async def wait_for_format(
    log_dirs: Sequence[Path], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> MetaProperties:
    """Wait until a directory is formatted, and return its identity. Logs once that it waits."""
    log.warning(
        "log_directories_not_formatted",
        directories=[str(directory) for directory in log_dirs],
        consequence="nothing is relayed; the agent waits",
        hint="format them with kafka-storage.sh",
    )
    while True:
        found = formatted_directory(log_dirs)
        if found is not None:
            log.info("log_directories_formatted", cluster_id=found.cluster_id)
            return found
        await sleep(_LOOK_AGAIN_S)

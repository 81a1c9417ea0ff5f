"""Whose log directories these are. At a cluster's first start they are not formatted yet, and waited for."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from kafka_log.meta_properties import MetaProperties, read_meta_properties

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 0.2


def formatted_directory(log_dirs: Sequence[Path]) -> MetaProperties | None:
    """Of the first directory that is formatted; None when none is yet.

    Raises MalformedFileError, and OSError when no directory can be read and none may come.
    """
    unreadable: OSError | None = None
    waits = False
    for directory in log_dirs:
        try:
            return read_meta_properties(directory)
        except FileNotFoundError:
            waits = True
        except OSError as error:  # a failed disk: the broker takes its other directories, and so do we
            unreadable = error
    if unreadable is not None and not waits:
        raise unreadable
    return None


async def wait_for_format(
    log_dirs: Sequence[Path], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> MetaProperties:
    """The same, as soon as there is one. Says once that it waits."""
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

"""Sets the process's limits: as many file descriptors as the system allows, and no core dumps.

A watch warns when descriptors run out.

Connections, segment files and directories share the limit. Segment files are bounded by it, so that they never take
what connections need. Running out all the same is logged, and nothing ends: a connection is closed, a read is retried,
a failed scan keeps the last result.
"""

import asyncio
import errno
import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter

log = structlog.get_logger(__name__)

_OPEN = Path("/proc/self/fd")
_WANTED = 65_536
"""More than an agent ever needs; an unlimited limit is not raised beyond it."""
SEGMENT_FILES = 1024
"""Segment files kept open at most (guessed)."""
_RESERVE = 64
"""With fewer left, they count as running out."""
_LOOK_S = 5.0


def raise_limit() -> int:
    """Raise the limit of open file descriptors as far as possible without privileges. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def bounded_open_files(limit: int | None = None, wanted: int = SEGMENT_FILES) -> int:
    """Return how many segment files may be open: at most half of all descriptors."""
    if limit is None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    bound = min(wanted, max(limit // 2, 1))
    if bound < wanted:
        log.warning("open_files_bounded", wanted=wanted, bound=bound, limit=limit, key="LimitNOFILE")
    return bound


def end_core_dumps() -> None:
    """Switch off core dumps of this process and its children.

    They would contain records, keys and passwords. The kernel runs a handler in `kernel.core_pattern` whatever the
    limit is, but passes the limit to it; systemd-coredump then stores nothing.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


class DescriptorWatch:
    """Checks from time to time how many file descriptors are left. For the event loop; `shortage` on any thread."""

    def __init__(self, registry: CollectorRegistry, count: Callable[[], int] | None = None) -> None:
        self._count = count or _open_descriptors
        self._shortages = Counter(
            "remote_wal_descriptor_shortages", "Times that file descriptors began to run out", registry=registry
        )
        self.shortage = ""
        """The text for /readyz; empty while there are enough."""

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Count the process's open descriptors from time to time, for ever."""
        while True:
            self.look()
            await sleep(_LOOK_S)

    def look(self) -> None:
        """Count the open descriptors, and log when they begin or cease to be short."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = self._count()
        is_short = limit != resource.RLIM_INFINITY and limit - used < _RESERVE
        if is_short and not self.shortage:
            self._shortages.inc()
            log.error("descriptors_run_out", used=used, limit=limit, hint="raise LimitNOFILE of the agent's unit")
        elif not is_short and self.shortage:
            log.info("descriptors_suffice", used=used, limit=limit)
        self.shortage = f"file descriptors run out: {used} of {limit} are in use" if is_short else ""


def _open_descriptors() -> int:
    """Return the number of open descriptors; the limit if not even this look could open one."""
    try:
        return len(os.listdir(_OPEN))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

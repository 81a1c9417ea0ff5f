"""Switches core dumps off, unless they are wanted: they hold records, keys and passwords that others may read.

The kernel runs a handler in `kernel.core_pattern` whatever the limit is, but passes the limit to it; systemd-coredump
then stores nothing.
"""

import resource

import structlog

log = structlog.get_logger(__name__)

CORE_DUMPS_KEY = "remote.wal.agent.core.dumps.enable"


def settle_core_dumps(enabled: bool) -> None:
    """Set the limit for this process and its children."""
    if enabled:
        soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
        log.warning("core_dumps_enabled", limit=soft, hint=f"they hold records and secrets; {CORE_DUMPS_KEY}=false")
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))

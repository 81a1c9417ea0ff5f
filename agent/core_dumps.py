"""A core dump holds records, keys and passwords, and lies where others may read it. A crash leaves none, unless asked.

A handler that `kernel.core_pattern` pipes dumps to is run by the kernel whatever the limit is, which it is told of;
systemd-coredump then stores nothing.
"""

import resource

import structlog

log = structlog.get_logger(__name__)

CORE_DUMPS_KEY = "remote.wal.agent.core.dumps.enable"


def settle_core_dumps(enabled: bool) -> None:
    """For this process, and what it starts."""
    if enabled:
        soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
        log.warning("core_dumps_enabled", limit=soft, hint=f"they hold records and secrets; {CORE_DUMPS_KEY}=false")
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))

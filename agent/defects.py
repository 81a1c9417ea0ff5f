"""Parts that are not on the path of replication must not end the agent when they meet a defect of their own."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from prometheus_client import Counter

log = structlog.get_logger(__name__)

_PAUSE_S = 60.0


async def begun_anew_after_defects(
    part: str,
    run: Callable[[], Awaitable[None]],
    defects: Counter,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run the part; when it fails, say so, count it, and begin it anew after a pause. Cancellation ends it."""
    while True:
        try:
            await run()
        except Exception:
            defects.inc()
            log.exception("part_failed", part=part, again_in_s=_PAUSE_S, consequence="replication goes on without it")
            await sleep(_PAUSE_S)
        else:
            return

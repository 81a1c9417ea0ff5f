"""Waits until logs that are led here are stored and published up to some offsets."""

import asyncio
from collections.abc import Sequence

from gateway.durable.durable_logs import DurableLogs, Hold, Verdict
from gateway.durable.log_question import LogUpTo


async def stored_here(logs: DurableLogs, wanted: Sequence[LogUpTo]) -> bool:
    """Wait until all of these logs are stored and published; False once one is not led here any more.

    The caller bounds the time.
    """
    changed = asyncio.Event()
    held: list[Hold] = []
    try:
        for topic, partition, end_offset in wanted:
            hold = logs.hold(topic, partition, end_offset, changed.set)
            if hold is not None:
                held.append(hold)
        while True:
            changed.clear()
            verdicts = [hold.verdict for hold in held]
            if any(verdict not in (None, Verdict.STORED) for verdict in verdicts):
                return False
            if all(verdicts):
                return True
            await changed.wait()
    finally:
        for hold in held:
            logs.let_go(hold)

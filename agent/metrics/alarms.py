"""Problems that need a look although nothing has failed for good:

in /readyz while they last, in the log as they change.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from plugin.errors import defect_site
from rlm.write_path.core.led_partition import PartitionStatus

log = structlog.get_logger(__name__)

_INTERVAL_S = 5.0
UPLOAD_LAG_ALARM_MS = 60_000
"""From this age of the oldest record that is not stored, there is an alarm (guessed)."""

Watch = Callable[[], str | None]
"""Returns what is wrong, or None."""


class Alarms:
    """Looks for problems from time to time, and logs those that begin or end."""

    def __init__(self, watches: Mapping[str, Watch]) -> None:
        """`watches` are functions by their names in the log; each returns a problem, or None."""
        self._watches = watches
        self._raised: dict[str, str] = {}

    @property
    def reasons(self) -> list[str]:
        """The present problems, as texts for people; on any thread."""
        return list(self._raised.values())

    async def run(self) -> None:
        """Look for problems until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_INTERVAL_S)

    def look(self) -> None:
        for name, watch in self._watches.items():
            try:
                wrong = watch()
            except Exception as error:  # a failing watch must not stop the others
                wrong = f"{name} cannot be watched: {defect_site(error)}"
            if wrong is None:
                if self._raised.pop(name, None) is not None:
                    log.info("alarm_ended", alarm=name)
                continue
            if name not in self._raised:
                log.error("alarm_raised", alarm=name, reason=wrong)
            self._raised[name] = wrong


def upload_lag(partitions: Iterable[PartitionStatus], bound_ms: int) -> str | None:
    """Return a text if a record has waited for its upload for longer than `bound_ms`; else None."""
    late = [partition for partition in partitions if partition.lag_age_ms > bound_ms]
    if not late:
        return None
    worst = max(late, key=lambda partition: partition.lag_age_ms)
    return (
        f"records of {len(late)} partitions wait for their upload for longer than {bound_ms // 1000} s; "
        f"the oldest, of {worst.topic}-{worst.partition}, for {worst.lag_age_ms // 1000} s"
    )

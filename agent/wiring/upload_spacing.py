"""Sets from time to time how far apart the write path's uploads must be, by the recent rates of all agents."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import Gauge

from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.commit.object_spacing import spacing_s

_LOOK_S: Final = 1.0


class UploadSpacing:
    """Runs from its creation until `end`, in the event loop."""

    def __init__(
        self, decider: LinkDecider, objects_per_s: Callable[[], Mapping[int, float]], bound_per_s: int, told: Gauge
    ) -> None:
        """`objects_per_s` returns each uploading agent's rate; `bound_per_s` is the limit for all together."""
        self._decider = decider
        self._objects_per_s = objects_per_s
        self._bound_per_s = bound_per_s
        self._told = told
        self._look()

    def _look(self) -> None:
        self._decider.spacing_s = spacing_s(self._objects_per_s().values(), self._bound_per_s)
        self._told.set(self._decider.spacing_s)
        self._next = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def end(self) -> None:
        """Stop."""
        self._next.cancel()

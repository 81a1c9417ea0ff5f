"""Decides the route to one leader: through its agent, or past it to its broker. Sans-IO.

The agent is used while it answers. It is bypassed when it has not answered for `after_s`; a restart should be shorter.
At least two attempts must fail, because this process itself may have been frozen. The agent is used again when all
probes of `return_after_s` were answered. Each change costs the local broker's fetcher a back-off, so an agent that
fails again soon must answer longer each time.
"""

from dataclasses import dataclass

_MIN_FAILURES = 2
_LASTING = 10
"""A return counts as lasting after this many times `return_after_s`."""
_MAX_DOUBLINGS = 5


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Limits in seconds."""

    after_s: float
    """How long the agent must fail to answer."""
    return_after_s: float
    """How long it must answer until it is used again."""
    probe_s: float = 1.0
    """Time between two probes; doubled after each unanswered one, up to `probe_max_s`."""
    probe_max_s: float = 15.0

    @property
    def attempt_s(self) -> float:
        """How long one attempt to reach the agent may take."""
        return self.after_s / _MIN_FAILURES


class LeaderRoute:
    """Takes the results of attempts and probes with their time, and says whether the agent is bypassed."""

    def __init__(self, limits: RouteLimits) -> None:
        self.limits = limits
        self.is_bypassed = False
        self.probe_wait_s = limits.probe_s
        """How long to wait before the next probe."""
        self._failing_since_s: float | None = None
        self._failures = 0
        self._answering_since_s: float | None = None
        self._returned_at_s: float | None = None
        self._doublings = 0

    def attempt_failed(self, began_s: float, now_s: float) -> bool:
        """Record an attempt that the agent did not answer. True when it is bypassed from now on."""
        if self.is_bypassed:
            return False
        self._failing_since_s = began_s if self._failing_since_s is None else min(began_s, self._failing_since_s)
        self._failures += 1
        if self._failures < _MIN_FAILURES or now_s - self._failing_since_s < self.limits.after_s:
            return False
        self.is_bypassed = True
        self.probe_wait_s = self.limits.probe_s
        self._answering_since_s = None
        lasting_s = _LASTING * self.limits.return_after_s
        flaps = self._returned_at_s is not None and now_s - self._returned_at_s < lasting_s
        self._doublings = min(self._doublings + 1, _MAX_DOUBLINGS) if flaps else 0
        return True

    def attempt_answered(self) -> bool:
        """Record an attempt that the agent answered. False when another attempt caused a bypass meanwhile."""
        if not self.is_bypassed:
            self._failing_since_s = None
            self._failures = 0
        return not self.is_bypassed

    @property
    def steady_s(self) -> float:
        """How long the agent must answer this time."""
        return float(self.limits.return_after_s * 2**self._doublings)

    def probe_failed(self) -> None:
        """Record a probe that the agent did not answer."""
        self._answering_since_s = None
        self.probe_wait_s = min(2 * self.probe_wait_s, self.limits.probe_max_s)

    def probe_answered(self, now_s: float) -> bool:
        """Record a probe that the agent answered. True when it is used again from now on."""
        self.probe_wait_s = self.limits.probe_s
        if self._answering_since_s is None:
            self._answering_since_s = now_s
        if not self.is_bypassed or now_s - self._answering_since_s < self.steady_s:
            return False
        self.is_bypassed = False
        self._returned_at_s = now_s
        self.attempt_answered()
        return True

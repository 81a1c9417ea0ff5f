"""Which way leads to a leader: by its agent, or past it to its broker. Sans-IO; one for each leader.

By the agent while it answers. Past it when it has not for `after_s`: a restart of the agent should be shorter. It is
asked twice at least, as it may be this process that stood still. Back by the agent when all probes of `return_after_s`
were answered. Each change of way costs the local broker's fetcher a back-off, so an agent that does not stay is trusted
later each time.
"""

from dataclasses import dataclass

_MIN_FAILURES = 2
_LASTING = 10
"""A return that lasted for so many times `return_after_s` counts as good."""
_MAX_DOUBLINGS = 5


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """In seconds."""

    after_s: float
    """How long the agent must have been asked in vain."""
    return_after_s: float
    """How long it must answer until it is used again."""
    probe_s: float = 1.0
    """Between two probes; after one without an answer twice as long, up to `probe_max_s`."""
    probe_max_s: float = 15.0

    @property
    def attempt_s(self) -> float:
        """How long one attempt to reach the agent may take."""
        return self.after_s / _MIN_FAILURES


class LeaderRoute:
    """Attempts and probes go in, with the time; whether the agent is bypassed comes out."""

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
        """The agent did not answer an attempt. True when it is to be bypassed from now on."""
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
        """The agent answered an attempt. False when another attempt had it bypassed meanwhile."""
        if not self.is_bypassed:
            self._failing_since_s = None
            self._failures = 0
        return not self.is_bypassed

    @property
    def steady_s(self) -> float:
        """For how long the agent must answer this time."""
        return float(self.limits.return_after_s * 2**self._doublings)

    def probe_failed(self) -> None:
        """The agent did not answer a probe."""
        self._answering_since_s = None
        self.probe_wait_s = min(2 * self.probe_wait_s, self.limits.probe_max_s)

    def probe_answered(self, now_s: float) -> bool:
        """The agent answered a probe. True when it is to be used again."""
        self.probe_wait_s = self.limits.probe_s
        if self._answering_since_s is None:
            self._answering_since_s = now_s
        if not self.is_bypassed or now_s - self._answering_since_s < self.steady_s:
            return False
        self.is_bypassed = False
        self._returned_at_s = now_s
        self.attempt_answered()
        return True

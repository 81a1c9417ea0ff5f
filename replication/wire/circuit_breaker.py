"""Stops calls to something that keeps failing, and probes it from time to time. Sans-IO."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """After how many failures a circuit breaker opens, and for how long."""

    failures_to_open: int = 3
    open_s: float = 1.0
    open_max_s: float = 30.0


_LIMITS = BreakerLimits()


class CircuitBreaker:
    """Closed while calls succeed; open after some failures in a row; then one probe at a time until one succeeds."""

    def __init__(self, limits: BreakerLimits = _LIMITS) -> None:
        self._limits = limits
        self._failures = 0
        self._open_until_s: float | None = None
        self._open_s = limits.open_s
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether calls should be avoided; a probe may still be due."""
        return self._open_until_s is not None

    def is_due(self, now_s: float) -> bool:
        """Whether `allows` would let a call pass now."""
        return self._open_until_s is None or now_s >= self._open_until_s

    def allows(self, now_s: float) -> bool:
        """Whether a call may be made. While the breaker is open, one call passes each time the wait is over: the
        probe.
        """
        if not self.is_due(now_s):
            return False
        if self._open_until_s is None:
            return True
        self._open_until_s = now_s + self._open_s
        self._is_probing = True
        return True

    def succeeded(self) -> bool:
        """Record a successful call. Returns True when this closed the breaker."""
        closed = self._open_until_s is not None
        self._failures = 0
        self._open_until_s = None
        self._open_s = self._limits.open_s
        self._is_probing = False
        return closed

    def failed(self, now_s: float) -> bool:
        """Record a failed call. Returns True when this opened the breaker."""
        self._failures += 1
        if self._open_until_s is not None:
            if self._is_probing:  # else the call began before the breaker opened and says nothing new
                self._is_probing = False
                self._open_s = min(2 * self._open_s, self._limits.open_max_s)
                self._open_until_s = now_s + self._open_s
            return False
        if self._failures < self._limits.failures_to_open:
            return False
        self._open_until_s = now_s + self._open_s
        return True

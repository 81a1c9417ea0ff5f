"""Errors of recovery. Each names the operation, the key it was about, and what may help."""


class RecoveryError(Exception):
    """A recovery cannot go on."""

    def __init__(self, operation: str, key: str, reason: str, hint: str = "") -> None:
        self.operation = operation
        self.key = key
        self.reason = reason
        self.hint = hint
        super().__init__(f"{operation} {key}: {reason}" + (f" ({hint})" if hint else ""))


class TargetRefusedError(RecoveryError):
    """A log directory may not be written to: not empty, another cluster's or node's, in a broker's hands, or the broker
    would lead with less than it had.
    """


class UnknownClusterError(RecoveryError):
    """What must be known of the cluster (its id, topics' names, who has which partition) is not."""


class UnusableRunError(RecoveryError):
    """A run's bytes are not what they should be, or are gone; another copy may do."""


class GoneRunError(UnusableRunError):
    """A run's object was deleted."""

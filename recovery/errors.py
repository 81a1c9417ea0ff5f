"""Errors of recovery and reassignment. Each names the operation, the key it was about, and what may help."""

from plugin.errors import OperationError


class RecoveryError(OperationError):
    """A recovery cannot go on."""


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


class ReassignmentError(OperationError):
    """The cluster did not do, or did not tell, what was asked."""


class ReassignmentSettingError(ReassignmentError):
    """A broker's setting could not be changed; to try on would leave moves that never end."""

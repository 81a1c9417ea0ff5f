"""Errors of recovery and reassignment. Each names the operation, its key, and what may help."""

from plugin.errors import OperationError


class RecoveryError(OperationError):
    """A recovery cannot continue; the message says why and what may help."""


class TargetRefusedError(RecoveryError):
    """A log directory may not be written to.

    It is not empty, belongs to another cluster or node, is in use by a broker, or the broker would lead with less than
    it had.
    """


class UnknownClusterError(RecoveryError):
    """Needed data about the cluster (its id, topics' names, replicas) is unknown."""


class UnusableRunError(RecoveryError):
    """A run's bytes in this object are wrong or gone; another copy may be usable."""


class GoneRunError(UnusableRunError):
    """A run's object was deleted."""


class OvertakenRunError(UnusableRunError):
    """A batch reaches into offsets that belong to a newer leader epoch.

    A log is cut between batches, so the whole batch was cut off; `base_offset` is its first offset.
    """

    def __init__(self, key: str, base_offset: int, last_offset: int) -> None:
        """`last_offset` is the last offset below the newer epoch's first."""
        self.base_offset = base_offset
        super().__init__(
            "read run", key, f"the batch at {base_offset} reaches beyond {last_offset}, where the log goes on otherwise"
        )


class ReassignmentError(OperationError):
    """The cluster refused a request of a reassignment, or did not respond."""


class ReassignmentSettingError(ReassignmentError):
    """A broker's setting could not be changed; continuing would leave moves that never end."""

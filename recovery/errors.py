"""Errors of recovery and reassignment. Each names the operation, its key, and what may help."""

from plugin.errors import OperationError


class RecoveryError(OperationError):
    """A recovery cannot continue."""


class TargetRefusedError(RecoveryError):
    """A log directory may not be written to.

    It is not empty, another cluster's or node's, or in use by a broker, or the broker would lead with less than it had.
    """


class UnknownClusterError(RecoveryError):
    """Needed data about the cluster (its id, topics' names, replicas) is unknown."""


class UnusableRunError(RecoveryError):
    """A run's bytes are wrong or gone; another copy may be usable."""


class GoneRunError(UnusableRunError):
    """A run's object was deleted."""


class OvertakenRunError(UnusableRunError):
    """A batch reaches into offsets that a newer leader epoch has.

    A log is cut between batches, so all of the batch was cut off; `base_offset` is its begin.
    """

    def __init__(self, key: str, base_offset: int, last_offset: int) -> None:
        """`last_offset` is the last one below the newer epoch's."""
        self.base_offset = base_offset
        super().__init__(
            "read run", key, f"the batch at {base_offset} reaches beyond {last_offset}, where the log goes on otherwise"
        )


class ReassignmentError(OperationError):
    """The cluster did not do or did not answer what was asked."""


class ReassignmentSettingError(ReassignmentError):
    """A broker's setting could not be changed; continuing would leave moves that never end."""

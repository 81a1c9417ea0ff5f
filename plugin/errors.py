"""Errors of remote storage. The type says whether trying again helps (KIP-405 and KIP-1176 name the first two)."""


class RemoteStorageError(Exception):
    """Remote storage did not do what was asked. KIP-405's RemoteStorageException.

    `operation` and `key` name what failed; `retriable` says whether the same call may succeed later.
    """

    retriable = True

    def __init__(self, operation: str, key: str, reason: str, hint: str = "") -> None:
        self.operation = operation
        self.key = key
        self.reason = reason
        self.hint = hint
        super().__init__(f"{operation} {key}: {reason}" + (f" ({hint})" if hint else ""))


class RemoteResourceNotFoundError(RemoteStorageError):
    """The object is not there. KIP-405's RemoteResourceNotFoundException. Trying again does not help."""

    retriable = False


class RemoteStorageThrottledError(RemoteStorageError):
    """The store asks for fewer requests (503 SlowDown)."""


class RemoteStorageTimeoutError(RemoteStorageError):
    """No answer within the deadline. Whether a write took effect is not known."""


class RemoteStorageAccessError(RemoteStorageError):
    """Credentials are missing, expired or lack a permission; the hint names it. Trying again does not help."""

    retriable = False


class RemoteSegmentConflictError(RemoteStorageError):
    """The key holds other bytes already. Objects are immutable, so the caller must take a new key."""

    retriable = False


class RemoteSegmentCorruptError(RemoteStorageError):
    """The object's bytes do not agree with its checksums or its format; nothing of it may be used."""


class RemoteStorageConfigError(RemoteStorageError):
    """A setting is missing or wrong, or the store lacks what the system relies on; the message names the key."""

    retriable = False

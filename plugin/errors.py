"""What can go wrong with what is stored, as one tree; the type says whether trying again may help (`retriable`).

    OperationError                            what was to be done, on what, why it failed, and what may help
    ├── StoreError                            what agents store: objects, and what the metadata topic tells of them
    │   ├── RemoteStorageError                again
    │   │   ├── RemoteStorageThrottledError, …TimeoutError, …UnreachableError: again
    │   │   ├── RemoteStorageAccessError      not again; its …SessionExpiredError: once
    │   │   ├── RemoteSegmentCorruptError     once
    │   │   ├── IncompleteListingError        again
    │   │   └── RemoteResourceNotFoundError, RemoteStorageRefusedError, …ConfigError, UnknownBucketError,
    │   │       RemoteSegmentConflictError, ObjectExistsError: not again
    │   └── KafkaClusterError                 again; its ClientPropertyError: not again (`kafka_cluster.errors`)
    │       └── MetadataTopicError            again, unless its kind says otherwise (`metadata_topic.records.errors`)
    ├── RecoveryError, ReassignmentError      a recovery or a reassignment (`recovery.errors`)
    └── RetentionJobError                     a run of the report (`retention_job.errors`)

KIP-405 names RemoteStorageError and RemoteResourceNotFoundError. `label` is the kind in a word, for counters: it comes
from a small fixed set, never from a message.
"""

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_NEAR = 0.8
"""How similar a known word must be to be suggested; guessed."""
_IN_OUR_WORDS: Final = (
    ("Input should be", "must be"), ("a valid integer", "a whole number"), ("a valid number", "a number"),
    ("a valid boolean", "true or false"), ("greater than or equal to", "at least"), ("greater than", "above"),
    ("less than or equal to", "at most"), ("less than", "below"),
)  # fmt: skip


class OperationError(Exception):
    """`operation` and `key` name what failed, `reason` says why, `hint` what may help."""

    def __init__(self, operation: str, key: str, reason: str, hint: str = "") -> None:
        self.operation, self.key, self.reason, self.hint = operation, key, _ERRNO.sub("", reason), hint
        super().__init__(f"{operation} {key}: {self.reason}" + (f" ({hint})" if hint else ""))


class StoreError(OperationError):
    """A store failed or refused a request. `retriable` says whether the same call may succeed later."""

    retriable = True


class RemoteStorageError(StoreError):
    """Remote storage failed or refused a request. KIP-405's RemoteStorageException.

    `retry_limit` says how often a backend retries by itself, None for as long as its deadline allows.
    """

    retry_limit: int | None = None
    label = "error"

    def __init__(self, operation: str, key: str, reason: str, hint: str = "", label: str = "") -> None:
        if label:
            self.label = label
        super().__init__(operation, key, reason, hint)


def fault_text(fault: Mapping[str, Any]) -> str:
    """Return the text of one fault that pydantic found, in our words."""
    return in_our_words(str(fault["msg"]))


def in_our_words(text: str) -> str:
    """Return pydantic's text of a fault in our words; one of ours without the prefix that it gets there."""
    text = text.removeprefix("Value error, ")
    if not text.startswith("Input should be "):
        return text
    text, _, _ = text.partition(", unable to ")
    for pydantics, ours in _IN_OUR_WORDS:
        text = text.replace(pydantics, ours)
    return text


def meant(word: str, known: Iterable[str], least: float = _NEAR) -> str:
    """Return ` (is X meant?)` for an error message if a known word is similar (`least`: 0 to 1), else an empty text."""
    from difflib import get_close_matches

    by_case = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), by_case, 1, least)
    return f" (is {by_case[near[0]]} meant?)" if near else ""


def in_words(error: object) -> str:
    """Return an error's text for people: without its type's name and the system's number for it."""
    return _ERRNO.sub("", str(error)) or "no reason is given"


def failure_label(error: BaseException) -> str:
    """Return the metrics label of a storage manager's failure; "defect" for an exception that it may not raise."""
    return error.label if isinstance(error, RemoteStorageError) else "defect"


def defect_site(error: BaseException) -> str:
    """Return the type of an unexpected exception, and where it was raised, without its text, which may hold a
    record's bytes."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


@contextmanager
def defects_as_storage_errors(operation: str, key: object) -> Iterator[None]:
    """Convert any exception that a storage manager may not raise to a RemoteStorageError with the label "defect"."""
    try:
        yield
    except RemoteStorageError:
        raise
    except Exception as error:
        raise defect_as_storage_error(operation, key, error) from error


def defect_as_storage_error(operation: str, key: object, error: Exception) -> RemoteStorageError:
    reason = f"a defect of the storage manager: {defect_site(error)}"
    return RemoteStorageError(operation, str(key), reason, "report it", "defect")


class RemoteResourceNotFoundError(RemoteStorageError):
    """The object does not exist. KIP-405's RemoteResourceNotFoundException. A retry does not help."""

    retriable = False
    label = "not_found"


class RemoteStorageThrottledError(RemoteStorageError):
    """The store asks for fewer requests (503 SlowDown)."""

    label = "throttled"


class RemoteStorageTimeoutError(RemoteStorageError):
    """No response came within the deadline. Whether a write took effect is not known."""

    label = "timeout"


class RemoteStorageUnreachableError(RemoteStorageError):
    """No connection could be used: name lookup, TLS, a cut connection, a used-up pool; the label says which.

    Whether a write took effect is not known.
    """

    label = "connection"


class RemoteStorageAccessError(RemoteStorageError):
    """Credentials are missing or lack a permission; the hint names it. A retry does not help."""

    retriable = False
    label = "access"


class RemoteStorageSessionExpiredError(RemoteStorageAccessError):
    """The store no longer accepts this session or token. A backend gets a new one and tries once more."""

    retriable = True
    retry_limit = 1
    label = "session_expired"


class RemoteStorageRefusedError(RemoteStorageError):
    """The store does not accept such a request at all. A retry does not help."""

    retriable = False
    label = "refused"


class RemoteSegmentConflictError(RemoteStorageError):
    """The key already holds other bytes. Objects are immutable, so the caller must use a new key."""

    retriable = False
    label = "conflict"


class RemoteSegmentCorruptError(RemoteStorageError):
    """The object's bytes contradict its checksums or its format; nothing of it may be used."""

    retry_limit = 1
    label = "corrupt"


class RemoteStorageConfigError(RemoteStorageError):
    """A setting is wrong, or the store lacks what the system needs; the message names the key."""

    retriable = False
    label = "config"


class UnknownBucketError(RemoteStorageError):
    """The object's custom metadata names a bucket that is not configured: it is neither read nor deleted. A retry
    does not help."""

    retriable = False
    label = "unknown_bucket"


class IncompleteListingError(RemoteStorageError):
    """Ends a listing that lacks parts of the store: `unanswered`, as `place_of` names them."""

    label = "incomplete_listing"

    def __init__(self, key: str, unanswered: Mapping[str, str]) -> None:
        """`unanswered` maps each place that did not respond to the reason."""
        self.unanswered = frozenset(unanswered)
        told = "; ".join(f"{place}: {why}" for place, why in unanswered.items())
        super().__init__("list", key, f"not all buckets answered: {told}")


class ObjectExistsError(RemoteStorageError):
    """A conditional PUT found the key taken. Never leaves the manager, which checks whose bytes are there."""

    retriable = False
    label = "exists"

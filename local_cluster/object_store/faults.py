"""Faults of the object store of this machine, and the requests that they strike."""

import json
import threading
from dataclasses import dataclass, replace
from typing import Final, Literal, Self, get_args
from urllib.parse import unquote

FaultKind = Literal[
    "error", "hang", "cut_body", "alter_body", "latency", "lose_response", "ignore_conditions", "empty_session"
]
ALL_METHODS: Final = ("PUT", "GET", "HEAD", "DELETE")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, the requests that it strikes, and how often.

    - error: answer `status` and `code`; with `after_effect` only once the request has taken effect
    - hang: no answer until the fault is cleared, and no effect until then
    - cut_body: the answer's body ends half way
    - alter_body: one byte of it is changed; of a PUT, one byte of what arrives
    - latency: `seconds` more
    - lose_response: the request takes effect, then the connection is cut
    - ignore_conditions: If-None-Match is ignored
    - empty_session: CreateSession answers 200 without credentials
    """

    kind: FaultKind
    methods: tuple[str, ...] = ALL_METHODS
    times: int | None = None
    """The number of requests that it strikes; None: all, until cleared."""
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    after_effect: bool = False
    path_part: str = ""
    """Only requests with this text in their path and query, without percent-encoding, as Google's client escapes
    more than others."""

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """A fault from a JSON object with the fields' names. Raises ValueError for anything else."""
        fields = json.loads(raw)
        if not isinstance(fields, dict) or fields.get("kind") not in get_args(FaultKind):
            raise ValueError(f"a fault has a kind out of {', '.join(get_args(FaultKind))}")
        try:
            return cls(**{**fields, "methods": tuple(fields.get("methods", ALL_METHODS))})
        except TypeError as error:
            raise ValueError(str(error)) from error


class Faults:
    """The faults that are set. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._cleared = threading.Event()

    def add(self, fault: Fault) -> None:
        """Set one more; of two that fit a request, the one set first strikes."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Remove all faults and let hanging requests continue."""
        with self._lock:
            self._faults.clear()
            self._cleared.set()
            self._cleared = threading.Event()

    def take(self, kind: FaultKind, method: str, target: str, after_effect: bool = False) -> Fault | None:
        """Return the fault of this kind that strikes this request, if any, and count the strike."""
        with self._lock:
            for index, fault in enumerate(self._faults):
                if (fault.kind, fault.after_effect) != (kind, after_effect):
                    continue
                if method not in fault.methods or fault.path_part not in unquote(target):
                    continue
                if fault.times is not None:
                    left = fault.times - 1
                    self._faults[index : index + 1] = [replace(fault, times=left)] if left else []
                return fault
        return None

    def wait_until_cleared(self) -> None:
        """Block until `clear` is called."""
        with self._lock:
            cleared = self._cleared
        cleared.wait()

    def snapshot(self) -> list[Fault]:
        """Return the faults that can still strike."""
        with self._lock:
            return list(self._faults)

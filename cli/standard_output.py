"""Standard output that is closed, full or absent: the command says so once, and exits with 3.

What standard error does not take is dropped: progress and log lines never end the work.
"""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cli.exit_code import ExitCode


class StandardOutputError(Exception):
    """Standard output cannot be written to. It is no OSError, which libraries handle in their own way."""


class _Output(io.FileIO):
    """Standard output, whose first error is raised. What is written afterwards is dropped."""

    error = ""

    def write(self, data: object, /) -> int:
        if self.error:
            return memoryview(data).nbytes  # type: ignore[arg-type]
        try:
            # Whoever shares a pipe or a terminal may have made it non-blocking; None says that it is full.
            while (written := super().write(data)) is None:  # type: ignore[arg-type]
                select.select([], [self], [])
            return written
        except OSError as error:
            self.error = error.strerror or str(error)
            raise StandardOutputError from None


class _Telling(io.FileIO):
    """Standard error: what it does not take is dropped."""

    def write(self, data: object, /) -> int:
        written = None
        with suppress(OSError):
            written = super().write(data)  # type: ignore[arg-type]
        return memoryview(data).nbytes if written is None else written  # type: ignore[arg-type]


def fill_descriptors() -> None:
    """Open each of the standard descriptors that is absent, as else the next file or socket would become it.

    For reading only: what is printed there fails.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)


@contextmanager
def checked_output() -> Iterator[None]:
    """Run a command inside the block. Ends the program with 3 if what it printed was not written."""
    before = sys.stdout
    if before is not sys.__stdout__:  # a caller of this process wants it
        yield
        return
    fill_descriptors()
    raw = _Output(1, "w", closefd=False)
    if sys.stderr is sys.__stderr__:
        encoding_of_told = sys.stderr.encoding if sys.stderr is not None else "utf-8"
        telling = io.BufferedWriter(_Telling(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(telling, encoding_of_told, "backslashreplace", line_buffering=True)
    encoding, errors = (before.encoding, before.errors) if before is not None else ("utf-8", None)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty())
    try:
        yield
    except StandardOutputError:
        pass
    finally:
        with suppress(StandardOutputError):
            sys.stdout.flush()
        if raw.error:
            sys.stderr.write(f"remote-wal: standard output: {raw.error}\n")
            sys.exit(ExitCode.UNKNOWN)

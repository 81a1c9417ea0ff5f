"""A tail's position in a log: the segment file, and the position in it where a batch begins."""

import os
import struct
from typing import Final

from kafka_log.open_files import FileReplacedError, LogFile, OpenFiles
from kafka_log.record_batch import BATCH_OVERHEAD_BYTES, LOG_OVERHEAD_BYTES

UNKNOWN_OFFSET: Final = -1
_LENGTH = struct.Struct(">8xi")


class SegmentPosition:
    """Reads at the position. Callers of reads and sizes must have entered a file before.

    All methods except `read_cached`, `is_live` and `size_bytes` raise FileNotFoundError or FileReplacedError when the
    file had to be closed and is gone, and OSError.
    """

    def __init__(self, files: OpenFiles, max_batch_bytes: int) -> None:
        self._files = files
        self._max_batch_bytes = max_batch_bytes
        self.file: LogFile | None = None
        """None before the first file is found, and when it is gone."""
        self.base_offset = UNKNOWN_OFFSET
        """Base offset of the present segment, or of the last one."""
        self.position = 0
        self.is_quiet = False
        """The last read found the file's end, so sizes are checked first."""
        self.has_zero_tail = False
        """The last read found only zeros, so the next few bytes are checked first."""
        self.is_last_look = False
        """A later segment exists, so the present one is complete: what the next look does not find never comes."""

    def enter(self, base_offset: int, file: LogFile, position: int) -> None:
        """Move to this position."""
        self.leave()
        self.file, self.base_offset, self.position = file, base_offset, position
        self.is_quiet = self.is_last_look = self.has_zero_tail = False

    def leave(self) -> None:
        """Be in no file."""
        self.close()
        self.file = None

    def close(self) -> None:
        """Close the descriptor. A read opens it again."""
        if self.file is not None:
            self._files.close(self.file)

    def read(self, file: LogFile, max_bytes: int) -> bytes:
        """Read at most so many bytes, or one larger batch."""
        fd = self._files.pin(file)
        try:
            if self.has_zero_tail:
                zeros = os.pread(fd, BATCH_OVERHEAD_BYTES, self.position)
                if not any(zeros):
                    return zeros
            data = os.pread(fd, max_bytes, self.position)
            if len(data) == max_bytes:
                needed = LOG_OVERHEAD_BYTES + _LENGTH.unpack_from(data)[0]
                if len(data) < needed <= self._max_batch_bytes:
                    data = os.pread(fd, needed, self.position)
            return data
        finally:
            self._files.unpin(file)

    def read_cached(self, file: LogFile, max_bytes: int) -> bytes:
        """Read at most so many bytes of what the kernel has in memory. Raises OSError."""
        return self._files.read_cached(file, self.position, max_bytes)

    def is_at_end(self, file: LogFile) -> bool:
        """Whether the file ends here, by its size."""
        return self._files.status(file).st_size == self.position

    def bytes_behind(self, file: LogFile) -> int:
        """Return how many bytes there are from the position on."""
        return max(0, self._files.status(file).st_size - self.position)

    def size_bytes(self, file: LogFile) -> int:
        """Return the file's size; up to the position, if it was closed and just deleted. Raises OSError."""
        try:
            return self._files.status(file).st_size
        except (FileNotFoundError, FileReplacedError):
            return self.position

    def is_live(self) -> bool:
        """Whether the file is still in the directory. Raises OSError."""
        file = self.file
        if file is None:
            return False
        try:
            status = file.path.stat()
        except FileNotFoundError:
            return False
        return file.identity in (None, (status.st_dev, status.st_ino))

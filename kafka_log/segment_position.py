"""Where a tail stands in a log: in which segment file, and at which position in it a batch begins."""

import os
import struct
from typing import Final

from kafka_log.open_files import FileReplacedError, LogFile, OpenFiles
from kafka_log.record_batch import BATCH_OVERHEAD_BYTES, LOG_OVERHEAD_BYTES

UNKNOWN_OFFSET: Final = -1
_LENGTH = struct.Struct(">8xi")


class SegmentPosition:
    """Reads what stands at the position. Whoever asks for bytes or sizes has entered a file before.

    All but `read_cached`, `is_live` and `size_bytes` raise FileNotFoundError or FileReplacedError when the file had to
    be closed and is gone, and OSError.
    """

    def __init__(self, files: OpenFiles, max_batch_bytes: int) -> None:
        self._files = files
        self._max_batch_bytes = max_batch_bytes
        self.file: LogFile | None = None
        """None before the first one is found, and when it is gone."""
        self.base_offset = UNKNOWN_OFFSET
        """The segment's, or that of the last one."""
        self.position = 0
        self.is_quiet = False
        """The last read found the file's end, so a look at the sizes comes first."""
        self.has_zero_tail = False
        """The last read found nothing but zeros, so a look at the next few bytes comes first."""
        self.is_last_look = False
        """A later segment exists, so the current one is complete: what the next look does not find never comes."""

    def enter(self, base_offset: int, file: LogFile, position: int) -> None:
        """Stand here from now on."""
        self.leave()
        self.file, self.base_offset, self.position = file, base_offset, position
        self.is_quiet = self.is_last_look = self.has_zero_tail = False

    def leave(self) -> None:
        """Stand in no file."""
        self.close()
        self.file = None

    def close(self) -> None:
        """Give up the descriptor. A read opens it again."""
        if self.file is not None:
            self._files.close(self.file)

    def read(self, file: LogFile, max_bytes: int) -> bytes:
        """At most so many bytes; or one batch that is larger."""
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
        """At most so many bytes of what the kernel has in memory. Raises OSError."""
        return self._files.read_cached(file, self.position, max_bytes)

    def is_at_end(self, file: LogFile) -> bool:
        """Whether the file ends here, by its size."""
        return self._files.status(file).st_size == self.position

    def bytes_behind(self, file: LogFile) -> int:
        """How many there are from the position on."""
        return max(0, self._files.status(file).st_size - self.position)

    def size_bytes(self, file: LogFile) -> int:
        """The file's; up to the position, if it was closed and deleted just now. Raises OSError."""
        try:
            return self._files.status(file).st_size
        except (FileNotFoundError, FileReplacedError):
            return self.position

    def is_live(self) -> bool:
        """Whether the file stands in the directory still. Raises OSError."""
        file = self.file
        if file is None:
            return False
        try:
            status = file.path.stat()
        except FileNotFoundError:
            return False
        return file.identity in (None, (status.st_dev, status.st_ino))

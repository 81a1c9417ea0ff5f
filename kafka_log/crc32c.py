"""CRC32C (Castagnoli), the checksum of record batches, of links and of combined segments.

It comes from the `crc32c` package, which takes any buffer in place. `google-crc32c` is as fast on bytes, but
refuses memoryviews and bytearrays, so a batch inside a larger buffer would have to be copied first (half as
much time again for 1 MB). For large buffers the package lets other threads run while it computes.
"""

import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC32C of `data` as an unsigned 32-bit number; `value` is the CRC of the bytes in front of it."""
    checksum: int = _crc32c.crc32c(data, value)
    return checksum

"""Gives zstd (RFC 8878) as Python 3.14 has it in its standard library; older ones have it by `backports.zstd`.

The package `zstandard` is as fast, but what its stream decoder returns cannot be limited: a few kilobytes would unpack
to as much memory as their sender likes. Both release the interpreter's lock.
"""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import (
        CompressionParameter,
        DecompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdError,
        ZstdFile,
        compress,
        decompress,
    )
else:
    from backports.zstd import (
        CompressionParameter,
        DecompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdError,
        ZstdFile,
        compress,
        decompress,
    )

__all__ = [
    "CompressionParameter",
    "DecompressionParameter",
    "ZstdCompressor",
    "ZstdDecompressor",
    "ZstdError",
    "ZstdFile",
    "compress",
    "decompress",
]

"""Bytes that are not the leader's and have the same CRC32C: what somebody who can write the bucket can make."""

from kafka_log.crc32c import crc32c

_CHECKSUM_BITS = 32
_PATCH_BYTES = 4


def forged(data: bytes, at: int, put: bytes) -> bytes:
    """`data` with `put` at a position, and the four bytes behind it such that the CRC32C stays what it was.

    A CRC is linear: which bits of the patch turn which bits of the checksum is found bit by bit, and solved.
    """
    patch_at = at + len(put)
    changed = bytearray(data)
    changed[at:patch_at] = put
    wanted = crc32c(data) ^ crc32c(changed)
    turns: dict[int, tuple[int, int]] = {}
    """By highest bit: what bits of the checksum change, and by which bits of the patch."""
    for bit in range(_CHECKSUM_BITS):
        turned = bytearray(changed)
        turned[patch_at + bit // 8] ^= 1 << bit % 8
        effect, by = _reduced(crc32c(turned) ^ crc32c(changed), 1 << bit, turns)
        turns[effect.bit_length()] = effect, by
    left, patch = _reduced(wanted, 0, turns)
    assert not left
    for index, value in enumerate(patch.to_bytes(_PATCH_BYTES, "little")):
        changed[patch_at + index] ^= value
    return bytes(changed)


def _reduced(effect: int, by: int, turns: dict[int, tuple[int, int]]) -> tuple[int, int]:
    while effect.bit_length() in turns and effect:
        other, other_by = turns[effect.bit_length()]
        effect, by = effect ^ other, by ^ other_by
    return effect, by

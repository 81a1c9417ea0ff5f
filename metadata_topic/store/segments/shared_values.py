"""Byte strings by small numbers: a backend gives nearly all segments the same few as custom metadata.

A number is given away anew once nobody has it. Not thread-safe.
"""


class SharedValues:
    """Number 0 is the empty one, always."""

    def __init__(self) -> None:
        self._numbers = {b"": 0}
        self._values = [b""]
        self._owners = [1]
        self._free: list[int] = []

    def take(self, value: bytes) -> int:
        """Its number; one more has it now."""
        number = self._numbers.get(value)
        if number is None:
            number = self._free.pop() if self._free else len(self._values)
            if number == len(self._values):
                self._values.append(value)
                self._owners.append(0)
            self._values[number] = value
            self._numbers[value] = number
        self._owners[number] += 1
        return number

    def give_back(self, number: int) -> None:
        """One fewer has it."""
        self._owners[number] -= 1
        if not self._owners[number]:
            del self._numbers[self._values[number]]
            self._values[number] = b""
            self._free.append(number)

    def value(self, number: int) -> bytes:
        """Of a number that somebody has."""
        return self._values[number]

    def __len__(self) -> int:
        return len(self._numbers)
